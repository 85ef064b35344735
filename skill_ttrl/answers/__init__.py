"""Answers: how they are found in a text, when two of them are the same, and what an answer earns against a reference.

Every reward and every vote passes through here. Two answers are the same exactly when their `canonical` forms are, so
equality is reflexive, symmetric and transitive and a vote does not depend on the order of the samples.
"""

from skill_ttrl.answers.equivalence import canonical, canonicals, equivalent
from skill_ttrl.answers.extract import extract
from skill_ttrl.answers.grade import Grade, GradedText, compute_reward, grade_answer

__all__ = ["Grade", "GradedText", "canonical", "canonicals", "compute_reward", "equivalent", "extract", "grade_answer"]
