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
    "mm cm dm km ft yd kg mg lb lbs oz ml kph mph rpm hr hrs sec secs min mins hz kwh rad deg degree degrees radian radians "
    "unit units inch inches foot feet yard yards mile miles meter meters metre metres centimeter centimeters centimetre centimetres "
    "millimeter millimeters millimetre millimetres kilometer kilometers kilometre kilometres second seconds minute minutes hour hours "
    "day days week weeks month months year years decade decades dollar dollars cent cents euro euros pound pounds usd eur gbp gram "
    "grams kilogram kilograms milligram milligrams ounce ounces ton tons tonne tonnes gallon gallons liter liters litre litres "
    "milliliter milliliters millilitre millilitres newton newtons joule joules watt watts volt volts mole moles people men women "
    "children person square cubic sq cu per".split()
)
_SHORT_UNITS = frozenset("smhglk")
"""Units of one letter, beside a slash (`km/h`, `m/s`); by itself a letter is a symbol (`2\\text{x}` is 2x)."""
_SPACED = frozenset([" m", " s", " g", " h"])
"""But one with a space before it inside of `\\text{ m}` is nothing else than a unit."""
_COUNTED = re.compile(r"[a-z]{3,}s")
"""What is counted: a plural (`\text{apples}`), but none of these, which say how many, of which sign, or compare."""
_NOT_COUNTED = re.compile(
    r".*(?:ths|ss|us|is|wards)|thirds|halves|quarters|times|dozens|scores|couples|pairs|grosses|hundreds|thousands|(?:m|b|tr|quadr)illions|"
    r"percents|factorials|negatives|positives|inverses|reciprocals|opposites|squares|cubes|roots|powers|logs|sins|always|sometimes|perhaps|"
    r"equals|does|zeros|ones|twos|threes|fours|fives|sixes|sevens|eights|nines|tens|elevens|twelves|\w*(?:teens|ties)|lakhs|crores|googols|"
    r"besides|yes|bases|odds|evens|infinities|noons|whereas|remainders|lots"
)
_WRAPPED = r"\\(?:text(?:rm|bf|it)?|mathrm|mbox|hbox|rm)\s?\{([^{}]*)\}"
_SUFFIX = re.compile(
    rf"^(.*[\d}})!a-zA-Z|.])\s?(?:{_WRAPPED}|(?<![a-zA-Z\\/])([a-zA-Z]{{2,}}\.?(?:/[a-zA-Z]+)?))\s?(?:\^\s?\{{?\s?[23]\s?\}}?)?$",
    re.DOTALL,
)
_WORD = re.compile(r"([a-z/]+)\.?(?:\^?[23])?")
_DEGREES = re.compile(
    r"^(.*\S)\s?\^\s?(?:\\circ|\{\s?\\circ\s?\})\s?(?:[CF]|\\(?:text|mathrm)\s?\{\s?[CF]\s?\})?$", re.DOTALL
)
_TRIGONOMETRIC = re.compile(r"sin|cos|tan|sec|csc|cot")
_MATHEMATICAL = re.compile(r"\d|\\pi|\\sqrt", re.ASCII)


def without_unit(text: str) -> tuple[str, Fraction]:
    r"""A cleaned answer without the units at its right, and what their words multiply it by (`million`, `\%`).

    Units are those of a list, and plurals of what is counted (`\text{apples}`); any other word ("squared", "tenths", "noon", "x") says
    something about the value, which is then left to the grammar.
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
    words = re.split(r"[\s-]+", (found[2] if found[2] is not None else found[3]).strip().casefold())
    # Outside of `\text{}` a plural is a unit behind a number only: `5 apples`.
    counted = found[2] is not None or (found[1][-1:] == " " or text[len(found[1]) : len(found[1]) + 1] == " ")
    if found[2] in _SPACED:
        return found[1].rstrip(), Fraction(1)
    if not all(_is_unit(word, counted=counted) for word in words if word):
        return text, Fraction(1)
    scale = Fraction(1)
    for word in words:
        scale *= _SCALES.get(word, 1)
    return found[1].rstrip(), scale


def _is_unit(word: str, *, counted: bool) -> bool:
    if word in _SCALES:
        return True
    found = _WORD.fullmatch(word)
    if not found:
        return False
    parts = found[1].split("/")
    if len(parts) > 1:
        return all(part in _UNITS or part in _SHORT_UNITS for part in parts)
    if parts[0] in _UNITS:
        return True
    return counted and _COUNTED.fullmatch(parts[0]) is not None and not _NOT_COUNTED.fullmatch(parts[0])
