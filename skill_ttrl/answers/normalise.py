r"""Text without what does not change its meaning: `clean` for mathematics, `plain` for the comparison of texts.

Both are total and linear in the text's length.
"""

from __future__ import annotations

import re
import unicodedata

MAX_LENGTH = 2000
"""Longer answers are compared as texts only: nothing of them is parsed."""

# What keyboards and renderers write for LaTeX. The compatibility form (NFKC) and decimal digits of other scripts follow; look-alike
# letters stay as they are, and no number or expression has them.
_SYMBOLS = str.maketrans(
    {
        "−": "-", "–": "-", "‐": "-", "‑": "-", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∗": "*", "÷": "/", "⁄": "/",
        "∕": "/", "√": "\\sqrt ", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "≦": "\\le ", "≧": "\\ge ",
        "⩽": "\\le ", "⩾": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "°": "^\\circ ", "º": "^\\circ ",
        "∘": "^\\circ ", "£": " ", "€": " ", "±": "\\pm ", "∓": "\\mp ", "∅": "\\emptyset ", "⟨": "\\langle ",
        "⟩": "\\rangle ", "∣": "|", "′": "'", "∴": "\\therefore ", "⇒": "\\Rightarrow ", "→": "\\to ", "∑": "\\sum ",
        "∏": "\\prod ", "∫": "\\int ", "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "…": "\\dots ",
        "،": ",", "、": ",", "٬": ",", "٫": ".", "٪": "%", "。": ".",
    }
    | {
        letter: f"\\{name} "
        for letter, name in zip(
            "αβγδεζηθκλμνξρστφχψωΓΔΘΛΣΦΨΩ",
            "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi chi psi omega "
            "Gamma Delta Theta Lambda Sigma Phi Psi Omega".split(),
            strict=True,
        )
    }
)  # fmt: skip
_RAISED = re.compile("[⁰ⁱ¹²³⁴-ⁿ]+")
_LOWERED = re.compile("[₀-₎ₐ-ₜ]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_CONCLUDES = re.compile(r"\s*(?:\\(?:therefore|implies|Rightarrow|Longrightarrow)(?![a-zA-Z])\s*)+")
_NOTHING = re.compile(r"\\!|\\(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lrm]?)(?![a-zA-Z])")
_SPACE = re.compile(
    r"(?<!\\)\\[,;: ()\[\]]|\\q?quad|\\(?:en|thin|med|thick)space(?![a-zA-Z])|\\[hv]space\*?\s?\{[^{}]*\}|\\?\$|~"
)
_ROW = re.compile(r"\\\\\s?(?:\*|\[\s?-?[\d.]+\s?(?:ex|em|pt|mm|cm|in|px|mu)\s?\])")
"""The end of a matrix row, with the space that follows it."""
_DEGREE = re.compile(r"\s?\\(?:text)?degree(?![a-zA-Z])")
_REPEATING = re.compile(r"(\.\d*+)\s?\\(?:overline|bar)\s?(?:\{\s?(\d+)\s?\}|(\d)(?!\d))", re.ASCII)
_DOTTED = re.compile(r"(\.\d*+)\s?\\dot\s?\{?(\d)\}?(?:(\d*+)\\dot\s?\{?(\d)\}?)?", re.ASCII)
_OUTWARD = re.compile(r"([\[\](])(\s*[^\s,;()\[\]][^,;()\[\]]*[,;]\s*[^\s,;()\[\]][^,;()\[\]]*)([\[\])])")
"""Two bounds in brackets, of which square ones may open outward: `]1, 2[` is (1, 2)."""
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
"""A full stop or comma after the answer, from the sentence around it. The dots of `0.333...` do not match."""


def clean(answer: str) -> str:
    """The answer without LaTeX's spacing, sizes and math marks, currency signs and a final full stop; case is kept."""
    text = answer if answer.isascii() else _ascii(answer)
    if "\\" in text or "$" in text or "{" in text or "~" in text:
        text = _ROW.sub(r"\\\\ ", _THOUSANDS.sub("", _ARRAY.sub(r"\\\1{matrix}", _ESCAPED.sub(r"\\", text))))
        text = _SPACE.sub(" ", _NOTHING.sub("", text))
        text = _DEGREE.sub(r"^\\circ", _SAME.sub(r"\\\1", text))
        text = _DOTTED.sub(r"\1(\2\3\4)", _REPEATING.sub(r"\1(\2\3)", text))
        text = text[found.end() :] if (found := _CONCLUDES.match(text)) else text
    if "[" in text or "]" in text:
        text = _OUTWARD.sub(lambda found: found[1].replace("]", "(") + found[2] + found[3].replace("[", ")"), text)
    text = _without_stop(" ".join(text.split()))
    boxed = _BOXED.fullmatch(text)
    if boxed and _closes_last(text):
        text = boxed[1].strip()
    wrapped = _TEXT.fullmatch(text)
    return _without_stop(wrapped[1].strip()) if wrapped else text


def _ascii(text: str) -> str:
    """Characters beyond ASCII that mathematics has, in ASCII and LaTeX: symbols, raised and lowered characters, digits of any script."""
    text = _RAISED.sub(lambda run: f"^{{{unicodedata.normalize('NFKC', run[0])}}}", text)
    text = _LOWERED.sub(lambda run: f"_{{{unicodedata.normalize('NFKC', run[0])}}}", text)
    text = _VULGAR.sub(
        lambda sign: r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", sign[0]).split("⁄")), text
    )
    text = unicodedata.normalize("NFKC", text.translate(_SYMBOLS))
    return "".join(str(unicodedata.decimal(character, character)) for character in text)


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
