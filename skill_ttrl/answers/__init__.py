"""Answers: how they are found in a text, when two of them are the same, and what an answer earns against a reference.

Every reward and every vote passes through here. Two answers are the same exactly when their `canonical` keys are, so
equality is reflexive, symmetric and transitive and a vote does not depend on the order of the samples.

    extract.py      a text → its answer
    normalise.py    an answer → cleaned text
    numbers.py      cleaned text → an exact fraction
    grammar.py      cleaned text → a tree (tokens.py: its words; shapes.py: names and symbols in it)
    keys.py         a tree → the key of its class; symbolic.py says what a value is, in the process of worker.py
    verdicts.py     all of it in order, remembered and journalled; pool.py holds the worker
    grade.py        an answer against a reference
"""

from skill_ttrl.answers.equivalence import equivalent
from skill_ttrl.answers.extract import Extraction, extract, find_answer
from skill_ttrl.answers.grade import Grade, GradedText, compute_reward, grade_answer
from skill_ttrl.answers.verdicts import Verdict, canonical, canonicals, counters, journal, verdict

__all__ = [
    "Extraction",
    "Grade",
    "GradedText",
    "Verdict",
    "canonical",
    "canonicals",
    "compute_reward",
    "counters",
    "equivalent",
    "extract",
    "find_answer",
    "grade_answer",
    "journal",
    "verdict",
]
