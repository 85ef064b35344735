r"""Text without what does not change its meaning: `clean` for mathematics, `plain` for the comparison of texts.

Both are total and linear in the text's length.
"""

from __future__ import annotations

import re

MAX_LENGTH = 2000
"""Longer answers are compared as texts only: nothing of them is parsed."""

# What keyboards and renderers write for LaTeX commands. Other characters beyond ASCII stay as they are, and no number or
# expression has them: look-alike letters and digits of other scripts are never read as mathematics.
_SYMBOLS = str.maketrans(
    {
        "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "÷": "/", "⁄": "/", "√": "\\sqrt ",
        "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∈": "\\in ",
        "°": "^\\circ ", "£": " ", "€": " ", "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}",
        "⅓": "\\frac{1}{3}", "⅔": "\\frac{2}{3}", "±": "\\pm ", "∓": "\\mp ", "∅": "\\emptyset ", "⟨": "\\langle ",
        "⟩": "\\rangle ", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
    }
)  # fmt: skip
_SUPERSCRIPTS = re.compile(r"(⁻?)([⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_NOTHING = re.compile(r"\\!|\\(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lrm]?)(?![a-zA-Z])")
_SPACE = re.compile(r"(?<!\\)\\[,;: ()\[\]]|\\q?quad|\\?\$|~")
_SAME = re.compile(r"\\[dtc](frac|binom)(?![a-zA-Z])")
_ESCAPED = re.compile(
    r"(?<!\\)\\\\(?=(?:left|right|[dt]?frac|pi|sqrt|text|boxed|leq?|geq?|infty|cup|pm|cdot|times|in)(?![a-zA-Z]))"
)
"""A command of LaTeX that was escaped once more on its way (JSON): no row of a matrix begins with these letters."""
_ARRAY = re.compile(r"\\(begin|end)\s?\{array\}(?:\s?\{[lcr| ]*\})?")
_THOUSANDS = re.compile(r"(?<=\d)(?:\s?\{,\s?\}\s*|,\\!\s*|\\,)(?=\d{3}(?!\d))", re.ASCII)
_BOXED = re.compile(r"\\f?box(?:ed)?\{(.*)\}", re.DOTALL)
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt)?|mathrm|mbox|mathbf|mathit|operatorname|hbox|rm)\s*\{([^{}]*)\}")
_BRACED = re.compile(r"([_^])\{(\w)\}")
_AROUND = re.compile(r"\s*([^\w\s.])\s*")
_FULL_STOP = re.compile(r"(?<![.,])[.,]$")
"""One that ends a sentence, or a comma that goes on with it; of `0.333...` nothing is cut off."""


def clean(answer: str) -> str:
    """The answer without LaTeX's spacing, sizes and math marks, currency signs and a final full stop; case is kept."""
    text = answer if answer.isascii() else _SUPERSCRIPTS.sub(_raised, answer).translate(_SYMBOLS)
    if "\\" in text or "$" in text or "{" in text or "~" in text:
        text = _THOUSANDS.sub("", _ARRAY.sub(r"\\\1{matrix}", _ESCAPED.sub(r"\\", text)))
        text = _SPACE.sub(" ", _NOTHING.sub("", text))
        text = _SAME.sub(r"\\\1", text)
    text = _without_stop(" ".join(text.split()))
    boxed = _BOXED.fullmatch(text)
    if boxed and _closes_last(text):
        text = boxed[1].strip()
    wrapped = _TEXT.fullmatch(text)
    return _without_stop(wrapped[1].strip()) if wrapped else text


def _raised(found: re.Match[str]) -> str:
    digits = found[2].translate(_DIGITS)
    return f"^{{{'-' if found[1] else ''}{digits}}}"


def _without_stop(text: str) -> str:
    return _FULL_STOP.sub("", text).rstrip()


def plain(text: str) -> str:
    r"""A cleaned answer as a text to compare: `\text{}` unwrapped, white space and braces that say nothing dropped, no case."""
    text = _BRACED.sub(r"\1\2", _TEXT.sub(r"\1", text))
    return _without_stop(" ".join(_AROUND.sub(r"\1", text).split())).casefold()


def plain_long(answer: str) -> str:
    """`plain` for an answer beyond `MAX_LENGTH`: white space and case only."""
    return " ".join(answer.split()).casefold()


def _closes_last(text: str) -> bool:
    """True if the first brace of `text` is closed by its last one."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0 and character == "}":
            return place == len(text) - 1
    return False
