r"""Where LaTeX marks an answer in a text: boxes and formulas, several of them as one list. Linear in the text's length."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BOX = re.compile(
    r"\\f?box(?:ed)?+(?:\s*(?P<brace>\{)|[ ]*(?P<bare>-?\.?\d[^\s{}$\\]*|[A-Z](?=[.,;)]*(?:\s*\$|\s*$|\s*\n))))?"
)
"""A box, with its brace or, as in `\boxed 5`, the number or the choice letter that it holds."""
_BRACE = re.compile(r"[{}]")
_DELIMITER = re.compile(r"(?<!\\)\$\$|(?<!\\)\$|(?<!\\)\\[()\[\]]")
_CLOSERS = {"$": "$", "$$": "$$", "\\[": "\\]", "\\(": "\\)"}
_LONGEST_FORMULA = 2000
_LONGEST_JOINT = 60
_MOST_JOINED = 50
_MARK = r"(?:\\[()\[\]]|\\q?quad(?![a-z])|\\[,;! ]|[\s$*])"
_JOINT = re.compile(
    rf"{_MARK}*+(?:[^.!?\n$\\{{}}]{{0,40}}?(?:[,;]|\b(?:and|or)\b)|\\text\s?\{{[^{{}}.!?\n]{{0,40}}?\b(?:and|or)\s*\}})"
    rf"(?:{_MARK}|\\text\s?\{{\s*(?:and|or)\s*\}}|\b(?:and|or)\b)*+"
    rf"(?:[A-Za-z](?:_\{{?\w{{1,3}}\}}?)?(?:\(\w\))?\s*=(?!=){_MARK}*+)?"
)
"""Text between answers that form one list: `\boxed{2} and \boxed{3}`, `\boxed{1} papers and \boxed{2} bins`."""
_TOUCHING = re.compile(r"(?:\\[()\[\]]|[ $])*+")


def unbox(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` or `\fbox{…}` that holds anything; of `\boxed 5` the number. None without one, or where its braces never close.

    Boxes that only "and", "or", commas or math marks separate are one answer: `\boxed{2} and \boxed{3}` is "2, 3".
    """
    found: list[str] = []
    later = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        if box["bare"]:
            return _one_answer(found) if found else box["bare"].rstrip(".,;")
        if not box["brace"]:
            continue
        # A box ends before the next one begins, so each character is looked at once.
        end = _closing(text, box.end(), later)
        content = "" if end is None else text[box.end() : end]
        if found and (end is None or not content.strip() or not _joined(text, end + 1, later)):
            break
        if end is None:
            return None
        if content.strip():
            found.append(content)
            later = box.start()
        if len(found) == _MOST_JOINED:
            break
    return _one_answer(found) if found else None


def _closing(text: str, begin: int, end: int) -> int | None:
    """Place of the brace that closes what is open at `begin`."""
    depth = 1
    for brace in _BRACE.finditer(text, begin, end):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    return None


def _joined(text: str, begin: int, end: int) -> bool:
    if end - begin > _LONGEST_JOINT:
        return False
    return bool(_JOINT.fullmatch(text, begin, end) or _TOUCHING.fullmatch(text, begin, end))


def _one_answer(backwards: Sequence[str]) -> str:
    """Several answers as a list, each as often as it is different."""
    return ", ".join(dict.fromkeys(part.strip() for part in reversed(backwards)))


def last_formula(text: str) -> tuple[int, str] | None:
    r"""The last formula in `$…$`, `\(…\)` on a line, `$$…$$` or `\[…\]`; formulas that "and" or commas separate are one list.

    Gives its place with it.
    """
    spans: list[tuple[int, int, int]] = []
    opened: re.Match[str] | None = None
    for mark in _DELIMITER.finditer(text):
        if opened is None:
            opened = mark if mark[0] in _CLOSERS else None
            continue
        inside = text[opened.end() : mark.start()]
        if mark[0] == _CLOSERS[opened[0]] and len(inside) <= _LONGEST_FORMULA and inside.strip():
            if "\n" not in inside or (len(opened[0]) > 1 and opened[0] != "\\("):
                spans.append((opened.start(), mark.end(), len(opened[0])))
            opened = None
        elif mark[0] in _CLOSERS:
            opened = mark
        else:
            opened = None
    if not spans:
        return None
    start, end, marks = spans.pop()
    found = [text[start + marks : end - marks]]
    while spans and len(found) < _MOST_JOINED and _joined(text, spans[-1][1], start):
        start, end, marks = spans.pop()
        found.append(text[start + marks : end - marks])
    return start, _one_answer(found)
