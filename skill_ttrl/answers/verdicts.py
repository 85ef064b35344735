"""Which class an answer belongs to, decided once: in this process where fractions suffice, in the worker where SymPy is needed.

What the worker says is remembered, and written down where a run keeps a journal (`journal`): a run that is resumed reads its
verdicts back, so an answer that was given up on a loaded machine stays given up, and no reward depends on the machine's load.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from skill_ttrl.answers.keys import Hard, Rationals, Undecided, key_of, number_key
from skill_ttrl.answers.latex.grammar import Tree, parse
from skill_ttrl.answers.latex.normalise import MAX_LENGTH, clean, plain, plain_long
from skill_ttrl.answers.latex.numbers import read_number
from skill_ttrl.answers.latex.tokens import Refused
from skill_ttrl.answers.latex.units import unit_with_currency, without_unit
from skill_ttrl.answers.pool import Judged, Pool
from skill_ttrl.errors import RunFolderError

Rule = Literal["text", "number", "symbolic"]
MAX_REMEMBERED = 500_000
"""Answers that are remembered; then all are forgotten but those of the journal."""

LONGEST_KEY = 500
UNIT = " in the unit "
"""Between the key of a value and its unit."""
_lock = threading.Lock()


def _after_fork() -> None:
    """See `pool`."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

_LETTER = re.compile(r"\(?([a-z])\)?[.)]*")
_LETTERS = re.compile(r"[a-z][a-z ]+")
_NAMED = ("pi", "infinity", "inf", "oo")
_INTEGER = re.compile(r"-?[1-9]\d{0,17}|0", re.ASCII)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class of one answer."""

    key: str
    """Two answers are the same exactly when their keys are."""
    rule: Rule
    """What decided: its text, an exact number (or several: a tuple, a set), SymPy."""
    gave_up: str | None = None
    """Why it is only compared as a text although it looks like mathematics: `timeout`, `memory`, `crashed`, `undecided`, `too_long`."""


class Verdicts:
    """The memory of verdicts, and the journal that it is kept in."""

    def __init__(self, pool: Pool, path: Path | None = None) -> None:
        self.counts: Counter[str] = Counter()
        """How many answers each rule decided, and how many were given up for which reason."""
        self._pool = pool
        self._path = path
        self._known: dict[str, Verdict] = {}
        self._journalled: dict[str, Verdict] = {} if path is None else _read_journal(path)
        self._known.update(self._journalled)

    def keys(self, answers: Sequence[str | None]) -> list[str | None]:
        """The class of each answer; None for one that is missing or empty."""
        found = self.of(answers)
        return [None if answer is None else found[answer].key or None for answer in answers]

    def of(self, answers: Iterable[str | None]) -> dict[str, Verdict]:
        """The verdict on each distinct answer; what needs the worker goes there in one batch. An empty answer has an empty key."""
        known = self._known
        distinct = {answer for answer in answers if answer is not None}
        found = {answer: known[answer] for answer in distinct if answer in known}
        if len(found) < len(distinct):
            with _lock:
                # In an order of their own: the journal is the same whatever came first.
                found |= self._decide(sorted(answer for answer in distinct if answer not in found))
        return found

    def _decide(self, answers: Sequence[str]) -> dict[str, Verdict]:
        decided: dict[str, Verdict] = {}
        hard: dict[str, Tree] = {}
        for answer in answers:
            found = self._known.get(answer) or decide(answer)  # another thread may have been quicker
            if isinstance(found, Verdict):
                decided[answer] = found
            else:
                hard[answer] = found
        if hard:
            judged = dict(zip(hard, map(_verdict, hard, self._pool.judge(list(hard.values()))), strict=True))
            if self._path is not None:
                _append_journal(self._path, judged)
                self._journalled |= judged
            decided |= judged
        for verdict in decided.values():
            self.counts[verdict.rule] += 1
            if verdict.gave_up:
                self.counts[verdict.gave_up] += 1
        if len(self._known) + len(decided) > MAX_REMEMBERED:
            self._known = dict(self._journalled)
        self._known |= {answer: verdict for answer, verdict in decided.items() if len(answer) <= MAX_LENGTH}
        return decided


def decide(answer: str) -> Verdict | Tree:
    """The verdict on one answer, or the tree that SymPy has to judge. Nothing is evaluated; only answers up to `MAX_LENGTH` are parsed."""
    stripped = answer.strip()
    if _INTEGER.fullmatch(stripped):
        return Verdict(f"number {stripped}", "number")
    if len(answer) > MAX_LENGTH:
        text = plain_long(answer)
        return Verdict(_shortened(f"text {text}"), "text", "too_long") if text else Verdict("", "text")
    cleaned = clean(answer)
    text = plain(cleaned)
    if not text:
        return Verdict("", "text")
    letter = _LETTER.fullmatch(text)
    if letter and cleaned not in ("e", "i"):
        return Verdict(f"text {letter[1]}", "text")
    if _LETTERS.fullmatch(text) and text not in _NAMED:
        return Verdict(f"text {text}", "text")
    bare, scale, unit = without_unit(cleaned)
    unit = unit_with_currency(unit, answer)
    number = read_number(bare)
    if number is not None:
        return Verdict(with_unit(number_key(number * scale), unit), "number")
    try:
        tree = _scaled(parse(bare), scale)
        try:
            return Verdict(with_unit(key_of(tree, Rationals()), unit), "number")
        except Hard:
            return tree
    except Refused:
        return Verdict(f"text {text}", "text")
    except Undecided:
        return Verdict(f"text {text}", "text", "undecided")


def with_unit(key: str, unit: str) -> str:
    """The key of a value with a unit."""
    return f"{key}{UNIT}{unit}" if unit else key


def bare_key(key: str | None) -> str | None:
    """A key without its unit, to compare answers of different votes on one question."""
    return key if key is None or key.startswith("text ") else key.rpartition(UNIT)[0] or key


def without_units(keys: Sequence[str | None]) -> list[str | None]:
    """The keys of answers to one question, where a missing unit is the one that others state.

    Of a value that is given with one unit, or none, the unit is dropped; of one that is given with several units all are
    kept, and the answer without one is a class of its own. So it is an equivalence on the answers of one question, whatever
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
    r"""What `million` or a percent sign at the end multiplies: the value, or what a name is said to be (`x = 50\%`)."""
    if scale == 1:
        return tree
    if tree[0] == "rel" and tree[1] == "=" and len(tree) == 4:
        return (*tree[:3], ("mul", ("num", str(scale)), tree[3]))
    if tree[0] in ("rel", "list", "set", "union", "tuple", "matrix", "based"):
        raise Undecided("a scale, and it is not clear of what")
    return ("mul", ("num", str(scale)), tree)


def canonical(answer: str | None) -> str | None:
    """The key of an answer's class; None for one that is missing or empty.

    A key is a function of the answer alone, so equality is reflexive, symmetric and transitive and a vote does not depend on
    the order of its samples.
    """
    return canonicals([answer])[0]


def canonicals(answers: Sequence[str | None]) -> list[str | None]:
    """`canonical` of each; what needs the worker goes there once for each distinct answer, all together."""
    return _current.keys(answers)


def verdict(answer: str | None) -> Verdict | None:
    """The class of an answer with the rule that decided it; None for one that is missing or empty."""
    if answer is None:
        return None
    found = _current.of([answer])[answer]
    return found if found.key else None


def counters() -> dict[str, int]:
    """How many distinct answers each rule decided and how many were given up for which reason, in this process or journal."""
    return dict(_current.counts)


@contextmanager
def journal(path: Path) -> Iterator[None]:
    """Keep the worker's verdicts in `path` while this lasts, beginning with those it holds (JSON lines, append only).

    It holds for the whole process, all its threads included.

    Raises:
        RunFolderError: the file cannot be read or written.
    """
    global _current
    before, _current = _current, Verdicts(_POOL, path)
    try:
        yield
    finally:
        _current = before


def _verdict(answer: str, judged: Judged) -> Verdict:
    if "key" in judged:
        return Verdict(
            with_unit(_shortened(judged["key"]), unit_with_currency(without_unit(clean(answer))[2], answer)), "symbolic"
        )
    return Verdict(f"text {plain(clean(answer))}", "text", judged["gave_up"])


def _shortened(key: str) -> str:
    """A long key by its digest: keys are compared and stored, never read back."""
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key.split()[0]} digest {hashlib.blake2b(key.encode(errors='surrogatepass'), digest_size=20).hexdigest()}"


def _read_journal(path: Path) -> dict[str, Verdict]:
    """What a journal holds. A last line that a crash tore is cut off: its verdict was used by nobody."""
    if not path.exists():
        return {}
    try:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        rows = [json.loads(line) for line in whole.splitlines()]
        return {row.pop("answer"): Verdict(**row) for row in rows}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(
            f"Cannot read the verdicts in {path}: {error}. Delete the file to have every answer decided anew."
        ) from error


def _append_journal(path: Path, verdicts: dict[str, Verdict]) -> None:
    lines = "".join(json.dumps({"answer": answer, **asdict(verdict)}) + "\n" for answer, verdict in verdicts.items())
    try:
        with path.open("ab") as stream:
            stream.write(lines.encode())
    except OSError as error:
        raise RunFolderError(f"Cannot write the verdicts to {path}: {error}.") from error


_POOL = Pool()
_current = Verdicts(_POOL)
