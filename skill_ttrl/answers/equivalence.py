"""When two answers are the same: exactly when their keys are. What was decided once is remembered.

The key is decided from an answer's text: by words, fractions, or a tree that is left for SymPy to judge (`decide`).

The process that judges (`Pool`) is started once, killed where it takes too long, and restarted when it dies. Its results are also written
down where a run keeps a cache (`persist_cache`): a run that is resumed reads them back, so an answer left undecided on a loaded machine stays
undecided, and no reward depends on the machine's load.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from skill_ttrl.answers.extract import MAX_LENGTH, clean, plain, plain_long
from skill_ttrl.answers.grammar import Refused, Tree, parse
from skill_ttrl.answers.keys import Hard, Rationals, Undecided, key_of, number_key
from skill_ttrl.answers.units import read_number, unit_with_currency, without_unit
from skill_ttrl.errors import RunFolderError, WorkerError
from skill_ttrl.storage.files import append_whole, cut_torn_line

Rule = Literal["text", "number", "symbolic"]
LONGEST_KEY = 500
UNIT = " in the unit "
"""Between the key of a value and its unit."""
_LETTER = re.compile(r"\(?([a-z])\)?[.)]*")
_LETTERS = re.compile(r"[a-z][a-z ]+")
_NAMED = ("pi", "infinity", "inf", "oo")
_INTEGER = re.compile(r"-?[1-9]\d{0,17}|0", re.ASCII)


@dataclass(frozen=True, slots=True)
class EquivalenceResult:
    """The class of one answer."""

    key: str
    """Two answers are the same exactly when their keys are."""
    rule: Rule
    """Basis of the decision: its text, an exact number (or several: a tuple, a set), SymPy."""
    gave_up: str | None = None
    """Why it is only compared as a text although it looks like mathematics: `timeout`, `memory`, `crashed`, `undecided`, `too_long`."""


def decide(answer: str) -> EquivalenceResult | Tree:
    """The result for one answer, or the tree that SymPy has to judge. Nothing is evaluated; only answers up to `MAX_LENGTH` are parsed."""
    stripped = answer.strip()
    if _INTEGER.fullmatch(stripped):
        return EquivalenceResult(f"number {stripped}", "number")
    if len(answer) > MAX_LENGTH:
        text = plain_long(answer)
        return (
            EquivalenceResult(_shortened(f"text {text}"), "text", "too_long") if text else EquivalenceResult("", "text")
        )
    cleaned = clean(answer)
    text = plain(cleaned)
    if not text:
        return EquivalenceResult("", "text")
    letter = _LETTER.fullmatch(text)
    if letter and cleaned not in ("e", "i"):
        return EquivalenceResult(f"text {letter[1]}", "text")
    if _LETTERS.fullmatch(text) and text not in _NAMED:
        return EquivalenceResult(f"text {text}", "text")
    bare, scale, unit = without_unit(cleaned)
    unit = unit_with_currency(unit, answer)
    number = read_number(bare)
    if number is not None:
        return EquivalenceResult(with_unit(number_key(number * scale), unit), "number")
    try:
        tree = _scaled(parse(bare), scale)
        try:
            return EquivalenceResult(with_unit(key_of(tree, Rationals()), unit), "number")
        except Hard:
            return tree
    except Refused:
        return EquivalenceResult(f"text {text}", "text")
    except Undecided:
        return EquivalenceResult(f"text {text}", "text", "undecided")


def judged_result(answer: str, judged: Judged) -> EquivalenceResult:
    """The result for an answer that the worker judged."""
    if "key" in judged:
        return EquivalenceResult(
            with_unit(_shortened(judged["key"]), unit_with_currency(without_unit(clean(answer))[2], answer)), "symbolic"
        )
    return EquivalenceResult(f"text {plain(clean(answer))}", "text", judged["gave_up"])


def with_unit(key: str, unit: str) -> str:
    """The key of a value with a unit."""
    return f"{key}{UNIT}{unit}" if unit else key


def bare_key(key: str | None) -> str | None:
    """A key without its unit, to compare answers of different votes on one question."""
    return key if key is None or key.startswith("text ") else key.rpartition(UNIT)[0] or key


def without_units(keys: Sequence[str | None]) -> list[str | None]:
    """The keys of answers to one question, where a missing unit is the one that others state.

    The unit of a value that is given with one unit, or none, is dropped. A value that is given with several units keeps all of
    them, and the answer without one is a class of its own. So it is an equivalence on the answers of one question, whatever
    their order.
    """
    stated: dict[str, set[str]] = {}
    for key in keys:
        bare = bare_key(key)
        if key is not None and bare is not None and bare != key:
            stated.setdefault(bare, set()).add(key)
    clear = {bare for bare, units in stated.items() if len(units) == 1}
    return [bare if (bare := bare_key(key)) in clear else key for key in keys]


def _scaled(tree: Tree, scale: Fraction) -> Tree:
    r"""Scale a tree by a trailing `million` or percent sign; of an equation such as `x = 50\%` only the last side."""
    if scale == 1:
        return tree
    if tree[0] == "rel" and set(tree[1].split()) == {"="}:
        return (*tree[:-1], ("mul", ("num", str(scale)), tree[-1]))
    if tree[0] in ("rel", "list", "set", "union", "tuple", "matrix", "based"):
        raise Undecided("a scale without a clear quantity")
    return ("mul", ("num", str(scale)), tree)


def _shortened(key: str) -> str:
    """A long key by its digest: keys are compared and stored, never read back."""
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key.split()[0]} digest {hashlib.blake2b(key.encode(errors='surrogatepass'), digest_size=20).hexdigest()}"


Judged = dict[str, Any]
"""`{"key": text}`, or `{"gave_up": "timeout" | "memory" | "crashed" | "undecided", "why": text}`."""

TIME_LIMIT = 0.8
"""Seconds of wall time for one answer."""
MOST_TIMEOUTS = 10
"""So many answers of one batch may take the whole time limit; those after them have a quarter of it."""
MEMORY_LIMIT = 512 * 2**20
"""Bytes that the process at work may take beyond what SymPy takes itself."""
MOST_TREES = 2000
"""A process works on so many answers, then another takes over: what SymPy remembers does not pile up."""
START_LIMIT = 120.0
"""Seconds in which the worker must have imported SymPy, on a machine however loaded."""


class Pool:
    """One worker (`answers.worker`), started when it is first needed, for one thread at a time. A forked process starts its own."""

    def __init__(self, time_limit: float = TIME_LIMIT, memory_limit: int = MEMORY_LIMIT) -> None:
        self.time_limit, self.memory_limit = time_limit, memory_limit
        self._worker: subprocess.Popen[bytes] | None = None
        self._child = self._judged = 0
        """Id of the worker's child that does the work, and how many answers it has judged."""
        self._owner = 0
        self._left = b""
        self._broken: WorkerError | None = None
        atexit.register(self.close)

    def judge(self, trees: Sequence[Tree]) -> list[Judged]:
        """The verdict on each tree, in order.

        Raises:
            WorkerError: the worker does not start.
        """
        verdicts: list[Judged] = []
        timeouts = 0
        for tree in trees:
            limit = self.time_limit if timeouts < MOST_TIMEOUTS else self.time_limit / 4
            # Perhaps somebody killed the worker: the answer is asked about once more.
            found = self._ask(tree, limit) or self._ask(tree, limit)
            verdicts.append(found or {"gave_up": "crashed", "why": "the worker died"})
            timeouts += verdicts[-1].get("gave_up") == "timeout"
        return verdicts

    def _ask(self, tree: Tree, limit: float) -> Judged | None:
        """The verdict on a tree; None: the worker died."""
        try:
            self._start()
            assert self._worker is not None and self._worker.stdin is not None
            self._worker.stdin.write(json.dumps([limit, tree]).encode() + b"\n")
            self._worker.stdin.flush()
            found = self._next(limit)
            if "ready" in found:
                return {"gave_up": "crashed", "why": "the process ended"}
            self._judged += 1
            if self._judged >= MOST_TREES or found.get("gave_up") == "memory":
                self._renew()
            return found
        except TimeoutError:
            self._renew()
            return {"gave_up": "timeout", "why": f"longer than {limit:g} s"}
        except EOFError:
            self.close()
            return None
        except BaseException:  # interrupted: a reply that nobody read would be taken for the next one's
            self.close()
            raise

    def _start(self) -> None:
        """Have a worker with a child that waits for work."""
        if self._broken is not None:
            raise self._broken
        if self._owner != os.getpid():  # after a fork the pipes are the parent's
            self._worker, self._owner, self._left = None, os.getpid(), b""
        if self._worker is not None and self._worker.poll() is None:
            return
        self.close()  # it died while nothing was asked of it
        command = [sys.executable, "-P", "-m", "skill_ttrl.answers.worker", str(self.memory_limit)]
        try:
            self._worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=worker_environment(), process_group=0
            )
        except OSError as error:
            raise WorkerError(f"Cannot start the process that compares expressions: {error}.") from error
        try:
            self._next(START_LIMIT)
        except (TimeoutError, EOFError):
            self._broken = WorkerError(
                f"The process that compares expressions did not start within {START_LIMIT:g} s or ended at once; its own "
                "message is above. `python -m skill_ttrl.answers.worker 1000000000` shows it alone."
            )
            raise self._broken from None

    def _renew(self) -> None:
        """Kill the child, whatever it is doing; the worker forks another."""
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        try:
            while "ready" not in self._next(START_LIMIT):  # it may have answered at the last moment
                pass
        except (TimeoutError, EOFError):
            self.close()

    def _next(self, seconds: float) -> Judged:
        """Return the next message of the worker: a verdict, or that a new child is ready.

        Raises:
            TimeoutError: nothing in so many seconds.
            EOFError: it has died.
        """
        assert self._worker is not None and self._worker.stdout is not None
        stdout, deadline = self._worker.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._left:
            if not readable(stdout, deadline - time.monotonic()):
                raise TimeoutError
            chunk = os.read(stdout, 1 << 16)
            if not chunk:
                raise EOFError
            self._left += chunk
        line, _, self._left = self._left.partition(b"\n")
        found: Judged = json.loads(line)
        if "ready" in found:
            self._child, self._judged = found["ready"], 0
        return found

    def close(self) -> None:
        """Kill the worker and its child. The next comparison starts another."""
        worker, self._worker, self._left = self._worker, None, b""
        if worker is None or self._owner != os.getpid():
            return
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        for stream in (worker.stdin, worker.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # what was not yet sent goes nowhere
                    stream.close()


def readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read, or the end; False when the time is over. Any number of open files will do."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def worker_environment() -> dict[str, str]:
    """The environment of a worker process, with this package on the import path where it is not installed.

    Nothing else of `sys.path` is passed on: a folder called `sympy` next to a user's script is not SymPy.
    """
    home = Path(__file__).parents[2]
    if home.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(home), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


MAX_REMEMBERED = 500_000
"""Answers that are remembered; then all are forgotten but those that were written down."""
_lock = threading.Lock()


def _after_fork() -> None:
    """Replace the lock in a forked process, where no thread exists that could release it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class EquivalenceCache:
    """Results by answer, in memory and, with a path, in a file (JSON lines, append only)."""

    def __init__(self, pool: Pool, path: Path | None = None) -> None:
        self.counts: Counter[str] = Counter()
        """Count of answers by the rule that decided them, and by the reason for which they stayed undecided."""
        self._pool = pool
        self._path = path
        self._known: dict[str, EquivalenceResult] = {}
        self._persisted: dict[str, EquivalenceResult] = {} if path is None else _read_cache(path)
        self._known.update(self._persisted)

    def of(self, answers: Iterable[str | None]) -> dict[str, EquivalenceResult]:
        """The result for each distinct answer; what needs the worker goes there in one batch. An empty answer has an empty key."""
        known = self._known
        distinct = {answer for answer in answers if answer is not None}
        found = {answer: known[answer] for answer in distinct if answer in known}
        if len(found) < len(distinct):
            with _lock:
                # In an order of their own: the file is the same whatever came first.
                found |= self._decide(sorted(answer for answer in distinct if answer not in found))
        return found

    def take_over(self, judged: Mapping[str, EquivalenceResult]) -> None:
        """Take what another process's worker has judged as this one's; what is known here stays as it is."""
        with _lock:
            new = {answer: result for answer, result in judged.items() if answer not in self._known}
            self._persist(new)
            self._remember(new)

    def _decide(self, answers: Sequence[str]) -> dict[str, EquivalenceResult]:
        decided: dict[str, EquivalenceResult] = {}
        hard: dict[str, Tree] = {}
        for answer in answers:
            found = self._known.get(answer) or decide(answer)  # another thread may have been quicker
            if isinstance(found, EquivalenceResult):
                decided[answer] = found
            else:
                hard[answer] = found
        if hard:
            judged = dict(zip(hard, map(judged_result, hard, self._pool.judge(list(hard.values()))), strict=True))
            self._persist(judged)
            decided |= judged
        self._remember(decided)
        return decided

    def _persist(self, judged: Mapping[str, EquivalenceResult]) -> None:
        if self._path is not None and judged:
            rows = ({"answer": answer, **asdict(result)} for answer, result in judged.items())
            append_whole(self._path, "".join(json.dumps(row) + "\n" for row in rows).encode(), durable=False)
            self._persisted |= judged

    def _remember(self, decided: Mapping[str, EquivalenceResult]) -> None:
        for result in decided.values():
            self.counts[result.rule] += 1
            if result.gave_up:
                self.counts[result.gave_up] += 1
        if len(self._known) + len(decided) > MAX_REMEMBERED:
            self._known = dict(self._persisted)
        self._known |= {answer: result for answer, result in decided.items() if len(answer) <= MAX_LENGTH}


def canonical(answer: str | None) -> str | None:
    """The key of an answer's class; None for one that is missing or empty.

    A key is a function of the answer alone, so equality is reflexive, symmetric and transitive and a vote does not depend on
    the order of its samples.
    """
    return canonicals([answer])[0]


def canonicals(answers: Sequence[str | None]) -> list[str | None]:
    """`canonical` of each; what needs the worker goes there once for each distinct answer, all together."""
    found = _current.of(answers)
    return [None if answer is None else found[answer].key or None for answer in answers]


def equivalent(a: str | None, b: str | None) -> bool:
    """Compare two answers. An empty answer is the same as nothing, itself included."""
    first, second = canonicals([a, b])
    return first is not None and first == second


def verdict(answer: str | None) -> EquivalenceResult | None:
    """The class of an answer with the rule that decided it; None for one that is missing or empty."""
    if answer is None:
        return None
    found = _current.of([answer])[answer]
    return found if found.key else None


def judged(answers: Iterable[str | None]) -> dict[str, EquivalenceResult]:
    """Decide answers here, and return the results that took a judgement by SymPy, for another process to take over."""
    found = _current.of(answers)
    asked = (answer for answer in sorted(found) if found[answer].rule == "symbolic" or found[answer].gave_up)
    return {answer: found[answer] for answer in asked if not isinstance(decide(answer), EquivalenceResult)}


def take_over(verdicts: Mapping[str, EquivalenceResult]) -> None:
    """Take what another process has found out (`judged`) as found out here, and write it down where results are."""
    _current.take_over(verdicts)


def counters() -> dict[str, int]:
    """Count distinct answers by rule and by the reason for which they stayed undecided, in this process or persistent cache."""
    return dict(_current.counts)


@contextmanager
def persist_cache(path: Path) -> Iterator[None]:
    """Persist the worker's results in `path` while this lasts, beginning with those it holds (JSON lines, append only).

    It holds for the whole process, all its threads included.

    Raises:
        RunFolderError: the file cannot be read or written.
    """
    global _current
    before, _current = _current, EquivalenceCache(_POOL, path)
    try:
        yield
    finally:
        _current = before


def _read_cache(path: Path) -> dict[str, EquivalenceResult]:
    """Read a persisted cache. A last line that a crash tore is cut off: its result was used by nobody."""
    if not path.exists():
        return {}
    try:
        cut_torn_line(path)
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        return {row.pop("answer"): EquivalenceResult(**row) for row in rows}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(
            f"Cannot read the cached results in {path}: {error}. Delete the file to compute them again."
        ) from error


_POOL = Pool()
_current = EquivalenceCache(_POOL)
