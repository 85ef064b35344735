r"""Exact numbers, and the units and scales at their right: `5 \text{ cm}` is 5 with the unit cm, `3 \text{ million}` is 3,000,000.

Numbers are integers, decimals, fractions, mixed numbers, with thousands separators or in scientific notation. Values are
`fractions.Fraction`; nothing is rounded. A unit of measurement is part of an answer's class, so 5 cm is not 5 km; what is counted
(`5 \text{ apples}`) is dropped: it is the question's. A percent sign is no unit: `50\%` is 1/2 and never 50.
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
        return _ratio_of(found[1], found[2])
    found = _FRAC.fullmatch(text)
    if found:
        return _ratio_of(found[1] or found[2], found[3] or found[4])
    found = _MIXED.fullmatch(text)
    if found:
        whole, top, below = (
            (found[6], found[7], found[8]) if found[6] else (found[1], found[2] or found[3], found[4] or found[5])
        )
        part = _ratio_of(top, below)
        return Fraction(whole) + part if part is not None and 0 <= part < 1 else None
    return None


def _ratio_of(top: str, below: str) -> Fraction | None:
    divisor = Fraction(below)
    return Fraction(top) / divisor if divisor else None


_SCALES = {
    "percent": Fraction(1, 100), "percentage": Fraction(1, 100), "pct": Fraction(1, 100), "hundred": Fraction(10**2),
    "thousand": Fraction(10**3), "million": Fraction(10**6), "billion": Fraction(10**9), "trillion": Fraction(10**12),
    "dozen": Fraction(12),
}  # fmt: skip
_MEASURES = {
    "mm": "millimeter millimeters millimetre millimetres", "cm": "centimeter centimeters centimetre centimetres", "dm": "",
    "m": "meter meters metre metres", "km": "kilometer kilometers kilometre kilometres", "inch": "inches", "ft": "foot feet",
    "yd": "yard yards", "mi": "mile miles", "mg": "milligram milligrams", "g": "gram grams", "kg": "kilogram kilograms",
    "oz": "ounce ounces", "ton": "tons tonne tonnes", "pound": "pounds lb lbs gbp", "ml": "milliliter milliliters millilitre millilitres",
    "l": "liter liters litre litres", "gal": "gallon gallons", "s": "sec secs second seconds", "min": "mins minute minutes",
    "h": "hr hrs hour hours", "day": "days", "week": "weeks", "month": "months", "year": "years", "decade": "decades",
    "dollar": "dollars usd", "cent": "cents", "euro": "euros eur", "deg": "degree degrees", "rad": "radian radians", "rpm": "",
    "hz": "", "kwh": "", "newton": "newtons", "joule": "joules", "watt": "watts", "volt": "volts", "mole": "moles",
    "km/h": "kph", "mi/h": "mph",
}  # fmt: skip
_NAMES = {name: unit for unit, names in _MEASURES.items() for name in (unit, *names.split()) if len(name) > 1}
_NO_MEASURES = frozenset("unit units people men women children person".split())
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_SHORT_UNITS = frozenset("smhglk")
"""Units of one letter, next to a slash (`km/h`, `m/s`); by itself a letter is a symbol (`2\\text{x}` is 2x)."""
_SPACED = frozenset([" m", " s", " g", " h"])
"""But one with a space before it inside of `\\text{ m}` is nothing else than a unit."""
_COUNTED = re.compile(r"[a-z]{3,}s")
"""Counted things: a plural (`\\text{apples}`), except the words below, which give a number, a sign or a comparison."""
_NOT_COUNTED = re.compile(
    r".*(?:ths|ss|us|is|wards)|thirds|halves|quarters|times|dozens|scores|couples|pairs|grosses|hundreds|thousands|(?:m|b|tr|quadr)illions|"
    r"percents|factorials|negatives|positives|inverses|reciprocals|opposites|squares|cubes|roots|powers|logs|sins|always|sometimes|perhaps|"
    r"equals|does|zeros|ones|twos|threes|fours|fives|sixes|sevens|eights|nines|tens|elevens|twelves|\w*(?:teens|ties)|lakhs|crores|googols|"
    r"besides|yes|bases|odds|evens|infinities|noons|whereas|remainders|lots"
)
_WRAPPED = r"\\(?:text(?:rm|bf|it|normal)?|mathrm|mbox|hbox|rm)\s?\{([^{}]*)\}"
_SUFFIX = re.compile(
    rf"^(.*[\d}})!a-zA-Z|.])\s?(?:{_WRAPPED}|(?<![a-zA-Z\\/])([a-zA-Z]{{2,}}\.?(?:/[a-zA-Z]+)?|(?<=\s)[a-zA-Z]/[a-zA-Z]+))\s?(?:\^\s?\{{?\s?([23])\s?\}}?)?$",
    re.DOTALL,
)
_PART = re.compile(r"([a-z]+)\.?(?:\^?([23]))?")
_UNIT = r"([a-zA-Z]+(?:\^-?[123])?)"
_OPENED = r"\\(?:text(?:rm)?|mathrm|mbox|hbox|rm)\s?\{\s*"
_POWER = re.compile(r"(?<=[a-zA-Z}])\s?\^\s?\{\s?(-?[123])\s?\}(?!\s?\d)", re.ASCII)
_COMPOUND = [
    re.compile(rf"{pattern}$", re.ASCII)
    for pattern in (
        rf"\\frac\s?\{{\s?{_OPENED}{_UNIT}\s*\}}(\^[123])?\s?\}}\s?(/?)\{{\s?{_OPENED}{_UNIT}\s*\}}(\^[123])?\s?\}}",
        rf"{_OPENED}\\frac\s?\{{\s?{_UNIT}\s?\}}()\s?(/?)\{{\s?{_UNIT}\s?\}}()\s?\}}",
        rf"{_OPENED}{_UNIT}\s*\}}(\^-?[123])?\s?(/|\\cdot)?\s?{_OPENED}{_UNIT}\s*\}}(\^-?[123])?",
        rf"{_OPENED}{_UNIT}()\s?(/|\\cdot|\s)\s?{_UNIT}()\s*\}}",
    )
]
"""Two units, of which the second divides the first: a fraction of commands, one in a command, a quotient or product of either."""
_DEGREES = re.compile(
    r"^(.*\S)\s?\^\s?(?:\\circ|\{\s?\\circ\s?\})\s?(?:([CF])|\\(?:text|mathrm)\s?\{\s?([CF])\s?\})?$", re.DOTALL
)
_TRIGONOMETRIC = re.compile(r"sin|cos|tan|sec|csc|cot")
_MATHEMATICAL = re.compile(r"\d|\\pi|\\sqrt", re.ASCII)
_CURRENCY = re.compile(
    r"(?:\s|\\f?box(?:ed)?|\{|\\[(\[]|\$(?=[^$]*\$))*+-?\s*(?:(\\\$|€|£)\s*-?[\d.]|(\$)\s*-?[\d.][^$]*$)"
    r"|.*[\d.}]\s*(\\\$|€|£)(?:\s|\}|\\[)\]]|\$)*+$",
    re.DOTALL,
)
_CURRENCIES = {"\\$": "dollar", "$": "dollar", "€": "euro", "£": "pound"}


def without_unit(text: str) -> tuple[str, Fraction, str]:
    r"""A cleaned answer without what stands at its right: the rest, what its words multiply it by (`million`, `\%`), its unit.

    Units are those of a list, in one spelling (`kilometers per hour` is `km/h`); what is counted, a plural (`\text{apples}`), is no
    unit and is dropped. Any other word ("squared", "tenths", "noon", "x") says something about the value, which is then left to the
    grammar. What is left has a digit, a root or π in it: `\text{cats}` alone, or `x \text{ is even}`, keeps its words.
    """
    text = _joined(text)
    scale = Fraction(1)
    words: list[str] = []
    for _ in range(4):  # `3 \text{ million } \text{ dollars}`
        rest, factor, found = _one_unit(text)
        if rest == text or not _MATHEMATICAL.search(rest):
            break
        text, scale, words = rest, scale * factor, found + words
    return text, scale, _normal(words)


def unit_with_currency(unit: str, answer: str) -> str:
    r"""The unit of an answer, or that of its sign of money: `\$5`, `5€`, `$5` without a second mark; `\$5 \text{ per hour}` has both."""
    if unit and not unit.startswith("/"):
        return unit
    found = _CURRENCY.match(answer)
    return (_CURRENCIES[found[1] or found[2] or found[3]] if found else "") + unit


def _one_unit(text: str) -> tuple[str, Fraction, list[str]]:
    if text.endswith("%"):
        return text[:-1].rstrip("\\").rstrip(), Fraction(1, 100), []
    found = _DEGREES.match(text)
    if found and not _TRIGONOMETRIC.search(text):  # of an angle the grammar knows what degrees are
        return found[1], Fraction(1), [f"deg{found[2] or found[3] or ''}"]
    found = _SUFFIX.match(text)
    if not found:
        return text, Fraction(1), []
    words = re.split(r"[\s-]+", (found[2] if found[2] is not None else found[3]).strip().casefold())
    power = [f"^{found[4]}"] if found[4] else []
    # Outside of `\text{}` a plural is a unit behind a number only: `5 apples`.
    counted = found[2] is not None or (found[1][-1:] == " " or text[len(found[1]) : len(found[1]) + 1] == " ")
    if found[2] in _SPACED:
        return found[1].rstrip(), Fraction(1), [*words, *power]
    if not all(_is_unit(word, counted=counted) for word in words if word):
        return text, Fraction(1), []
    scale = Fraction(1)
    for word in words:
        scale *= _SCALES.get(word, 1)
    return found[1].rstrip(), scale, [*words, *power]


def _joined(text: str) -> str:
    r"""A quotient of units as one word: `9.8 \frac{\text{m}}{\text{s}^2}` and `9.8 \text{m}\,\text{s}^{-2}` as `9.8 \text{ m/s^2}`."""
    if "\\" not in text:
        return text
    short = _POWER.sub(r"^\1", text)
    for pattern in _COMPOUND:
        found = pattern.search(short)
        if found:
            one, other = found[1] + (found[2] or ""), found[4] + (found[5] or "")
            divided = "\\frac" in found[0] or found[3] == "/"
            if "-" not in one and divided != ("-" in other):
                return f"{short[: found.start()]}\\text{{ {one}/{other.replace('-', '').removesuffix('^1')}}}"
    return text


def _parts(word: str) -> list[tuple[str, str]] | None:
    """The names in `cm^3/s` with their powers."""
    found = [_PART.fullmatch(part) for part in word.split("/")]
    return [(part[1], part[2] or "") for part in found if part] if all(found) else None


def _is_unit(word: str, *, counted: bool) -> bool:
    if word in _SCALES:
        return True
    parts = _parts(word)
    if parts is None or len(parts) > 1:
        return parts is not None and all(part in _NAMES or part in _SHORT_UNITS for part, _ in parts)
    name = parts[0][0]
    if name in _NAMES or name in _NO_MEASURES or name in _POWERS or name == "per":
        return True
    return counted and _COUNTED.fullmatch(name) is not None and not _NOT_COUNTED.fullmatch(name)


def _normal(words: list[str]) -> str:
    """The one spelling of a unit; empty where the words name none."""
    unit, power, over = "", "", ""
    for word in words:
        if (name := word.rstrip(".")) in _POWERS:
            power = _POWERS[name]
        elif word == "per":
            over = "/"
        elif word.startswith("^"):
            unit += word if unit else ""
        elif parts := _parts(word.removesuffix("C").removesuffix("F")):
            if len(parts) > 1 or parts[0][0] in _NAMES or word in _SHORT_UNITS:
                shown = "/".join(_NAMES.get(part, part) + (f"^{raised}" if raised else "") for part, raised in parts)
                unit += over + shown + power + word[len(word.rstrip("CF")) :]
            power, over = "", ""
    return unit
