"""Two versions of a document side by side, line by line, with the words that changed inside a line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from skill_ttrl.sanitize import escape_terminal

CONTEXT = 2
"""Unchanged lines shown around a change."""
MOST_LINES = 1000
"""Lines of a difference that are shown."""
MOST_WORDS = 400
"""A pair of longer lines is compared as a whole: comparing words takes the square of their number."""
_WORD = re.compile(r"\w+|\s+|[^\w\s]")

Kind = Literal["same", "removed", "added", "left out"]
Segment = tuple[str, bool]
"""A part of a line, and True where it alone changed."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a difference."""

    kind: Kind
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class DocumentDiff:
    """The difference of two documents."""

    lines: tuple[DiffLine, ...]
    added: int
    """Lines."""
    removed: int

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def diff_documents(before: str, after: str) -> DocumentDiff:
    """The lines that differ, with some unchanged ones around them. Characters that show as nothing are left out of them."""
    old, new = before.splitlines(), after.splitlines()
    lines: list[DiffLine] = []
    added = removed = 0
    groups = list(SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT))
    seen = 0
    for group in groups:
        if (skipped := group[0][1] - seen) > 0:
            lines.append(_left_out(skipped))
        for tag, low, high, new_low, new_high in group:
            if tag == "equal":
                lines += [_whole("same", line) for line in old[low:high]]
                continue
            added, removed = added + new_high - new_low, removed + high - low
            lines += _changed(old[low:high], new[new_low:new_high])
        seen = group[-1][2]
    if groups and len(old) > seen:
        lines.append(_left_out(len(old) - seen))
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], _left_out(len(lines) - MOST_LINES)]
    return DocumentDiff(tuple(lines), added, removed)


def _changed(old: Sequence[str], new: Sequence[str]) -> Iterator[DiffLine]:
    """Lines that were exchanged: word by word where as many came as went."""
    if len(old) != len(new):
        yield from (_whole("removed", line) for line in old)
        yield from (_whole("added", line) for line in new)
        return
    pairs = [_words(one, other) for one, other in zip(old, new, strict=True)]
    yield from (DiffLine("removed", segments) for segments, _ in pairs)
    yield from (DiffLine("added", segments) for _, segments in pairs)


def _words(old: str, new: str) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    before, after = _WORD.findall(old), _WORD.findall(new)
    if max(len(before), len(after)) > MOST_WORDS:
        return _whole("removed", old).segments, _whole("added", new).segments
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < 0.4:  # two lines that have little in common are easier to read whole
        return _whole("removed", old).segments, _whole("added", new).segments
    left, right = [], []
    for tag, low, high, new_low, new_high in matcher.get_opcodes():
        left.append((escape_terminal("".join(before[low:high])), tag != "equal"))
        right.append((escape_terminal("".join(after[new_low:new_high])), tag != "equal"))
    return tuple(each for each in left if each[0]), tuple(each for each in right if each[0])


def _whole(kind: Kind, line: str) -> DiffLine:
    return DiffLine(kind, ((escape_terminal(line), False),))


def _left_out(count: int) -> DiffLine:
    return DiffLine("left out", ((f"… {count} more line{'s' * (count != 1)}", False),))
