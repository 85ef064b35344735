"""What an answer earns against a reference, and by which rule that was decided."""

from __future__ import annotations

from typing import Literal, TypedDict

from skill_ttrl.answers.extract import ExtractionRule, find_answer
from skill_ttrl.answers.normalise import clean, plain
from skill_ttrl.answers.verdicts import verdict

MatchType = Literal["exact", "string", "numeric", "symbolic", "none"]


class Grade(TypedDict):
    """Verdict on an answer."""

    score: float
    """1.0 for the same answer, else 0.0."""
    match_type: MatchType
    """What made them the same, the first that did: identical text, equal normalised text, equal number (or several), equal
    expression; or none."""
    predicted_answer: str | None
    """The answer that was graded."""


class GradedText(Grade):
    """Verdict on a whole text."""

    extraction: ExtractionRule | None
    """Where in the text the answer was found."""


def grade_answer(answer: str | None, reference: str) -> Grade:
    """Compare one answer with the reference. A missing or empty answer scores 0, whatever the reference."""
    found, true = verdict(answer), verdict(reference)
    if answer is None or found is None or true is None or found.key != true.key:
        return {"score": 0.0, "match_type": "none", "predicted_answer": answer}
    match: MatchType = "symbolic"
    if answer.strip() == reference.strip():
        match = "exact"
    elif found.rule == "text" or plain(clean(answer)) == plain(clean(reference)):
        match = "string"
    elif "symbolic" not in (found.rule, true.rule):
        match = "numeric"
    return {"score": 1.0, "match_type": match, "predicted_answer": answer}


def compute_reward(text: str, ground_truth: str, *, last_number: bool = False) -> GradedText:
    """Extract the answer of a whole text and grade it; `last_number` as in `extract`."""
    found = find_answer(text, last_number=last_number)
    grade = grade_answer(found.answer if found else None, ground_truth)
    return {**grade, "extraction": found.rule if found else None}
