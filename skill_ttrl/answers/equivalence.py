"""When two answers are the same: exactly when their keys are. What was decided once is remembered.

The key is decided from an answer's text: by words, fractions, or a tree that is left for SymPy to judge (`decide`).

The worker's results are also written down where a run keeps a cache (`persist_cache`): a run that is resumed reads them back, so
an answer left undecided on a loaded machine stays undecided, and no reward depends on the machine's load.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from skill_ttrl.answers.grammar import Refused, Tree, parse
from skill_ttrl.answers.keys import Hard, Rationals, Undecided, key_of, number_key
from skill_ttrl.answers.normalise import MAX_LENGTH, clean, plain, plain_long
from skill_ttrl.answers.pool import Judged, Pool
from skill_ttrl.answers.units import read_number, unit_with_currency, without_unit
from skill_ttrl.errors import RunFolderError
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

    def keys(self, answers: Sequence[str | None]) -> list[str | None]:
        """The class of each answer; None for one that is missing or empty."""
        found = self.of(answers)
        return [None if answer is None else found[answer].key or None for answer in answers]

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

    def judged(self, answers: Iterable[str | None]) -> dict[str, EquivalenceResult]:
        """The results of those answers that the worker has to judge."""
        found = self.of(answers)
        asked = (answer for answer in sorted(found) if found[answer].rule == "symbolic" or found[answer].gave_up)
        return {answer: found[answer] for answer in asked if not isinstance(decide(answer), EquivalenceResult)}

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
    return _current.keys(answers)


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
    return _current.judged(answers)


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
