"""Find the final answer in what a model wrote. Total: any string gives an answer or None, never an error.

Boxes and formulas, several of which may be one list, are found in time linear in the text's length. `clean` (for mathematics) and `plain`
(for the comparison of texts) remove what does not change an answer's meaning, also in linear time.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from numbers import Real
from typing import Literal

from skill_ttrl.types import content

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


ExtractionRule = Literal["tag", "boxed", "sentence", "choice", "whole", "formula", "conclusion", "last_number"]

_SENTENCE = re.compile(
    r"(?P<said>answers? (?:is|are))(?: (?:therefore|thus|hence|then))?(?![a-z])[\s:：]*|答案(?:是[:：]?|[:：])\s*|(?:^|\n)[ *#>_-]*(?:\d+[.)] )?(?:final )?answer *[*_]*[:：=][*_]*\s*"
    r"|(?:^|\n) *+(?:#++ *+|\*\*)(?:final )?answer *+(?:\*\* *+)?\n\s*|(?:^|\n)#### *"
    r"|(?<=[.!?:] )final answer *[*_]*[:：][*_]*\s*",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"[*_ ]*(?:(?:in)?correct|(?:un)?clear|wrong|not|in|that|this|based|below|above|as follows|shown|given|found|obtained)\b",
    re.IGNORECASE,
)
"""After "the answer is": something is said of the answer, and it was announced before if at all."""
_LONGEST_SENTENCE = 200
_END = re.compile(r"</?s>|</\w+>|<\|[^|<>\n]*\|>|<eos>|<end_of_turn>|\[/?INST\]")
"""Marks that a model's template puts behind its last word."""
_EMPHASIS = re.compile(r"(?<![\w)\]}*])(\*\*|__|`)(?=[^\s*_`])([^*`\n]*?[^\s*`])\1(?![\w(*])")
_DISPLAYED = re.compile(r"\s*(?:\$\$(.*?)\$\$|\\\[(.*?)\\\])", re.DOTALL)
_CLOSED = re.compile(r"(?:\$([^$]+)\$|\\\((.+?)\\\))(?=[.!?]?[*_`\"]*\s*$|[.!?][*_`\"]*\s+[A-Z\[])")
_CLAUSE = re.compile(
    r",?\s(?i:because|since|as|which|so|I hope)\b|\s\((?i:since|because|as|which|i\.e)\b|[.!?][*_`\"$)]*\s+(?=[A-Z\[])"
)
_FULL_STOP = re.compile(r"(?<![.!])[.!。]$")
"""The end of a sentence: "42!" is no factorial there; `\boxed{42!}` is one."""
_LETTER = re.compile(
    r"(?:[Tt]he )?(?:(?:[Oo]ption|[Cc]hoice) \(?([A-E])\b\)?|(\([A-E]\))(?=[\s.:]|$)|([A-E])\)(?=[\s.]|$)|([A-E]): )(?!\s*(?:,|and\b|or\b|[-+*/^=]))"
)
_CHOICE = re.compile(
    r"\b(?:[Oo]ption|[Cc]hoice)(?: is)?:? *\(?([A-E])\b\)?|(?:^|\n)[ *]*\(([A-E])\)[ .*]*(?=\n|$)"
    r"|(?:^|\n) *\*\*\(?([A-E])\)?\.?\*\*\.?\s*\Z"
)
_LAST_NUMBER = re.compile(r"-?(?:\d[\d,]*+(?:\.\d+)?|\.\d+)(?:/\d++(?![.,]\d))?(?:\s?\\?%)?")
_NUMBER = r"(?:\\?\$|€|£)?-?(?:\d[\d,]*+(?:\.\d+)?|\.\d+)(?:/\d++(?![.,]\d))?(?:\s?\\?%|\s?[€£])?"
_CONCLUSION = re.compile(
    rf"\b(?:therefore|thus|hence|so|finally)\b[^.!?\n$]{{1,150}}?\b(?:is|are|equals|by)\s+({_NUMBER})(?!\w)"
    rf"|\b(?:is|are|it's|equals)\s+({_NUMBER})(?:[^\W\d_]{{1,3}}[²³23]?)?[.!]?\s*\Z",
    re.IGNORECASE,
)
_STATED = re.compile(
    r"(?:the|there|so|thus|hence|therefore|then|it|this|that|we|[A-Z][a-z]+)\b.*\b(?:is|are|equals)\s+(?=[-+$\d(\[{\\])",
    re.IGNORECASE,
)
"""In an announced sentence ("Answer: The largest one is 34") what stands before the value."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """An answer and where it was found."""

    answer: str
    rule: ExtractionRule


Answer = str | float | Fraction | None
"""An answer as callers have it: a text or a number; None and NaN are none."""


def answer_text(answer: object) -> str | None:
    """An answer as a text; None for a missing one.

    Raises:
        TypeError: it is no text and no number.
    """
    if answer is None or isinstance(answer, str):
        return answer
    if not isinstance(answer, Real) or isinstance(answer, bool):
        raise TypeError(f"An answer is a text or a number, found {type(answer).__name__}: {answer!r:.60}.")
    if answer != answer:
        return None
    return str(math.floor(answer)) if answer == answer // 1 else str(answer)


def true_answer(answer: object) -> str | None:
    """A true answer as a text; None for a missing one, which a table may call `NaN`."""
    text = answer_text(answer)
    return None if text is None or text.strip().casefold() == "nan" else text


def stands_in(answer: str, question: str) -> bool:
    """True if the answer is a word, a number or a run of them in the question, such as 7 in `7 + 5`, but not in `17`, `7.5` or `7,000`."""
    answer = answer.strip()
    whole = rf"(?<![\w.])(?<!\d,){re.escape(answer)}(?!\w|\.\d|,\d{{3}})"
    return answer in question and re.search(whole, question) is not None


def extract(text: str, *, last_number: bool = False) -> str | None:
    r"""The final answer of `text`, or None: see `find_answer`."""
    found = find_answer(text, last_number=last_number)
    return found.answer if found else None


def find_answer(text: str, *, last_number: bool = False) -> Extraction | None:
    r"""The final answer of `text`, outside of its thoughts (`types.split_thought`), and the rule that found it.

    In this order: the last `<answer>…</answer>` (`tag`; a box in it is opened), the last `\boxed{…}` (`boxed`; braces may nest or be
    missing), what follows the last "answer is", "Answer:" at the beginning of a line, a heading "Answer" or GSM8K's "####", up to the
    end of the line or of the clause (`sentence`), a multiple-choice letter A to E after "option" or "choice", alone in parentheses on a
    line or in bold on the last one (`choice`), and, only with `last_number`, the last number (`last_number`). A tag or an announcement with nothing but white space has spoken: there is no answer. A box without a value is no mark.
    """
    text = content(text)
    tagged = last_tagged(text, "answer")
    if tagged is not None:
        return _found(unbox(tagged) or tagged, "tag")
    boxed = unbox(text)
    if boxed is not None:
        return _found(boxed, "boxed")
    said = [match.end() for match in _SENTENCE.finditer(text) if not _is_remark(text, match)]
    if said:
        return _found(_said(text[said[-1] : said[-1] + _LONGEST_SENTENCE]), "sentence")
    letters = [match[match.lastindex or 0] for match in _CHOICE.finditer(text)]
    if letters:
        return Extraction(letters[-1], "choice")
    if last_number:
        numbers = _LAST_NUMBER.findall(text)
        if numbers:
            return _found(numbers[-1].rstrip(","), "last_number")
    return None


def find_conclusion(text: str) -> tuple[int, str] | None:
    """The last number that unmarked prose concludes with ("Therefore, there are 12 of them"; "it is 5." at the end), and its place."""
    found = list(_CONCLUSION.finditer(text))
    return (found[-1].start(), found[-1][1] or found[-1][2]) if found else None


def _is_remark(text: str, match: re.Match[str]) -> bool:
    """True if the text remarks on the answer ("The answer is correct") and announces none ("Answer: correct")."""
    return match["said"] is not None and ":" not in match[0] and _NO_ANSWER.match(text, match.end()) is not None


def _said(rest: str) -> str:
    """The answer in what follows its announcement: the first line, without emphasis and what explains it."""
    rest = _END.split(rest, maxsplit=1)[0]
    displayed = _DISPLAYED.match(rest)
    if displayed:
        return displayed[1] or displayed[2] or ""
    line = re.sub(r"^[*_]+\s+", "", rest).partition("\n")[0]
    line = _EMPHASIS.sub(r"\2", line).strip().lstrip("*` ")
    letter = _LETTER.match(line)
    if letter:  # "(D) 5": the letter stands for what follows it
        return letter[letter.lastindex or 0]
    closed = _CLOSED.match(line)  # "$5$. I hope it is correct."
    if closed:
        return closed[1] or closed[2]
    said = _CLAUSE.split(line, maxsplit=1)[0].strip('*`" ')
    stated = _STATED.match(said)
    said = said[stated.end() :] if stated else said
    said = _FULL_STOP.sub("", said).strip('*`" ')
    # Marks around it, or one of a pair that was cut; in `$3$ and $4$` they stay.
    return said.strip("$ ") if said.count("$") % 2 or re.fullmatch(r"\$[^$]*\$", said) else said


def last_tagged(text: str, name: str) -> str | None:
    """Return the text between the last `<name>` that is ever closed and its closing; linear in the text's length."""
    opening, closing = _tags(name)
    closings = list(closing.finditer(text))
    openings = list(opening.finditer(text, 0, closings[-1].start())) if closings else []
    if not openings:
        return None
    begin = openings[-1].end()
    return text[begin : next(found.start() for found in closings if found.start() >= begin)]


@cache
def _tags(name: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    return re.compile(f"<{re.escape(name)}>", re.IGNORECASE), re.compile(f"</{re.escape(name)}>", re.IGNORECASE)


def _found(answer: str, rule: ExtractionRule) -> Extraction | None:
    answer = answer.strip()
    return Extraction(answer, rule) if answer else None


# An answer without what does not change its meaning.

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
_STOP = re.compile(r"(?<![.,])[.,]$")
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
    return _STOP.sub("", text).rstrip()


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
