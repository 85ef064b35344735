"""Exact numbers: integers, decimals, fractions, mixed numbers, thousands separators, scientific notation.

Values are `fractions.Fraction`; nothing is rounded.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_DIGITS = 400
"""Longer literals are not read as numbers: arithmetic on model output stays bounded."""
MAX_EXPONENT = 400

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_GROUP = rf"(?:\{{\s*([-+]?{_DECIMAL})\s*\}}|(\d))"
_INTEGER = re.compile(r"[-+]?\d+", re.ASCII)
_NUMBER = re.compile(
    rf"({_DECIMAL})\s?(?:[eE]([-+]?\d{{1,4}})|(?:\\times|\\cdot|\*|x)\s?10\s?(?:\^|\*\*)\s?(?:\{{\s?([-+]?\d{{1,4}})\s?\}}|([-+]?\d{{1,4}})))?",
    re.ASCII,
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+)(?:\.\d+)?", re.ASCII)
_RATIO = re.compile(rf"({_DECIMAL})\s?/\s?([-+]?{_DECIMAL})", re.ASCII)
_MIXED = re.compile(rf"(\d+)\s?\\frac\s?(?:{_GROUP})\s?(?:{_GROUP})|(\d+)\s(\d+)\s?/\s?(\d+)", re.ASCII)
_FRAC = re.compile(rf"\\frac\s?{_GROUP}\s?{_GROUP}", re.ASCII)


def read_number(text: str) -> Fraction | None:
    """The exact value of a cleaned answer that is one number; None for anything else."""
    if len(text) > MAX_DIGITS:
        return None
    if _INTEGER.fullmatch(text):
        return Fraction(int(text))
    sign = -1 if text.startswith("-") else 1
    text = text[1:].lstrip() if text[:1] in ("-", "+") else text
    value = _unsigned(text)
    return None if value is None else sign * value


def _unsigned(text: str) -> Fraction | None:
    found = _NUMBER.fullmatch(text)
    if found:
        exponent = int(found[2] or found[3] or found[4] or 0)
        return Fraction(found[1]) * Fraction(10) ** exponent if abs(exponent) <= MAX_EXPONENT else None
    if _THOUSANDS.fullmatch(text):
        return Fraction(text.replace(",", "").replace(" ", ""))
    found = _RATIO.fullmatch(text)
    if found:
        return _divided(found[1], found[2])
    found = _FRAC.fullmatch(text)
    if found:
        return _divided(found[1] or found[2], found[3] or found[4])
    found = _MIXED.fullmatch(text)
    if found:
        whole, top, below = (
            (found[6], found[7], found[8]) if found[6] else (found[1], found[2] or found[3], found[4] or found[5])
        )
        part = _divided(top, below)
        return Fraction(whole) + part if part is not None and 0 <= part < 1 else None
    return None


def _divided(top: str, below: str) -> Fraction | None:
    divisor = Fraction(below)
    return Fraction(top) / divisor if divisor else None
