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

from skill_ttrl.answers.equivalence import EquivalenceResult as EquivalenceResult
from skill_ttrl.answers.equivalence import bare_key as bare_key
from skill_ttrl.answers.equivalence import canonical as canonical
from skill_ttrl.answers.equivalence import canonicals as canonicals
from skill_ttrl.answers.equivalence import counters as counters
from skill_ttrl.answers.equivalence import equivalent as equivalent
from skill_ttrl.answers.equivalence import persist_cache as persist_cache
from skill_ttrl.answers.equivalence import verdict as verdict
from skill_ttrl.answers.equivalence import without_units as without_units
from skill_ttrl.answers.extract import Answer as Answer
from skill_ttrl.answers.extract import Extraction as Extraction
from skill_ttrl.answers.extract import answer_text as answer_text
from skill_ttrl.answers.extract import extract as extract
from skill_ttrl.answers.extract import find_answer as find_answer
from skill_ttrl.answers.extract import stands_in as stands_in
from skill_ttrl.answers.extract import true_answer as true_answer
from skill_ttrl.answers.grade import Grade as Grade
from skill_ttrl.answers.grade import GradedText as GradedText
from skill_ttrl.answers.grade import compute_reward as compute_reward
from skill_ttrl.answers.grade import conditions as conditions
from skill_ttrl.answers.grade import correct as correct
from skill_ttrl.answers.grade import grade_answer as grade_answer
from skill_ttrl.answers.grade import satisfied as satisfied
