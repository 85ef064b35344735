r"""Texts that are near an answer and not it, and the named differences from math-verify, in which it is not an equivalence or wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from answers_rewrites import Rewrite, entries, is_value, terms, value, without_unit

_INTERVAL = re.compile(r"(?:\\left)?\s*([(\[])(.+),(.+?)\s*(?:\\right)?\s*([)\]])")


def sign_flipped(answer: str) -> Iterator[str]:
    if is_value(answer) or value(answer) is not None:
        if answer.startswith("-"):
            yield answer[1:] if len(terms(answer)) == 1 else f"-({answer})"
        elif answer != "0":
            yield f"-{answer}" if len(terms(answer)) == 1 else f"-({answer})"


def number_changed(answer: str) -> Iterator[str]:
    """Each number of the answer by one more, one at a time; not the exponent of a unit, not part of a longer number."""
    units = re.search(r"\\(?:text|mbox)\{[^{}]*\}.*$|\^\\circ$", answer)
    end = units.start() if units else len(answer)
    if re.match(r"\\?\$?\d{1,3},(?:\\!)?\s?\d{3}", answer):
        return
    for match in re.finditer(r"(?<![\d.])(?<!frac)(?<!frac )\d+(?![\d.])", answer[:end]):
        yield f"{answer[: match.start()]}{int(match[0]) + 1}{answer[match.end() :]}"


def brackets_changed(answer: str) -> Iterator[str]:
    if re.search(r"infty|cup", answer) or not _INTERVAL.fullmatch(answer):
        return
    for opened, closed in (("(", ")"), ("(", "]"), ("[", ")"), ("[", "]")):
        other = re.sub(
            r"[)\]]$", closed, re.sub(r"^((?:\\left)?\s*)[(\[]", lambda match, sign=opened: match[1] + sign, answer)
        )
        if other != answer:
            yield other


def tuple_reversed(answer: str) -> Iterator[str]:
    match = _INTERVAL.fullmatch(answer)
    if match and match[1] == "(" and match[4] == ")" and not re.search(r"infty|cup", answer):
        parts = [part.strip() for part in f"{match[2]},{match[3]}".split(",")]
        if parts != parts[::-1]:
            yield f"({', '.join(reversed(parts))})"


def rows_exchanged(answer: str) -> Iterator[str]:
    match = re.fullmatch(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}", answer)
    if match:
        rows = [row.strip() for row in match[1].split(r"\\")]
        for text in (r" \\ ".join(reversed(rows)), " & ".join(rows)):
            if text != match[1].strip():
                yield rf"\begin{{pmatrix}} {text} \end{{pmatrix}}"


def symbol_renamed(answer: str) -> Iterator[str]:
    bare = re.sub(r"\\[a-zA-Z]+", lambda match: "\\" * len(match[0]), answer)
    if re.search(r"text|mbox|matrix|\\in |^x=", answer):
        return
    for name in sorted(set(re.findall(r"(?<!\\)[a-hj-z](?![a-z])", bare))):
        places = [match.start() for match in re.finditer(name, bare)]
        yield "".join("w" if place in places else character for place, character in enumerate(answer))


def operator_changed(answer: str) -> Iterator[str]:
    parts = terms(answer)
    if len(parts) > 1:
        flipped = [part.replace("+", "-", 1) if part[0] == "+" else part.replace("-", "+", 1) for part in parts[1:]]
        for place, part in enumerate(flipped):
            yield " ".join([parts[0], *parts[1 : place + 1], part, *parts[place + 2 :]])


def element_lost(answer: str) -> Iterator[str]:
    found = entries(answer)
    for place in range(len(found)):
        yield ", ".join(found[:place] + found[place + 1 :])
    if r" \pm " in answer and "{" not in answer[:2]:
        yield answer.replace(r"\pm", "+")
    if r"\cup" in answer:
        yield answer.partition(r"\cup")[0].strip()


NEAR_MISSES: dict[str, Rewrite] = {
    "sign flipped": sign_flipped, "one number changed": number_changed, "brackets changed": brackets_changed,
    "tuple reversed": tuple_reversed, "rows exchanged": rows_exchanged, "symbol renamed": symbol_renamed,
    "operator changed": operator_changed, "an element lost": element_lost,
}  # fmt: skip


def percent_added(answer: str) -> Iterator[str]:
    if value(answer) and "frac" not in answer:
        yield rf"{answer}\%"


def rounded(answer: str) -> Iterator[str]:
    number = value(answer)
    if number is not None and "frac" in answer and 10**6 % number.denominator:
        yield f"{float(number):.6f}"
    root = re.fullmatch(r"\\sqrt\{(\d+)\}", answer)
    if root and isqrt(int(root[1])) ** 2 != int(root[1]):
        yield f"{float(Fraction(isqrt(int(root[1]) * 10**14), 10**7)):.6f}"


def tuple_as_list(answer: str) -> Iterator[str]:
    match = _INTERVAL.fullmatch(answer)
    if match and match[1] == "(" and match[4] == ")" and not re.search(r"infty|cup", answer):
        yield f"{match[2].strip()}, {match[3].strip()}"
    found = entries(answer)
    if found:
        yield f"({', '.join(found)})"


def base_changed(answer: str) -> Iterator[str]:
    match = re.fullmatch(r"(\d+)_\{?(\d)\}?", answer)
    if match:
        yield match[1]
        yield f"{match[1]}_{7 if match[2] != '7' else 9}"


def name_dropped(answer: str) -> Iterator[str]:
    match = re.fullmatch(r"[a-z] = (.*[a-z].*)", answer)
    if match:
        yield match[1]
    elif is_value(answer) and re.search(r"(?<![\\a-z])[a-hj-z](?![a-z])", answer):
        yield f"w = {answer}"


def value_renamed(answer: str) -> Iterator[str]:
    if answer.startswith("x="):
        yield f"w={answer[2:]}"


def as_inequality(answer: str) -> Iterator[str]:
    inside = answer.removeprefix(r"x \in ")
    match = _INTERVAL.fullmatch(inside)
    if not match or r"\cup" in answer or (match[1] == "(" and match[4] == ")" and "infty" not in inside):
        return
    low, high = match[2].strip(), match[3].strip()
    below, above = ("<" if match[1] == "(" else r"\le"), ("<" if match[4] == ")" else r"\le")
    if low == r"-\infty":
        yield f"x {above} {high}"
    elif high == r"\infty":
        yield f"x {'>' if match[1] == '(' else chr(92) + 'ge'} {low}"
    else:
        yield f"{low} {below} x {above} {high}"


def case_changed(answer: str) -> Iterator[str]:
    if is_value(answer) and re.search(r"(?<![\\a-zA-Z])[a-hj-zA-HJ-Z](?![a-z])", answer) and "\\" not in answer:
        yield answer.swapcase()


def mixed_with_slash(answer: str) -> Iterator[str]:
    number = value(answer)
    match = re.fullmatch(r"(\d+) ?\\frac\{(\d+)\}\{(\d+)\}", answer)
    if match:
        yield f"{match[1]} {match[2]}/{match[3]}"
    elif number is not None and "frac" in answer and number > 1:
        whole, rest = divmod(number, 1)
        yield f"{whole} {rest.numerator}/{rest.denominator}"


def full_stop(answer: str) -> Iterator[str]:
    yield f"{answer}."


def exponent_e(answer: str) -> Iterator[str]:
    number = value(answer)
    if number is not None and number and "frac" not in answer and number % 10 == 0:
        yield f"{float(number) / 10:g}e1"
    if answer == ".0000672":
        yield "6.72e-5"


def plain_notation(answer: str) -> Iterator[str]:
    text = re.sub(r"\\sqrt\{?(\d+)\}?", r"sqrt(\1)", answer).replace(r"\pi", "pi").replace(r"\infty", "inf")
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)", text).replace(" ", "")
    text = re.sub(r"(?<=\d)(sqrt|pi)", r"*\1", text)
    if text != answer.replace(" ", "") and "\\" not in text and "{" not in text and ("sqrt" in text or "pi" in text):
        yield text


def unicode_root(answer: str) -> Iterator[str]:
    text = re.sub(r"\\sqrt\{?(\d+)\}?", r"√\1", answer).replace(r"\infty", "∞").replace(r"^\circ", "°")
    text = re.sub(r"(?<=[a-zA-Z])\^2", "²", text) if "mbox" not in text else text
    if text != answer:
        yield text


def unit_words(answer: str) -> Iterator[str]:
    bare = without_unit(answer)
    if bare is not None and answer.startswith(r"\$"):
        yield f"{bare} dollars"
    elif re.fullmatch(r"-?\d+", answer):
        yield f"{answer} dollars"
        yield f"{answer} meters"


def anagram(answer: str) -> Iterator[str]:
    match = re.fullmatch(r"\\text\{([a-zA-Z]{3,})\}", answer)
    if match:
        yield f"{match[1][1:]}{match[1][0]}"


@dataclass(frozen=True)
class Difference:
    """One kind of pair in which the two are meant to differ."""

    pairs: Rewrite
    same: bool
    """Whether the two texts are the same answer."""
    why: str
    plain: bool = False
    r"""Whether the answer's own words are compared, without `\text{}`."""


DIFFERENCES: dict[str, Difference] = {
    "percent sign": Difference(percent_added, False, r"`50\%` matches `0.5` and `50`, which differ: no equivalence can have both"),
    "rounded decimals": Difference(rounded, False, "`0.3333331` matches `1/3` and `1666667/5000000`, which differ: six places are compared where one side is a decimal, all where none is"),
    "tuple and list": Difference(tuple_as_list, False, "`(1,2)` matches `1,2`, `1,2` matches `2,1`, and `(1,2)` does not match `(2,1)`; some of it one way only"),
    "base of a numeral": Difference(base_changed, False, "the subscript is dropped: `52_8`, `52` and `52_9` are one number, 42, 52 and 47 in truth"),
    "name of a function": Difference(name_dropped, False, "`y = 2x + 3` matches `2x + 3`, which matches `z = 2x + 3`, which does not match the first"),
    "name of a value": Difference(value_renamed, True, "`x=5` matches `5`, which matches `w=5`, which does not match the first"),
    "inequality for an interval": Difference(as_inequality, True, "one way only: the inequality as the reference matches the interval, the interval as the reference does not match the inequality"),
    "case of a symbol": Difference(case_changed, False, "letters are lower-cased, so `R - r` is 0"),
    "mixed number with a slash": Difference(mixed_with_slash, True, "`1 1/2` is read as 1, `2 1/2` as 3/2"),
    "full stop": Difference(full_stop, True, "`5.` is a text, which is not the number 5"),
    "exponent with e": Difference(exponent_e, True, "`1.5e3` is read as 1.5 · e · 3"),
    "plain notation": Difference(plain_notation, True, "`pi` is read as p · i"),
    "Unicode roots, powers, degrees": Difference(unicode_root, True, "not parsed, so compared as texts"),
    "units in words": Difference(unit_words, True, "`36 dollars` is read as a product of 36 and letters"),
    "letters of a word": Difference(anagram, False, "words outside of `\\text{}` are products of letters: `east` matches `aste`", plain=True),
}  # fmt: skip
