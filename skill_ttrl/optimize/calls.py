"""The two things that an optimization asks of the world, each done once: completions of a language model, and rollouts.

Both go through the journal. A request has a name made of its content and of how often the same was asked before, so a replayed loop
finds what was finished, in whatever order it had come back. The loop is a deterministic function of its inputs, its seed and the journal's
file: a resumed run replays it from its start, what the journal holds costs nothing, and it ends as a run that was never stopped.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from skill_ttrl.config import EndpointsConfig
from skill_ttrl.errors import ConfigError, EndpointError, EnvError, RunFolderError
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import make_client
from skill_ttrl.llm.openai.ledger import asked_in
from skill_ttrl.optimize.types import RolloutResult, content_hash, skill_hash
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.storage.files import append_whole, cut_torn_line
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Message, derive_seed

JOURNAL, IDENTITY = "journal.jsonl", "optimize.json"
"""Files of a run: its finished work, and what it depends on besides the config."""


class Journal:
    """Results by key, saved line by line in a file.

    Args:
        path: the file, continued where it exists; None: results stay in memory.

    Raises:
        RunFolderError: the file cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._results: dict[str, Any] = {}
        self._lock = threading.Lock()
        if path is not None and path.exists():
            cut_torn_line(path)
            for number, row in enumerate(read_jsonl(path), 1):
                if row.keys() != {"key", "result"}:
                    raise RunFolderError(f"{path}:{number} is not a journal line: the file was changed.")
                self._results[str(row["key"])] = row["result"]
        self.replayed = len(self._results)
        """Results that were there when it was opened."""

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: str) -> Any:
        """The result of a finished piece of work, a mapping; None where it is not finished."""
        return self._results.get(key)

    def put(self, key: str, result: Mapping[str, Any], *, durable: bool = True) -> None:
        """Keep a result, on the disk when this returns where it is `durable`. Safe to call from several threads.

        Raises:
            RunFolderError: the file cannot be written.
        """
        with self._lock:
            if self.path is not None:
                line = json.dumps({"key": key, "result": dict(result)})
                append_whole(self.path, f"{line}\n".encode(), durable=durable)
            self._results[key] = result


Item = Mapping[str, Any]
"""One task as plain JSON, with at least an `id`."""
ONE_REQUEST = frozenset({"refused", "too_long", "malformed", "refusal", "filtered", "client", "failed"})
"""Kinds of an `EndpointError` that are one request's own. After any other, such as a server that is gone, a run stops and can be
continued; recorded as a failure, the request would be left out for good.
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a language model."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


ChatFn = Callable[..., Reply]
"""`chat(system, user, *, max_tokens, stage)` asks a language model for one answer to `user` under the instructions `system`; several threads
call it at once. It raises EndpointError where the request comes to nothing (the loop counts it), BudgetError where the budget is spent."""
CHAT = "chat(system, user, *, max_tokens, stage) returns a skill_ttrl.optimize.calls.Reply(text, prompt_tokens, completion_tokens)"
RollOutFn = Callable[..., list[RolloutResult]]
"""`roll_out(document, items, *, seed, on_result)` rolls out a document: one result an item, in order; `on_result(place, result)` is called as
each is finished.

A rollout that fails in the environment is a result that says so; what is raised ends the run: BudgetError, and EndpointError or EnvError where
nothing works. An item's result depends on `seed` and the item alone, so that a batch that was interrupted is resumed with those that are missing.
"""


class EndpointChat:
    """The `ChatFn` of the endpoint with the role `optimizer`.

    Requests stand in the ledger under the stage that asks. Temperature, prices, retries and time limits are those of the config.

    Raises:
        ConfigError: there is no such endpoint, or its key or address is missing.
        MissingDependencyError: the package openai is not installed.
    """

    def __init__(self, endpoints: EndpointsConfig) -> None:
        self._client = make_client(endpoints, "optimizer")

    def __call__(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
        """Ask for one answer, as `ChatFn` says. One that was refused, filtered or cut off is what there is of it."""
        messages = (*([Message("system", system)] if system else []), Message("user", user))
        with asked_in(stage):
            found = wait_for(self._client.chat(messages, max_tokens=max_tokens))
        return Reply(found.text, found.usage.tokens_in, found.usage.tokens_out)

    def close(self) -> None:
        """End the connections. Safe to call twice."""
        self._client.shut()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question to the optimizer's model."""

    stage: str
    """The stage that asks: analyst_error, merge_failure, ranking, …."""
    system: str
    user: str
    max_tokens: int = 4096


NAMES = {"rollout": "training"}
"""Names of stages that are shown under another one."""
MARKS = {
    "ungraded": "are ungraded: analysts and tests ignore them, and the gate counts them as 0.",
    "rewarded": "were rewarded by the environment, but are wrong by the task's true answer, which decides if info has no 'won'. To let the environment decide, return info['won'].",
}
"""Marks of results that are worth a warning; see `rollouts.as_result`."""
FAILED = ("timeout", "no_answer", "error")
"""Stop reasons of rollouts that failed in the environment or had no answer."""


@dataclass
class Counts:
    """Work of one kind."""

    asked: int = 0
    """Requests or rollouts that the loop wanted."""
    reused: int = 0
    """Of those, the ones that an earlier result of this run answered."""
    failed: int = 0
    """Of those, the ones without a usable answer."""
    ungraded: int = 0
    """Of those, the rollouts of which nothing tells success."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def done(self) -> int:
        """Those that no earlier result of this run answered."""
        return self.asked - self.reused


@dataclass
class Calls:
    """Requests and rollouts of one optimization.

    Args:
        chat: the optimizer's model; None where the optimizer asks none.
        roll_out: the target.
        journal: where finished work is saved.
        seed: of the rollouts.
        reuse_rollouts: a document that was rolled out on an item is not rolled out on it again.
        early_stop: the evaluation of a candidate ends once it cannot pass any more; that changes no decision.
        workers: requests on their way at once.
        progress: gets one warning about each of `MARKS`.
    """

    chat: ChatFn | None
    roll_out_fn: RollOutFn
    journal: Journal = field(default_factory=Journal)
    seed: int = 0
    reuse_rollouts: bool = False
    early_stop: bool = True
    workers: int = 8
    progress: Progress = field(default_factory=SilentProgress)
    counts: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))
    """By stage; rollouts by what they are for."""
    _asked: Counter[str] = field(default_factory=Counter)
    _warned: set[str] = field(default_factory=set)

    def ask(self, requests: Sequence[ChatRequest]) -> list[str | None]:
        """Put all requests, several at once; one answer each, in order, None for one that came to nothing.

        Raises:
            EndpointError: the server serves nobody.
            BudgetError: the budget is spent; the answers until then are saved.
        """
        keys = [self._name("chat", each.stage, each.system, each.user, each.max_tokens) for each in requests]
        counts = [self.counts[request.stage] for request in requests]
        for count in counts:
            count.asked += 1
        pairs = zip(requests, keys, strict=True)
        in_threads([partial(self._put, *pair) for pair in pairs if self.journal.get(pair[1]) is None], self.workers)
        results = [self.journal.get(key) or {} for key in keys]
        for count, result in zip(counts, results, strict=True):
            count.prompt_tokens += result.get("prompt_tokens", 0)
            count.completion_tokens += result.get("completion_tokens", 0)
            count.failed += "error" in result
        return [result.get("text") for result in results]

    def roll_out(self, stage: str, document: str, items: Sequence[Item]) -> list[RolloutResult]:
        """Roll out a document on items; one result each, in order. Items are expected to differ.

        Raises:
            BudgetError: the budget is spent; finished rollouts are saved.
            EndpointError, EnvError: nothing works, or none of the first results is graded.
        """
        count, name = self.counts[stage], skill_hash(document)
        bases = [content_hash("rollout", name, item) for item in items]
        if self.reuse_rollouts:
            count.reused += sum(self._asked[base] > 0 for base in bases)
        keys = [f"{base}-{0 if self.reuse_rollouts else self._asked[base]}" for base in bases]
        self._asked.update(bases)
        seed = derive_seed(self.seed, "rollout", self._name("batch", stage, name))  # the same whatever is still missing
        missing = {key: item for key, item in zip(keys, items, strict=True) if self.journal.get(key) is None}
        count.asked += len(items)
        if missing:
            with asked_in(stage):
                self._roll_out_missing(document, missing, seed)
        results = [RolloutResult.from_dict(self.journal.get(key)) for key in keys]
        count.failed += sum(result.extras.get("stop_reason") in FAILED for result in results)
        count.ungraded += sum(result.ungraded for result in results)
        for mark, what in MARKS.items():
            marked = [result.id for result in results if result.extras.get(mark)]
            if marked and mark not in self._warned:
                self._warned.add(mark)
                where = f"{len(marked)} of {len(results)} rollouts ({NAMES.get(stage, stage)}, first {marked[0]!r})"
                self.progress.notice(f"{where} {what}", warning=True)
        return results

    def _roll_out_missing(self, document: str, missing: Mapping[str, Item], seed: int) -> None:
        keys = [*missing]

        def keep(place: int, result: RolloutResult) -> None:
            if self.journal.get(keys[place]) is None:
                self.journal.put(keys[place], result.to_dict(), durable=False)

        results = self.roll_out_fn(document, [*missing.values()], seed=seed, on_result=keep)
        played = [result for result in results if result.extras.get("stop_reason") not in FAILED]
        # Results of such a batch are not logged, so an empty journal means that none was graded yet.
        if not len(self.journal) and played and all(result.ungraded for result in played):
            raise EnvError(
                f"The first {len(results)} rollouts are all ungraded (first {played[0].id!r}): the environment returns info['graded'] = "
                "False, and the tasks have no true answer. Return info['won'] with an episode's last step, or give the tasks an answer; then "
                "repeat the command."
            )
        for place, result in enumerate(results):
            keep(place, result)

    def _put(self, request: ChatRequest, key: str) -> None:
        assert self.chat is not None, "an optimizer without a language model makes no calls"
        try:
            reply = self.chat(request.system, request.user, max_tokens=request.max_tokens, stage=request.stage)
        except EndpointError as error:
            if error.kind not in ONE_REQUEST:
                raise
            self.journal.put(key, {"stage": request.stage, "error": str(error)})
        else:
            if not isinstance(reply, Reply) or not isinstance(reply.text, str):
                raise ConfigError(f"The optimizer's model returned {reply!r:.100}; expected: {CHAT}.")
            self.journal.put(key, {"stage": request.stage, **asdict(reply)})

    def _name(self, *content: Any) -> str:
        base = content_hash(*content)
        self._asked[base] += 1
        return f"{base}-{self._asked[base] - 1}"


def in_threads(work: Sequence[Callable[[], None]], workers: int) -> None:
    """Do all of it, and raise the first error once what is on its way has ended: its answers are paid for."""
    pool = ThreadPoolExecutor(max(1, min(workers, len(work))))
    try:
        for future in as_completed([pool.submit(copy_context().run, each) for each in work]):
            future.result()
    finally:  # also where a signal ends it
        pool.shutdown(cancel_futures=True)
