"""Grading: the score of an answer against a reference, and the rule that decided it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from skill_ttrl.answers.equivalence import canonicals, verdict
from skill_ttrl.answers.extract import (
    Answer,
    Extraction,
    ExtractionRule,
    answer_text,
    find_answer,
    find_conclusion,
    true_answer,
)
from skill_ttrl.answers.latex.normalise import clean, plain
from skill_ttrl.answers.latex.spans import last_formula
from skill_ttrl.answers.lenient import accepts
from skill_ttrl.types.thoughts import content

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


FORMAT_WEIGHTS = {"skill_ops": 0.33, "solution": 0.33, "answer": 0.34}
"""Weights of the tags in `GradedText.format_score` (the first Skill-TTRL's)."""


class GradedText(Grade):
    """Grade of a whole text."""

    extraction: ExtractionRule | None
    """Where in the text the answer was found."""
    format_score: NotRequired[float]
    """Weights of the tags that the text opens and closes (`FORMAT_WEIGHTS`), in [0, 1]; with `format_weight` alone."""


def grade_answer(answer: Answer, reference: Answer) -> Grade:
    """Compare one answer with the reference, each a text or a number. A missing or empty one, or a reference `NaN`, scores 0.

    More is accepted than `equivalent` holds together: see `lenient` and docs/answers.md.

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
    accepted = {pair for pair, taken in zip(open_pairs, accepts(open_pairs), strict=True) if taken}
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


def compute_reward(
    text: str, ground_truth: Answer, *, last_number: bool = False, format_weight: float = 0.0
) -> GradedText:
    r"""Extract the answer of a whole text and grade it.

    Where no mark of `extract` stands, the answer is the text itself if it is nothing but mathematics (`whole`), else its last
    formula (`formula`) or, if that comes later, the number of a concluding sentence (`conclusion`). A ground truth may be a whole solution: then its marked answer is the reference.

    An answer of words that is not the reference is its formula ("the number $9$"), unless the words may deny it.

    Args:
        text: a response.
        ground_truth: the true answer, a text or a number, or a solution with a mark of `extract` (a box, "answer is", GSM8K's "####").
        last_number: as in `extract`, where there is no formula either.
        format_weight: share of the score, in [0, 1], that is `format_score` in place of the answer's own.
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
    graded: GradedText = {
        "score": grade["score"],
        "match_type": grade["match_type"],
        "predicted_answer": grade["predicted_answer"],
        "extraction": found.rule if found else None,
    }
    if format_weight:
        form = sum(weight for tag, weight in FORMAT_WEIGHTS.items() if f"<{tag}>" in said and f"</{tag}>" in said)
        graded["format_score"] = form
        graded["score"] = (1 - format_weight) * grade["score"] + format_weight * form
    return graded


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
