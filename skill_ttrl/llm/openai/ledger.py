"""Requests to remote models: one append-only file with each answer and what it took, and the budget.

`track_usage` opens the ledger of a command; requests that begin inside it are recorded there. A line is written when an answer
arrives, and totals are sums over the lines, so a kill loses no answer that was counted. A resumed command reads the file: it starts
with its cost so far, and the same request gets the same answer without being sent. No line holds a key.

Before a request is sent, the most that it could take is reserved, so no number of concurrent requests exceeds the budget.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from skill_ttrl.config import EndpointConfig, EndpointsConfig
from skill_ttrl.errors import BudgetError, EndpointError, RunFolderError, annotate_error
from skill_ttrl.storage.files import append_whole, cut_torn_line
from skill_ttrl.storage.jsonl import whole_lines

USAGE = "usage.jsonl"
GO_ON = "Raise it, and repeat the command with --resume auto."
"""Ends the message of a run whose budget is spent."""
SAME = "Run the same command again to continue."
"""Message on leaving a command early, if the same command continues by itself."""
RAISE = "Raise the budget (endpoints.max_total_tokens, endpoints.max_cost or endpoints.max_requests)"
AGAIN = f"{RAISE}, then run the same command again: it continues."
"""The same, for a command that continues without `--resume`."""
DELIVERED = ("ok", "length", "empty", "refusal", "filtered", "tool_call", "malformed")
"""Outcomes of requests that were answered, well or not; any other is the kind of an `EndpointError`, or `cancelled`."""
PROGRAM = "program"
"""Role of a program that takes a model's place: a request in the ledger, without tokens or a price."""
ASKED = "API usage"
"""Begins the line that says what they cost."""
LONGEST = {"policy": "rollout.max_new_tokens", "optimizer": "optimize.max_answer_tokens"}
"""Settings of the longest answer, where it is not that of the endpoint."""
SETTLED = "settled"
"""Field of a line: what came of the answers above it is saved elsewhere."""
POLL_S = 0.01


@dataclass(frozen=True)
class Entry:
    """One request, as a line of the ledger."""

    phase: str
    role: str
    model: str
    outcome: str
    """One of `DELIVERED`, the kind of an `EndpointError`, or `cancelled`."""
    attempts: int
    """Times it was sent; 0 if the answer came from the disk."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    """By the config's prices; None where it has none."""
    seconds: float = 0.0
    """From the first attempt to the last answer, pauses included."""
    cached: bool = False
    """True if the answer came from the disk and cost nothing."""
    key: str | None = None
    """Digest of the request; None where the answer is not to be used again."""
    answer: Mapping[str, Any] | None = None
    """The body of the server's answer."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over requests, or the most that one can take. A budget bounds attempts, tokens and cost."""

    requests: int = 0
    failed: int = 0
    """Of those, the ones that came to nothing."""
    cached: int = 0
    """Of those, the ones that were answered from the disk."""
    attempts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    """Of the requests with a price."""
    unpriced: int = 0
    """Of those, the ones that took tokens without a price: their cost is unknown."""

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers."""
        return self.tokens_in + self.tokens_out

    @classmethod
    def of(cls, entry: Entry) -> Usage:
        """Usage of one request."""
        sent = entry.attempts, entry.tokens_in, entry.tokens_out
        return cls(1, entry.outcome not in DELIVERED, entry.cached, *sent, entry.cost or 0.0, entry.cost is None)

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


Parts = dict[tuple[str, str], Usage]
"""Usage by phase and role."""


class Ledger:
    """Recorded requests and their limits. Safe to use from several threads and event loops at once.

    Args:
        path: its file, read if it exists; None: only totals in memory.
        max_cost: upper limit of the cost, in the prices' currency.
        max_total_tokens: upper limit of tokens, prompts and answers together.
        max_requests: upper limit of requests sent, retries included.

    Raises:
        RunFolderError: the file cannot be read.
    """

    def __init__(
        self,
        path: Path | None = None,
        max_cost: float | None = None,
        max_total_tokens: int | None = None,
        max_requests: int | None = None,
    ) -> None:
        self.path = path
        self.limits = {"max_cost": max_cost, "max_total_tokens": max_total_tokens, "max_requests": max_requests}
        self.bounded = any(limit is not None for limit in self.limits.values())
        """True if there is a budget."""
        self.present_phase = "other"
        """The phase of requests that begin now."""
        self.unsettled = 0
        """Saved answers of which nothing else is saved yet."""
        self._parts: Parts = defaultdict(Usage)
        self._answers: dict[str, deque[Mapping[str, Any]]] = defaultdict(deque)
        self._reserved: dict[object, Usage] = {}
        self._refused: tuple[Usage, str] | None = None
        self._lock = threading.Lock()
        if path is not None and path.exists():
            cut_torn_line(path)
            for entry in _read(path):
                if entry is None:
                    self._answers.clear()
                    self.unsettled = 0
                    continue
                self._parts[entry.phase, entry.role] += Usage.of(entry)
                if entry.key is not None and entry.answer is not None:
                    self._answers[entry.key].append(entry.answer)
                    self.unsettled += 1

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Requests that begin inside the block belong to this phase."""
        before, self.present_phase = self.present_phase, name
        try:
            yield
        finally:
            self.present_phase = before

    def current_phase(self) -> str:
        """The phase of a request that begins now: the one that `asked_in` has named in this context, else the ledger's."""
        return _phase.get() or self.present_phase

    def check(self) -> None:
        """Called before work begins that needs requests; each of them is reserved for by itself.

        Raises:
            BudgetError: nothing is left of the budget, or less than a refused request could take.
        """
        spent = self.totals()
        short = self._refused is not None and not self._allows(spent + self._refused[0])
        if short or min(self._left(spent), default=1) <= 0:
            raise _Spent(self)

    def reserve(self, hold: object, most: Usage, role: str) -> Usage | None:
        """Reserve for `hold` the most that its request can take, with as many of `most.attempts` as the budget has.

        Returns:
            What is reserved; None where it fits only if requests that are on their way take less than is reserved for them.

        Raises:
            BudgetError: it does not fit, and nothing that is on its way can change that.
        """
        with self._lock:
            spent, limit = self.totals(), self.limits["max_requests"]
            if limit is not None:
                most = replace(most, attempts=min(most.attempts, max(1, int(limit) - spent.attempts)))
            if not self._allows(spent + most):
                self._refused = self._refused or (replace(most, attempts=1), role)
                raise _Spent(self)
            if not self._allows(sum(self._reserved.values(), spent + most)):
                return None
            self._reserved[hold] = most
            return most

    def take(self, key: str) -> Mapping[str, Any] | None:
        """The next answer that an earlier process was given to this request; None where there is none left.

        Each is given once, so that a request that was sent twice has both of its answers again.
        """
        with self._lock:
            waiting = self._answers.get(key)
            return waiting.popleft() if waiting else None

    def settle(self) -> None:
        """Note that what came of the answers is saved elsewhere: they are not given again.

        Raises:
            RunFolderError: the file cannot be written.
        """
        with self._lock:
            if self.path is not None and self.unsettled:
                append_whole(self.path, f'{{"{SETTLED}": true}}\n'.encode(), durable=False)
            self._answers.clear()
            self.unsettled = 0

    def record(self, entry: Entry | None, hold: object = None) -> None:
        """Add one request that has ended (None: one that was never sent), and give back what is reserved for `hold`. The answer is written
        before it is counted.

        Raises:
            RunFolderError: the file cannot be written.
        """
        with self._lock:
            try:
                if self.path is not None and entry is not None:
                    line = {name: value for name, value in vars(entry).items() if name == "cost" or value is not None}
                    append_whole(self.path, f"{json.dumps(line)}\n".encode(), durable=entry.answer is not None)
                    self.unsettled += entry.answer is not None
            finally:
                if entry is not None:
                    self._parts[entry.phase, entry.role] += Usage.of(entry)
                self._reserved.pop(hold, None)

    def totals(self) -> Usage:
        """Sums over all requests."""
        return sum(self._parts.copy().values(), Usage())

    def report(self) -> dict[str, Any]:
        """Usage, and under `by` those of each phase and role; empty where nothing was asked."""
        return _report(self._parts.copy())

    def _left(self, spent: Usage) -> list[float]:
        amounts = zip(self.limits.values(), (spent.cost, spent.tokens, spent.attempts), strict=True)
        return [limit - amount for limit, amount in amounts if limit is not None]

    def _allows(self, spend: Usage) -> bool:
        return all(left >= 0 for left in self._left(spend))

    def spent(self) -> str:
        """The message of a spent budget: what was spent until now, and what the refused request could take."""
        totals = self.totals()
        sent = totals.requests - totals.cached
        cost = _cost_text(totals.cost, totals.unpriced, sent)
        bounds = " and ".join(f"endpoints.{name}={most:.12g}" for name, most in self.limits.items() if most is not None)
        said = f"The budget is spent: {totals.tokens:,} tokens in {sent:,} request{'s' * (sent != 1)}, {cost}, with {bounds}."
        if self._refused is not None:
            most, role = self._refused
            remedy = ""
            if most.tokens:
                said += f" The next request could take {most.tokens:,} tokens and cost {most.cost:.4g}."
                if role != "embeddings":
                    remedy = (
                        f", or start a new run with a lower {LONGEST.get(role, f'endpoints.roles.{role}.max_tokens')}"
                    )
            said += f" Raise the budget{remedy}."
        if self.unsettled:
            said += f" {self.unsettled:,} paid answers of unfinished work are saved and are not requested again."
        return said


@dataclass(eq=False)
class CountedRequest:
    """A request on its way. Whoever sends it says what came of it; see `counted_request`."""

    allowed: int
    """Most attempts, as many as are reserved."""
    attempts: int = 0
    tokens: Usage = Usage()
    outcome: str = "ok"
    answer: Mapping[str, Any] | None = None
    """Where it is to be given to a resumed command."""


@asynccontextmanager
async def counted_request(
    role: str,
    model: str,
    most: Usage,
    *,
    ledger: Ledger | None = None,
    prices: EndpointConfig | None = None,
    key: str | None = None,
) -> AsyncIterator[CountedRequest]:
    """One request in the ledger: reserved on entering, recorded on leaving if it was sent. A block that raises is recorded as failed.

    Args:
        role: what the model is asked for.
        model: its name.
        most: the most that it can take. Of its attempts, `allowed` are reserved.
        ledger: where it is counted; None: the ledger of the caller's context.
        prices: of its tokens; None: their cost is unknown.
        key: digest of the request, under which its answer is saved.

    Raises:
        BudgetError: on entering; the budget has no room for it.
    """
    ledger = ledger or current_ledger()
    phase, request = ledger.current_phase(), CountedRequest(most.attempts)
    while ledger.bounded:
        if (found := ledger.reserve(request, most, role)) is not None:
            request.allowed = found.attempts
            break
        await asyncio.sleep(POLL_S)
    began = time.monotonic()
    try:
        yield request
    except BaseException as error:
        stopped = error.kind if isinstance(error, EndpointError) else "failed"
        request.outcome = stopped if isinstance(error, Exception) else "cancelled"
        raise
    finally:
        cost = None if role == PROGRAM else cost_of(request.tokens, prices)
        sent = Entry(
            phase,
            role,
            model,
            request.outcome,
            request.attempts,
            request.tokens.tokens_in,
            request.tokens.tokens_out,
            cost,
            seconds=round(time.monotonic() - began, 3),
            key=None if request.answer is None else key,
            answer=request.answer,
        )
        ledger.record(sent if request.attempts else None, request)


def _read(path: Path) -> Iterator[Entry | None]:
    """The requests of a file; None where those before it are settled."""
    names = {each.name for each in fields(Entry)}
    for place, line in whole_lines(path, []):
        try:
            row = json.loads(line)
            yield None if SETTLED in row else Entry(**{name: row[name] for name in row.keys() & names})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise RunFolderError(f"{place} is not a line of a ledger: {error}. The file was changed.") from None


def read_usage(path: Path) -> dict[str, Any]:
    """The report of a ledger's file; see `Ledger.report`.

    Raises:
        RunFolderError: it cannot be read, or a line is none of a ledger.
    """
    parts: Parts = defaultdict(Usage)
    for entry in filter(None, _read(path)):
        parts[entry.phase, entry.role] += Usage.of(entry)
    return _report(parts)


def _report(parts: Parts) -> dict[str, Any]:
    def figures(totals: Usage) -> dict[str, Any]:  # a cost of which nothing is known is None
        return {**asdict(totals), **({"cost": None} if totals.unpriced and not totals.cost else {})}

    by: dict[str, dict[str, Any]] = defaultdict(dict)
    for (phase, role), totals in sorted(parts.items()):
        by[phase][role] = figures(totals)
    return {**figures(sum(parts.values(), Usage())), "by": dict(by)} if parts else {}


def usage_lines(usage: Mapping[str, Any]) -> list[str]:
    """A line for all requests to models and, where there are several, one for each phase and role; then one for programs.

    Args:
        usage: see `Ledger.report`.
    """
    parts = [
        (f"{phase}, {role}", role, each) for phase, roles in usage.get("by", {}).items() for role, each in roles.items()
    ]
    models = {name: each for name, role, each in parts if role != PROGRAM}
    programs = [each for _, role, each in parts if role == PROGRAM]
    lines = [f"{ASKED}: {_asked([*models.values()])}"] if models else []
    lines += [f"{name}: {_asked([each])}" for name, each in models.items() if len(models) > 1]
    if programs:
        total, failed = (sum(each[name] for each in programs) for name in ("requests", "failed"))
        lines.append(f"programs started: {total:,}" + (f", {failed:,} failed" if failed else ""))
    return lines


def _asked(parts: Sequence[Mapping[str, Any]]) -> str:
    total = {name: sum(each.get(name) or 0 for each in parts) for name in parts[0]}
    shown = "".join(
        f", {total[name]} {said}" for name, said in (("failed", "failed"), ("cached", "from the disk")) if total[name]
    )
    cost = _cost_text(total["cost"], total["unpriced"], total["requests"] - total["cached"])
    return f"{total['requests']} requests{shown}; {total['tokens_in']:,} tokens in, {total['tokens_out']:,} out; {cost}"


def _cost_text(cost: float, unpriced: int, requests: int) -> str:
    """`cost 0.5`, or what is known of it: of `requests`, so many have no price."""
    if not unpriced:
        return f"cost {cost:.4g}"
    if not cost:
        return "cost unknown (no price is set)"
    return f"cost at least {cost:.4g} ({unpriced:,} of {requests:,} requests have no price)"


def cost_of(used: Usage, config: EndpointConfig | None) -> float | None:
    """The cost of an answer's tokens by the config's prices; None where it has none. No tokens cost nothing."""
    if config is None or not config.priced:
        return None if used.tokens else 0.0
    return (used.tokens_in * (config.price_in or 0.0) + used.tokens_out * (config.price_out or 0.0)) / 1e6


def current_ledger() -> Ledger:
    """The ledger that `track_usage` has opened in this context; else one without a budget, which nobody reads."""
    return _ambient.get()


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

    The ledger is handed on as the one of the caller's context (`contextvars`), to its coroutines and to those that `wait_for` runs in
    a thread; a thread of one's own begins without it. The file begins with the first request.

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


_ambient: ContextVar[Ledger] = ContextVar("ledger", default=Ledger())  # noqa: B039  # nobody reads the default's totals
_phase: ContextVar[str | None] = ContextVar("phase", default=None)
