"""Answers: how they are found in a text, when two of them are the same, and what an answer earns against a reference.

Every reward and every vote passes through here. Two answers are the same exactly when their `canonical` keys are, so
equality is reflexive, symmetric and transitive and a vote does not depend on the order of the samples. Grading against a
reference accepts more.

    extract.py      a text → its answer → cleaned text; boxes and formulas
    units.py        cleaned text → an exact fraction; the same without its unit, and the unit
    grammar.py      cleaned text → a tree
    keys.py         a tree → the key of its class; symbolic.py says what a value is, in the process of worker.py
    equivalence.py  all of it in order: which answers are the same, remembered and persisted; `Pool` runs the worker
    grade.py        an answer against a reference, with what is accepted there and is no equivalence; or against conditions, without one
"""

from skill_ttrl.answers.equivalence import (
    EquivalenceResult,
    bare_key,
    canonical,
    canonicals,
    counters,
    equivalent,
    persist_cache,
    verdict,
    without_units,
)
from skill_ttrl.answers.extract import Answer, Extraction, answer_text, extract, find_answer, stands_in, true_answer
from skill_ttrl.answers.grade import Grade, GradedText, compute_reward, conditions, correct, grade_answer, satisfied

__all__ = [
    "Answer",
    "EquivalenceResult",
    "Extraction",
    "Grade",
    "GradedText",
    "answer_text",
    "bare_key",
    "canonical",
    "canonicals",
    "compute_reward",
    "conditions",
    "correct",
    "counters",
    "equivalent",
    "extract",
    "find_answer",
    "grade_answer",
    "persist_cache",
    "satisfied",
    "stands_in",
    "true_answer",
    "verdict",
    "without_units",
]
