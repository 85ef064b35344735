r"""Grading: the score of an answer against a reference, and the rule that decided it.

A grader accepts more than equality: other ways to write the reference that do not form an equivalence, and so are not for votes.
`50\%` may be the reference's `50` and `0.5`, which are not each other; `5 cm` and `5 km` may both answer a reference of 5. Both sides
are rewritten as texts (`_rewritings`), and each text is keyed as any answer is: in bounded time, in the worker where SymPy is needed,
once. Short answers of question answering are compared as text (`matches`, `token_f1`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Literal, TypedDict

from skill_ttrl.answers.equivalence import EquivalenceResult, bare_key, canonical, canonicals, decide, verdict
from skill_ttrl.answers.extract import (
    Answer,
    Extraction,
    ExtractionRule,
    answer_text,
    clean,
    find_answer,
    find_conclusion,
    last_formula,
    plain,
    true_answer,
)
from skill_ttrl.answers.grammar import Tree
from skill_ttrl.answers.keys import INFINITY
from skill_ttrl.answers.units import read_number, without_unit
from skill_ttrl.types import content

MatchType = Literal["exact", "string", "numeric", "symbolic", "lenient", "none"]


_LONGEST_WHOLE = 200
"""A response without any mark is read as one answer up to this length."""
_DENIED = re.compile(
    r"\b(?:not?|cannot|never|none|neither|nor|except|but|other|unlike|instead|wrong)\b|n['’]t\b", re.IGNORECASE
)


class Grade(TypedDict):
    """Grade of an answer."""

    score: float
    """1.0 for the same answer, else 0.0."""
    match_type: MatchType
    """The first comparison that held: identical text, equal normalised text, equal number (or several), equal
    expression, another way to write the reference that votes keep apart; or none."""
    predicted_answer: str | None
    """The answer that was graded."""


class GradedText(Grade):
    """Grade of a whole text."""

    extraction: ExtractionRule | None
    """Where in the text the answer was found."""


def grade_answer(answer: Answer, reference: Answer) -> Grade:
    """Compare one answer with the reference, each a text or a number. A missing or empty one, or a reference `NaN`, scores 0.

    More is accepted than `equivalent` holds together: see docs/answers.md.

    Raises:
        TypeError: one of them is neither a text nor a number.
    """
    given, true = answer_text(answer), true_answer(reference)
    right = correct([(given, true)])[0]
    return {
        "score": float(right),
        "match_type": _match_type(str(given), str(true)) if right else "none",
        "predicted_answer": given,
    }


def correct(pairs: Sequence[tuple[str | None, str | None]]) -> list[bool]:
    """Decide for each (answer, reference) pair if it scores 1. All distinct answers are processed together."""
    keys = canonicals([text for pair in pairs for text in pair])
    ours, theirs = keys[::2], keys[1::2]
    right = [one is not None and one == other for one, other in zip(ours, theirs, strict=True)]
    rows = zip(pairs, ours, theirs, strict=True)
    differing = [(answer, true) for (answer, true), one, other in rows if true and one and other and one != other]
    open_pairs = list(dict.fromkeys(differing))
    accepted = {pair for pair, taken in zip(open_pairs, _accepts(open_pairs), strict=True) if taken}
    return [same or pair in accepted for same, pair in zip(right, pairs, strict=True)]


def _match_type(answer: str, reference: str) -> MatchType:
    found, true = verdict(answer), verdict(reference)
    assert found is not None and true is not None
    if answer.strip() == reference.strip():
        return "exact"
    if found.key != true.key:
        return "lenient"
    if found.rule == "text" or plain(clean(answer)) == plain(clean(reference)):
        return "string"
    return "symbolic" if "symbolic" in (found.rule, true.rule) else "numeric"


def compute_reward(text: str, ground_truth: Answer, *, last_number: bool = False) -> GradedText:
    r"""Extract the answer of a whole text and grade it.

    Where no mark of `extract` stands, the answer is the text itself if it is nothing but mathematics (`whole`), else its last
    formula (`formula`) or, if that comes later, the number of a concluding sentence (`conclusion`). A ground truth may be a whole solution: then its marked answer is the reference.

    An answer of words that is not the reference is its formula ("the number $9$"), unless the words may deny it.

    Args:
        text: a response.
        ground_truth: the true answer, a text or a number, or a solution with a mark of `extract` (a box, "answer is", GSM8K's "####").
        last_number: as in `extract`, where there is no formula either.
    """
    said = content(text)
    found = find_answer(text) or _unmarked(said) or (find_answer(text, last_number=True) if last_number else None)
    reference = true_answer(ground_truth)
    marked = find_answer(reference) if reference else None
    reference = marked.answer if marked else reference
    grade = grade_answer(found.answer if found else None, reference)
    if found and not grade["score"]:
        formula = _formula_of(found.answer)
        again = grade_answer(formula, reference)
        grade = again if again["score"] else grade
    return {**grade, "extraction": found.rule if found else None}


def _formula_of(answer: str) -> str | None:
    """The formula in an answer of words ("the number $9$"), unless the words may deny it."""
    said = verdict(answer)
    if said is None or said.rule != "text" or len(answer) > _LONGEST_WHOLE or _DENIED.search(answer):
        return None
    formula = last_formula(answer)
    return formula[1] if formula else None


def _unmarked(text: str) -> Extraction | None:
    whole = text.strip()
    if 0 < len(whole) <= _LONGEST_WHOLE and "\n" not in whole:
        alone = verdict(whole)
        if alone is not None and alone.rule != "text":
            return Extraction(whole, "whole")
    formula, concluded = last_formula(text), find_conclusion(text)
    if concluded and (not formula or concluded[0] > formula[0]):
        return Extraction(concluded[1], "conclusion")
    return Extraction(formula[1], "formula") if formula else None


_REFUSED = ("timeout", "memory", "crashed", "too_long")
_MOST_ITEMS = 50
_ROUNDED, _SHORTENED = 2, 4
"""Fewest decimals of a reference that is taken for rounded, and of an answer that rounds an exact reference."""
_NAME = r"\|?(?:\\(?:angle|overline|triangle)\s?)?\{?[A-Za-z]{1,4}\}?'*(?:_(?:\w|\{\w{1,6}\}))?(?:\([a-z\d](?:,\s?[a-z\d])*\))?\|?"
_NAMED = re.compile(
    rf"(?:{_NAME}|{_NAME}\s?[:/]\s?{_NAME}|\\frac\s?\{{{_NAME}\}}\s?\{{{_NAME}\}}|\(\s?{_NAME}(?:,\s?{_NAME}){{1,4}}\s?\))\s*"
)
_OPENING, _CLOSING = "([{", ")]}"
_SEPARATOR = re.compile(r"[,;]|(?:\b|(?<=\)))(?:and|or)(?:\b|(?=\())|\\text\s?\{\s*(?:and|or)\s*\}")
_SUBSCRIPT = re.compile(r"_(?:\w|\{\w+\})")
_APPROXIMATELY = re.compile(r"\\approx(?![a-zA-Z])|≈|\\simeq(?![a-zA-Z])")
_PERCENT = re.compile(r"\s*\\?(?:%|(?:\\text\s?\{\s*)?(?:percent|percentage|pct)\b\s*\}?)\s*$", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"(?!-?[1-9]\d{0,2},\d{3}\Z)(-?\d+),(\d+)", re.ASCII)
"""A comma for the point: none that separates thousands (`1,500`)."""
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?!\d)", re.ASCII)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))", re.ASCII)
_ATOM = re.compile(r"\b(?:number (-?\d+(?:/\d+)?)|value (-?\d+(?:\.\d+)?(?:e[-+]?\d+)?))(?![\w.])")


def _accepts(pairs: Sequence[tuple[str | None, str]]) -> list[bool]:
    """For each (answer, reference) that differ, whether a grader takes the answer nevertheless. Keys are looked up in one go."""
    written = [
        [] if answer is None or not _fit(answer) or not _fit(reference) else list(_rewritings(answer, reference))
        for answer, reference in pairs
    ]
    canonicals([text for row in written for pair in row for text in pair])
    return [any(_same(answer, reference) for answer, reference in row) for row in written]


def _fit(answer: str) -> bool:
    """True if the answer was decided within limits; any other is never tried again in other words."""
    found = verdict(answer)
    return found is not None and found.gave_up not in _REFUSED


def _rewritings(answer: str, reference: str) -> Iterator[tuple[str, str]]:
    """Pairs of which one has to be the same, the two as they are among them."""
    yield answer, reference
    given, true = clean(answer), clean(reference)
    values = _values(given), _values(true)
    if values[0] and not values[1]:
        yield _unnamed_pair(*values[0], true)
    elif values[1] and not values[0]:
        yield _unnamed_pair(*values[1], given)[::-1]
    shares = _unpercented(given), _unpercented(true)
    if shares[0] is not None and shares[1] is None and not _is_share(true):  # 0.5 is no percentage that lacks its sign
        yield shares[0], true
    elif shares[1] is not None and shares[0] is None:
        yield given, shares[1]
    ours, theirs = _last(given), _last(true)
    if ours or theirs:
        yield ours or given, theirs or true
    yield from _reordered(given, true)
    comma = _DECIMAL_COMMA.fullmatch(given), _DECIMAL_COMMA.fullmatch(true)
    if comma[0] and not comma[1]:
        yield f"{comma[0][1]}.{comma[0][2]}", true
    elif comma[1] and not comma[0] and "." in given and (len(comma[1][2]) > 1 or comma[1][1] in ("0", "-0")):
        yield given, f"{comma[1][1]}.{comma[1][2]}"


def _reordered(given: str, true: str) -> Iterator[tuple[str, str]]:
    """Brackets that the reference does not mean, and repeats that it does not have."""
    ours, theirs = _inside(given), _inside(true)
    if theirs[0] == "(" and ours[0] in ("", "{") and len(ours[1]) == len(theirs[1]) > 1:
        yield f"({', '.join(ours[1])})", true
    elif theirs[0] in ("", "{") and ours[0] in ("", "(", "{") and len(theirs[1]) > 1:
        items = ours[1]
        if len(_different(theirs[1])) == len(theirs[1]):
            items = _different(items)
        marks = ("\\{", "\\}") if theirs[0] == "{" else ("", "")
        yield f"{marks[0]}{', '.join(items)}{marks[1]}", true


def _different(items: list[str]) -> list[str]:
    return list({"".join(item.split()): item for item in items}.values())


def _values(text: str) -> tuple[list[str], bool] | None:
    """Values of named quantities (`AB = 4, CD = 5`) and True if their order tells them apart. None if nothing is named."""
    groups = [_items(group) for group in _split(text, ";")]
    if len(groups) > 1 and all(len(group) > 1 for group in groups):  # p=5, q=2; p=7, q=2
        rows = [[_unnamed(item) for item in group] for group in groups]
        return ([f"({', '.join(row)})" for row in rows], False) if rows != groups else None
    items = _items(text)
    unnamed = [_unnamed(item) for item in items]
    if unnamed == items:
        return None
    names = {
        _SUBSCRIPT.sub("", _split(item, "=")[0]) for item, value in zip(items, unnamed, strict=True) if item != value
    }
    return unnamed, len(names) == len(items) > 1


def _unnamed_pair(values: list[str], ordered: bool, other: str) -> tuple[str, str]:
    """Return the values without their names, and the side that has none, as two texts to compare."""
    if not ordered:
        return ", ".join(values), other
    bracket, items = _inside(other)
    return f"({', '.join(values)})", f"({', '.join(items)})" if bracket in ("", "(", "{") else other


def _unnamed(item: str) -> str:
    sides = _split(_APPROXIMATELY.split(item, maxsplit=1)[0], "=")
    if len(sides) > 1 and _NAMED.fullmatch(sides[0]):
        return sides[-1]
    around = _APPROXIMATELY.split(item)
    return around[1] if len(around) == 2 and _NAMED.fullmatch(around[0]) else item


def _last(text: str) -> str | None:
    """The end of a chain `2x = 50/3 = 16.67` whose last link holds when rounded, or what stands before an approximation."""
    exact = _APPROXIMATELY.split(text, maxsplit=1)[0].strip()
    sides = _split(exact, "=")
    if len(sides) > 2:
        return sides[-1] if len(_items(exact)) == 1 and _same(sides[-2], sides[-1]) else None
    if exact == text or not exact or _NAMED.fullmatch(exact):
        return None
    return exact


def _unpercented(text: str) -> str | None:
    found = _PERCENT.search(text)
    return text[: found.start()] if found and found.start() else None


def _is_share(text: str) -> bool:
    value = read_number(text)
    return value is not None and 0 < abs(value) < 1


def _inside(text: str) -> tuple[str, list[str]]:
    """The bracket around a whole text, empty for none, and what it encloses."""
    body = text.replace("\\{", "{").replace("\\}", "}").strip()
    if body[:1] in ("(", "{") and len(list(_depths(body, stop=True))) == len(body):
        if body[-1] == _CLOSING[_OPENING.index(body[0])]:
            return body[0], _items(body[1:-1])
        return "?", [body]
    return "", _items(text)


def _items(text: str) -> list[str]:
    return _split(text, _SEPARATOR)


def _split(text: str, separator: str | re.Pattern[str]) -> list[str]:
    """Parts between separators outside of brackets."""
    pattern = re.compile(re.escape(separator)) if isinstance(separator, str) else separator
    depths = [*_depths(text), 0]
    parts: list[str] = []
    begin = 0
    for found in pattern.finditer(text):
        if not depths[found.start()] and len(parts) < _MOST_ITEMS:
            parts.append(text[begin : found.start()].strip())
            begin = found.end()
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


def _depths(text: str, *, stop: bool = False) -> Iterator[int]:
    """Count the open brackets at each character; with `stop` up to the one that closes the first."""
    depth = 0
    for character in text:
        depth += (character in _OPENING) - (character in _CLOSING)
        yield depth
        if stop and depth == 0:
            return


def _same(answer: str, reference: str) -> bool:
    """Compare keys up to a unit that one of them lacks and to decimals."""
    ours, theirs = canonicals([answer, reference])
    if ours is None or theirs is None:
        return False
    bare, wanted = bare_key(ours), bare_key(theirs)
    assert bare is not None and wanted is not None
    if bare != ours and wanted != theirs and ours.removeprefix(bare) != theirs.removeprefix(wanted):
        return False
    return bare == wanted or _near(bare, wanted, answer, reference)


def _near(ours: str, theirs: str, answer: str, reference: str) -> bool:
    """The same structure of numbers, each equal, or equal when rounded as the reference, or else as the answer, is written."""
    if _ATOM.sub("#", ours) != _ATOM.sub("#", theirs):
        return False
    rows = [[Fraction(found[1] or found[2]) for found in _ATOM.finditer(key)] for key in (ours, theirs)]
    if ours.startswith("set {"):
        rows = [sorted(row) for row in rows]
    decimals = [_decimals(text) for text in (answer, reference)]
    return bool(rows[0]) and all(_close(one, other, *decimals) for one, other in zip(*rows, strict=True))


def _close(ours: Fraction, theirs: Fraction, written: dict[Fraction, int], true: dict[Fraction, int]) -> bool:
    if ours == theirs:
        return True
    digits = true.get(abs(theirs))
    if digits is None:
        digits = written.get(abs(ours), 0)
        return digits >= _SHORTENED and theirs.denominator > 1 and abs(ours - theirs) * 2 * 10**digits <= 1
    return digits >= _ROUNDED and theirs != 0 and abs(ours - theirs) * 2 * 10**digits <= 1


def _decimals(text: str) -> dict[Fraction, int]:
    """Digits behind the point of each decimal in a text."""
    plain = _THOUSANDS.sub("", clean(text))
    return {Fraction(f"{found[1] or 0}.{found[2]}"): len(found[2]) for found in _DECIMAL.finditer(plain)}


# Short answers against accepted phrasings, as text in lower case with single spaces: no mathematics, no LaTeX.


def matches(prediction: str, accepted: Iterable[str]) -> bool:
    """True if the prediction contains one of the accepted phrasings."""
    said = _normalized(prediction)
    wanted = [text for text in map(_normalized, accepted) if text]
    return bool(said) and any(text in said for text in wanted)


def token_f1(prediction: str, accepted: Iterable[str]) -> float:
    """Best F1, in [0, 1], of the prediction's words against those of an accepted phrasing.

    Different words are counted that both have; precision and recall are shares of all words of each (skillrl's `SimpleQAEnv`).
    """
    said = _normalized(prediction).split()
    best = 0.0
    for text in accepted:
        wanted = _normalized(text).split()
        common = len({*said} & {*wanted})
        if common:
            precision, recall = common / len(said), common / len(wanted)
            best = max(best, 2 * precision * recall / (precision + recall))
    return best


def _normalized(text: str) -> str:
    return " ".join(text.lower().split())


# Checks: conditions on one unknown `x`, such as `x + 7 = 25`, that judge an answer without a reference.
#
# An answer's value takes the place of x in the text of each condition, and `canonicals` decides the difference of the two sides: with its
# limits on length, time and memory, and remembered as it remembers answers. Only one number can satisfy a check: an answer that holds
# a letter, several values, an infinity or something undefined does not, and neither does one that stays undecided.

Condition = tuple[str, str, str]
"""(left, sign, right), as texts."""
_PARTS = re.compile(r"[;\n]|,\s")
_SIGN = re.compile(r"(<=|>=|!=|==|[=<>]|\\(?:leq?|geq?|neq?)(?![a-zA-Z]))")
_WRITTEN = {"==": "=", "\\le": "<=", "\\leq": "<=", "\\ge": ">=", "\\geq": ">=", "\\ne": "!=", "\\neq": "!="}
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
