"""Usage of remote endpoints: one line per request, totals by phase and role, and the budget.

`track_usage` opens the ledger of a command; requests that begin inside it are recorded there. The file only grows and is never
cut back to a checkpoint, so a resumed run starts with its cost so far. No line holds a text or a key.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

from skill_ttrl.config import EndpointConfig, EndpointsConfig
from skill_ttrl.errors import BudgetError, RunFolderError, annotate_error
from skill_ttrl.llm.openai.budget import Budget, Hold, Limits, Spend, budget_text, cost_text
from skill_ttrl.llm.openai.cache import PaidAnswers
from skill_ttrl.llm.openai.usage_text import ASKED as ASKED
from skill_ttrl.llm.openai.usage_text import usage_lines as usage_lines
from skill_ttrl.storage.append_log import append_whole, cut_torn_line
from skill_ttrl.storage.files import wrap_os_errors, write_atomic
from skill_ttrl.storage.jsonl import read_jsonl

USAGE = "usage.jsonl"
ANSWERS = "answers.jsonl"
"""In the same folder: answers that no finished piece of work holds yet (`PaidAnswers`)."""
REFUSED = "refused.json"
"""In the same folder: the most that the request could take which did not fit into the budget."""
GO_ON = "Raise it, and go on with the same command and --resume auto."
"""Ends the message of a run whose budget is spent."""
SAME = "Go on with the same command."
"""Message on leaving a command early, if the same command continues by itself."""
RAISE = "Raise the budget (endpoints.max_total_tokens, endpoints.max_cost or endpoints.max_requests)"
AGAIN = f"{RAISE}, then run the same command again: it continues."
"""The same, where a command goes on without `--resume`."""
DELIVERED = ("ok", "length", "empty", "refusal", "filtered", "tool_call", "malformed")
"""Outcomes of requests that were answered, well or not; any other is the kind of an `EndpointError`, or `cancelled`."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one answer or of many."""

    prompt: int = 0
    cached: int = 0
    """Of the prompt's, those that the server had read before."""
    answer: int = 0
    estimated: bool = False
    """True if the server did not say: a token was taken for 4 bytes."""

    def __add__(self, other: Tokens) -> Tokens:
        sums = (self.prompt + other.prompt, self.cached + other.cached, self.answer + other.answer)
        return Tokens(*sums, self.estimated or other.estimated)


@dataclass(frozen=True, slots=True)
class Entry:
    """One request, as a line of the ledger."""

    phase: str
    role: str
    model: str
    outcome: str
    """One of `DELIVERED`, the kind of an `EndpointError`, or `cancelled`."""
    attempts: int
    """Times it was sent; 0 if the answer came from the disk, or if the request was cancelled before."""
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    """By the config's prices; None where it has none."""
    seconds: float = 0.0
    """From the first attempt to the last answer, pauses included."""
    cached: bool = False
    """True if the answer came from the disk and cost nothing."""
    estimated: bool = False
    """True if the server did not count the tokens: they are a quarter of the bytes."""
    over_bound: bool = False
    """True if the server billed more than the request could take at most by what was asked."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over requests."""

    requests: int = 0
    failed: int = 0
    """Of those, the ones that came to nothing."""
    cached: int = 0
    """Of those, the ones that were answered from the disk."""
    attempts: int = 0
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    """Of the requests with a price."""
    unpriced: int = 0
    """Of those, the ones that took tokens without a price: their cost is unknown."""
    over_bound: int = 0
    """Of those, the ones that were billed at more than they could take at most; they alone can pass a budget."""

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers."""
        return self.tokens_in + self.tokens_out

    @classmethod
    def of(cls, entry: Entry) -> Totals:
        """Totals of one request."""
        sent = entry.attempts, entry.tokens_in, entry.tokens_cached, entry.tokens_out
        failed, unpriced = entry.outcome not in DELIVERED, entry.cost is None
        return cls(1, failed, entry.cached, *sent, entry.cost or 0.0, unpriced, entry.over_bound)

    @property
    def spend(self) -> Spend:
        """The amounts that a budget bounds."""
        return Spend(self.tokens, self.cost, self.attempts)

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


Parts = dict[tuple[str, str], Totals]
"""Totals by phase and role."""


@dataclass
class Ledger:
    """Recorded usage and its limits.

    Args:
        path: file of the ledger, read if it exists; None: only totals in memory.
        max_cost: upper limit of the cost, in the prices' currency.
        max_total_tokens: upper limit of tokens, prompts and answers together.
        max_requests: upper limit of requests sent, retries included.

    Raises:
        RunFolderError: the file cannot be read.
    """

    path: Path | None = None
    max_cost: float | None = None
    max_total_tokens: int | None = None
    max_requests: int | None = None
    paid: PaidAnswers | None = field(default=None, repr=False)
    """Answers that no finished piece of work holds yet; None where `path` is."""
    _parts: Parts = field(default_factory=dict, repr=False)
    present_phase: str = field(default="other", repr=False)
    """The phase of requests that begin now."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            cut_torn_line(self.path)
            self._parts = read_usage(self.path)
        if self.path is not None:
            self.paid = PaidAnswers(self._beside(self.path, ANSWERS))
        self._budget = Budget(Limits(self.max_total_tokens, self.max_cost, self.max_requests), self._refuse)
        self._budget.add(self.totals().spend)
        self._refused = self._refused_before()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Requests that begin inside the block belong to this phase."""
        before, self.present_phase = self.present_phase, name
        try:
            yield
        finally:
            self.present_phase = before

    @property
    def bounded(self) -> bool:
        """True if there is a budget."""
        return bool(self._budget.limits)

    @property
    def exhausted(self) -> bool:
        """True if nothing is left of the budget, or less than a refused request could take."""
        spent, limits = self._budget.spent, self._budget.limits
        return limits.reached_by(spent) or (self._refused is not None and not limits.allow(spent + self._refused[0]))

    def check(self) -> None:
        """Called before work begins that needs requests; each of them is reserved for by itself (`hold`).

        Raises:
            BudgetError: the budget is spent.
        """
        if self.exhausted:
            raise _Spent(self)

    def hold(self) -> Hold:
        """Reserves for one request, attempt by attempt, until `record` counts it."""
        return Hold(self._budget)

    def spent(self) -> str:
        """The message of a spent budget, with what was spent until now and what the refused request could take."""
        totals = self.totals()
        sent = totals.requests - totals.cached
        facts = sent, cost_text(totals.cost, totals.unpriced, sent), totals.over_bound, len(self.paid or ())
        return budget_text(self._budget.limits, totals.spend, facts, self._refused)

    def _refuse(self, most: Spend, role: str) -> BudgetError:
        with self._lock:  # several threads may be refused at once; the first is noted
            if self._refused is None:
                self._refused = most, role
                if self.path is not None:
                    file = self._beside(self.path, REFUSED)
                    with wrap_os_errors("write", file):
                        write_atomic(file, json.dumps({"most": asdict(most), "role": role}).encode())
        return _Spent(self)

    def _refused_before(self) -> tuple[Spend, str] | None:
        """The request that ended the command before: it may fit now that the budget was raised, and is forgotten then."""
        file = None if self.path is None else self._beside(self.path, REFUSED)
        if file is None or not file.exists():
            return None
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            most, role = Spend(**found["most"]), str(found["role"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{file} cannot be read: {error}. Remove it.") from None
        if not self._budget.limits.allow(self._budget.spent + most):
            return most, role
        with wrap_os_errors("remove", file):
            file.unlink(missing_ok=True)
        return None

    @staticmethod
    def _beside(path: Path, name: str) -> Path:
        return path.with_name(path.name.removesuffix(USAGE) + name)

    def settle(self) -> None:
        """Forget the paid answers: what came of them is saved elsewhere now.

        Raises:
            RunFolderError: their file cannot be removed.
        """
        if self.paid is not None:
            self.paid.clear()

    def record(self, entry: Entry, hold: Hold | None = None) -> None:
        """Add one request that has ended, with its `hold`.

        Raises:
            RunFolderError: the file cannot be written.
        """
        try:
            with self._lock:
                _add(self._parts, entry)
                if self.path is not None:
                    append_whole(self.path, f"{json.dumps(asdict(entry))}\n".encode(), durable=False)
        finally:
            self._budget.add(Totals.of(entry).spend, hold)

    def totals(self) -> Totals:
        """Sums over all requests."""
        with self._lock:
            return sum(self._parts.values(), Totals())

    def report(self) -> dict[str, Any]:
        """Totals, and under `by` those of each phase and role; empty where nothing was asked."""
        with self._lock:
            return usage_report(self._parts)


def read_usage(path: Path) -> Parts:
    """Totals by (phase, role) of a ledger's file.

    Raises:
        RunFolderError: it cannot be read, or a line is none of a ledger.
    """
    parts: Parts = {}
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            _add(parts, Entry(**row))
        except TypeError as error:
            raise RunFolderError(f"{path}:{number} is no line of a ledger: {error}. The file was changed.") from None
    return parts


def usage_report(parts: Parts) -> dict[str, Any]:
    """See `Ledger.report`."""
    if not parts:
        return {}
    by: dict[str, dict[str, Any]] = defaultdict(dict)
    for (phase, role), totals in sorted(parts.items()):
        by[phase][role] = _figures(totals)
    return {**_figures(sum(parts.values(), Totals())), "by": dict(by)}


def cost_of(tokens: Tokens, config: EndpointConfig) -> float | None:
    """The cost of an answer by the config's prices; None where it has none. No tokens cost nothing."""
    if not config.priced:
        return None if tokens.prompt or tokens.answer else 0.0
    price_in, price_out = config.price_in or 0.0, config.price_out or 0.0
    cached = price_in if config.price_cached is None else config.price_cached
    fresh = tokens.prompt - tokens.cached
    return (fresh * price_in + tokens.cached * cached + tokens.answer * price_out) / 1e6


def current_ledger() -> Ledger:
    """The ledger that `track_usage` has opened in this context; else one without a budget, which nobody reads."""
    return _ambient.get()


def current_phase() -> str | None:
    """The phase that `asked_in` has named in this context; None: that of the ledger."""
    return _phase.get()


@contextmanager
def asked_in(phase: str) -> Iterator[None]:
    """Requests of this context alone belong to `phase`, unlike `Ledger.phase`, which all threads share."""
    token = _phase.set(phase)
    try:
        yield
    finally:
        _phase.reset(token)


@contextmanager
def track_usage(path: Path | None, endpoints: EndpointsConfig) -> Iterator[Ledger]:
    """Record requests in `path` inside the block, continuing what it holds, under the config's budget.

    Answers are saved in the same folder until `Ledger.settle`: a process that repeats the questions of one that stopped is answered from
    there. The ledger is handed on as the one of the caller's context (`contextvars`), to its coroutines and to those that `wait_for`
    runs in a thread; a thread of one's own begins without it. The file begins with the first request.

    Raises:
        RunFolderError: the file cannot be read.
    """
    ledger = Ledger(path, endpoints.max_cost, endpoints.max_total_tokens, endpoints.max_requests)
    token = _ambient.set(ledger)
    try:
        yield ledger
    finally:
        _ambient.reset(token)


def when_spent(leaving: str) -> str:
    """Turn the message for leaving early (`leaving`) into the one for a spent budget."""
    saved, continues, _ = leaving.partition(SAME)
    return f"{saved.rstrip()} {AGAIN if continues else f'{RAISE}.'}"


def annotate_budget_error(leaving: str) -> AbstractContextManager[None]:
    """Append `leaving` to a `BudgetError`: what was saved, and how to continue."""
    return annotate_error(BudgetError, leaving)


class _Spent(BudgetError):
    """Says what was spent when it is read, not when it is raised: requests that were on their way then count too."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def __str__(self) -> str:
        return self._ledger.spent()


def _figures(totals: Totals) -> dict[str, Any]:
    """Totals as a report has them: a cost of which nothing is known is None."""
    return {**asdict(totals), **({"cost": None} if totals.unpriced and not totals.cost else {})}


def _add(parts: Parts, entry: Entry) -> None:
    place = entry.phase, entry.role
    parts[place] = parts.get(place, Totals()) + Totals.of(entry)


_ambient: ContextVar[Ledger] = ContextVar("ledger", default=Ledger())  # noqa: B039  # nobody reads the default's totals
_phase: ContextVar[str | None] = ContextVar("phase", default=None)
