"""Checks: conditions on one unknown `x`, such as `x + 7 = 25`, that judge an answer without a reference.

An answer's value takes the place of x in the text of each condition, and `canonicals` decides the difference of the two sides: with its
limits on length, time and memory, and remembered as it remembers answers. Only one number can satisfy a check: an answer that holds
a letter, several values, an infinity or something undefined does not, and neither does one that stays undecided.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from skill_ttrl.answers.equivalence import EquivalenceResult, bare_key, canonical, canonicals, decide
from skill_ttrl.answers.grammar import Tree
from skill_ttrl.answers.keys import INFINITY
from skill_ttrl.answers.normalise import clean
from skill_ttrl.answers.units import without_unit

Condition = tuple[str, str, str]
"""(left, sign, right), as texts."""
_PARTS = re.compile(r"[;\n]|,\s")
_SIGN = re.compile(r"(<=|>=|!=|==|[=<>]|\\(?:leq?|geq?|neq?)(?![a-zA-Z]))")
_WRITTEN = {"==": "=", "\\le": "<=", "\\leq": "<=", "\\ge": ">=", "\\geq": ">=", "\\ne": "!=", "\\neq": "!="}
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))", re.ASCII)
_UNKNOWN = re.compile(r"(?<![a-zA-Z\\])x(?![a-zA-Z])")
_HOLDS = {"=": (0,), "!=": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}
"""Signs that `left - right` may have."""
_VALUES = frozenset("num const add mul neg div pow fn deg".split())


def conditions(check: str) -> list[Condition]:
    """The conditions of a check: equations and inequalities (`0 < x < 5` is two), separated by a new line, `;`, or `,` and a space.

    Raises:
        ValueError: a part has no sign, x does not occur in it, or it is not mathematics in x alone.
    """
    found: list[Condition] = []
    for part in _PARTS.split(check.strip().strip(";")):
        sides = _SIGN.split(_THOUSANDS.sub("", clean(part)))
        rows = list(zip(sides[::2], sides[1::2], sides[2::2], strict=False))
        if not rows or not _UNKNOWN.search(part):
            raise ValueError(f"{part.strip()!r:.80} is no equation or inequality in x")
        for row in rows:
            probed = decide(_difference(row, "2/7"))  # at whole numbers more divisions are by zero
            if probed.rule != "number" if isinstance(probed, EquivalenceResult) else not _is_value(probed):
                raise ValueError(f"{part.strip()!r:.80} is not mathematics in the one unknown x")
        found += rows
    return found


def satisfied(answers: Sequence[str | None], check: str) -> list[bool]:
    """Decide for each answer if its value satisfies every condition of the check. All distinct answers are processed together.

    Raises:
        ValueError: see `conditions`.
    """
    rows = conditions(check)
    values = [_value(answer, key) for answer, key in zip(answers, canonicals(answers), strict=True)]
    canonicals([_difference(row, value) for value in values if value is not None for row in rows])
    return [value is not None and all(_holds(row, value) for row in rows) for value in values]


def _value(answer: str | None, key: str | None) -> str | None:
    """One real number as a text to put in the place of x, or None. A fraction is written anew: nothing of the answer's text is left."""
    kind, value = _read(key)
    if answer is not None and kind == "value":
        value, scale, _ = without_unit(clean(answer).rpartition("=")[2])
        return value if scale == 1 else None
    return value if kind == "number" else None


def _difference(row: Condition, value: str) -> str:
    left, _, right = (_UNKNOWN.sub(lambda _: f"({value})", text) for text in row)
    return f"({left})-({right})"


def _holds(row: Condition, value: str) -> bool:
    kind, number = _read(canonical(_difference(row, value)))
    sign = -1 if number.startswith("-") else int(number != "0")
    return kind in ("number", "value") and sign in _HOLDS[_WRITTEN.get(row[1], row[1])]


def _read(key: str | None) -> tuple[str, str]:
    """Kind and value of a key, both empty where it holds no value but a digest."""
    kind, _, value = (bare_key(key) or "").partition(" ")
    return ("", "") if value.startswith("digest ") else (kind, value)


def _is_value(tree: Tree) -> bool:
    """True for one value without letters."""
    return (
        tree[0] in _VALUES and tree != INFINITY and all(_is_value(part) for part in tree[1:] if isinstance(part, tuple))
    )
