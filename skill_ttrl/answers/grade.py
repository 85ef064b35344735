"""What an answer earns against a reference, and by which rule that was decided."""

from __future__ import annotations

from typing import Literal, TypedDict

from skill_ttrl.answers.equivalence import canonical, normalise
from skill_ttrl.answers.extract import extract

MatchType = Literal["exact", "numeric", "string", "none"]


class Grade(TypedDict):
    """Verdict on an answer."""

    score: float
    """1.0 for the same answer, else 0.0."""
    match_type: MatchType
    """Rule that decided: identical text, equal number, equal normalised text, or none."""


class GradedText(Grade):
    """Verdict on a whole text."""

    predicted_answer: str | None


def grade_answer(answer: str | None, reference: str) -> Grade:
    """Compare one answer with the reference. A missing or empty answer scores 0, whatever the reference."""
    key = canonical(answer)
    if answer is None or key is None or key != canonical(reference):
        return {"score": 0.0, "match_type": "none"}
    if key.startswith("number ") and normalise(answer) != normalise(reference):
        return {"score": 1.0, "match_type": "numeric"}
    if answer.strip() == reference.strip():
        return {"score": 1.0, "match_type": "exact"}
    return {"score": 1.0, "match_type": "string"}


def compute_reward(text: str, ground_truth: str) -> GradedText:
    """Extract the answer of a whole text and grade it."""
    answer = extract(text)
    grade = grade_answer(answer, ground_truth)
    return {"score": grade["score"], "match_type": grade["match_type"], "predicted_answer": answer}
