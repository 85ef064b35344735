r"""Exact numbers: integers, decimals, fractions, mixed numbers, thousands separators, scientific notation, percentages, units.

Values are `fractions.Fraction`; nothing is rounded. A unit to the right of a number is dropped (`5 \text{ cm}` is 5, `90^\circ`
is 90): an answer's unit is the question's. A percent sign is no unit: `50\%` is 1/2 and never 50.
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
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_RATIO = re.compile(rf"({_DECIMAL})\s?/\s?([-+]?{_DECIMAL})", re.ASCII)
_MIXED = re.compile(rf"(\d+)\s?\\frac\s?(?:{_GROUP})\s?(?:{_GROUP})|(\d+)\s(\d+)\s?/\s?(\d+)", re.ASCII)
_FRAC = re.compile(rf"\\frac\s?{_GROUP}\s?{_GROUP}", re.ASCII)

_SCALES = {
    "percent": Fraction(1, 100), "hundred": Fraction(10**2), "thousand": Fraction(10**3), "million": Fraction(10**6),
    "billion": Fraction(10**9), "trillion": Fraction(10**12), "dozen": Fraction(12),
}  # fmt: skip
_UNITS = frozenset(
    "mm cm dm km ft yd kg mg lb lbs oz ml kph mph hr hrs sec secs min mins rad deg degree degrees radian radians unit units "
    "inch inches foot feet yard yards mile miles meter meters metre metres centimeter centimeters centimetre centimetres "
    "millimeter millimeters kilometer kilometers second seconds minute minutes hour hours day days week weeks month months "
    "year years dollar dollars cent cents euro euros pound pounds gram grams kilogram kilograms ounce ounces liter liters "
    "litre litres square cubic sq cu per".split()
)
_NOT_UNITS = frozenset(
    "am pm a.m p.m or and north south east west left right up down bc ad more less above below before after not mod base if "
    "where when for with to".split()
)
_WRAPPED = r"\\(?:text(?:rm|bf|it)?|mathrm|mbox|hbox|rm)\s?\{([^{}]*)\}"
_SUFFIX = re.compile(
    rf"^(.*[\d}})!a-zA-Z|.])\s?(?:{_WRAPPED}|(?<![a-zA-Z\\])([a-zA-Z]{{2,}}\.?))\s?(?:\^\s?\{{?\s?[23]\s?\}}?)?$",
    re.DOTALL,
)
_DEGREES = re.compile(
    r"^(.*\S)\s?\^\s?(?:\\circ|\{\s?\\circ\s?\})\s?(?:[CF]|\\(?:text|mathrm)\s?\{\s?[CF]\s?\})?$", re.DOTALL
)
_TRIGONOMETRIC = re.compile(r"sin|cos|tan|sec|csc|cot")
_MATHEMATICAL = re.compile(r"\d|\\pi|\\sqrt", re.ASCII)


def without_unit(text: str) -> tuple[str, Fraction]:
    r"""A cleaned answer without the units at its right, and what their words multiply it by (`million`, `\%`).

    In `\text{}` any words are a unit unless they say something else ("p.m.", "north", "or"); outside of it only known units.
    What is left has a digit, a root or π in it: `\text{cats}` alone, or `x \text{ is even}`, keeps its words.
    """
    scale = Fraction(1)
    for _ in range(4):  # `3 \text{ million } \text{ dollars}`
        rest, factor = _one_unit(text)
        if rest == text or not _MATHEMATICAL.search(rest):
            break
        text, scale = rest, scale * factor
    return text, scale


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
        return Fraction(text.replace(",", ""))
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


def _one_unit(text: str) -> tuple[str, Fraction]:
    if text.endswith("%"):
        return text[:-1].rstrip("\\").rstrip(), Fraction(1, 100)
    found = _DEGREES.match(text)
    if found and not _TRIGONOMETRIC.search(text):  # of an angle the grammar knows what degrees are
        return found[1], Fraction(1)
    found = _SUFFIX.match(text)
    if not found:
        return text, Fraction(1)
    wrapped = found[2]
    words = [
        word.strip(".").casefold() for word in re.split(r"[\s/^0-9-]+", wrapped if wrapped is not None else found[3])
    ]
    words = [word for word in words if word]
    known = all(word.isalpha() or "." in word for word in words) and not _NOT_UNITS.intersection(words)
    if wrapped is None:
        known = known and all(word in _UNITS or word in _SCALES for word in words)
    if not known:
        return text, Fraction(1)
    scale = Fraction(1)
    for word in words:
        scale *= _SCALES.get(word, 1)
    return found[1].rstrip(), scale
