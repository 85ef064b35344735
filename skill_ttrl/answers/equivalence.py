"""When two answers are the same: exact numbers by value, everything else by its normalised text.

`canonical` maps an answer to the one form of its class, so equality of answers is equality of strings. Symbolic
comparison is not part of this first form: `x+1` and `1+x` differ here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

MAX_NUMBER_LENGTH = 400
"""Longer texts are never read as numbers: arithmetic on model output stays bounded."""
MAX_EXPONENT = 400

_DECIMAL = r"[-+]?(?:\d+\.?\d*|\.\d+)"
_NUMBER = re.compile(rf"({_DECIMAL})(?:[eE]([-+]?\d{{1,4}}))?", re.ASCII)
_RATIO = re.compile(rf"({_DECIMAL})/({_DECIMAL})", re.ASCII)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_FRAC = re.compile(r"([-+]?)\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_DIGITS_APART = re.compile(r"\d \d")
_WRAPPER = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf)\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:! ]|\\(?:left|right)(?![a-zA-Z])|\\?\$|~")


def equivalent(a: str, b: str) -> bool:
    """Whether two answers are the same. An empty answer is the same as nothing, itself included."""
    key = canonical(a)
    return key is not None and key == canonical(b)


def canonical(answer: str | None) -> str | None:
    r"""The form shared by all answers of the same class; None for an answer that is missing or empty.

    Numbers become reduced fractions ("number 1/2" for 0.5, 1/2 and \\frac{1}{2}); the first word keeps them apart from texts.
    """
    if answer is None:
        return None
    text = normalise(answer)
    if not text:
        return None
    value = parse_number(text)
    return f"text {text}" if value is None else f"number {value}"


def canonicals(answers: Sequence[str | None]) -> list[str | None]:
    """`canonical` of each; what needs the worker goes there once for each distinct answer, all together."""
    return [canonical(answer) for answer in answers]


def normalise(answer: str) -> str:
    """Text without what does not change its meaning: LaTeX wrappers and spacing, white space, a final full stop, case."""
    text = _SPACING.sub(" ", answer.strip())
    text = _WRAPPER.sub(r"\1", text)
    text = " ".join(text.split()).strip().rstrip(".").strip()
    return text.casefold()


def parse_number(text: str) -> Fraction | None:
    """The exact value of an integer, decimal, fraction or number with thousands separators; None for anything else."""
    if len(text) > MAX_NUMBER_LENGTH or _DIGITS_APART.search(text):
        return None
    compact = text.replace(" ", "")
    latex = _FRAC.fullmatch(compact)
    if latex:
        compact = f"{latex[1]}{latex[2]}/{latex[3]}"
    if _THOUSANDS.fullmatch(compact):
        compact = compact.replace(",", "")
    number = _NUMBER.fullmatch(compact)
    if number:
        exponent = int(number[2] or 0)
        return Fraction(number[1]) * Fraction(10) ** exponent if abs(exponent) <= MAX_EXPONENT else None
    ratio = _RATIO.fullmatch(compact)
    if ratio and Fraction(ratio[2]) != 0:
        return Fraction(ratio[1]) / Fraction(ratio[2])
    return None
