"""What failed episodes do again and again, found without a language model and in any environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from skill_ttrl.config import EvolveConfig
from skill_ttrl.skills.heuristic_teacher import evolved_by_counting
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.skills.types import Case
from skill_ttrl.types import ActionStatus, Skill, Step

CONFIG = EvolveConfig(max_new_skills=9)
Turn = tuple[str, str]
"""What was seen, what was done."""


def case(
    *turns: Turn, end: str = "the end", task: str = "put a clean mug in the cabinet", kind: str = "clean", name: str = "t",
    verdict: ActionStatus = "valid", ended: bool = False,
) -> Case:  # fmt: skip
    steps = [Step(seen, done, 0.0, False, False, action_status=verdict) for seen, done in turns]
    steps[-1] = replace(steps[-1], terminated=ended)
    return Case(name, task, kind, False, tuple(steps), end)


def walk(*places: str) -> list[Turn]:
    return [
        (f"You are at {before}.", f"go to {after}") for before, after in zip(("start", *places), places, strict=False)
    ]


def drafted(cases: Sequence[Case], *skills: Skill, config: EvolveConfig = CONFIG) -> list[str]:
    found = make_teacher("heuristic").evolve(cases, skills, config)
    assert found == make_teacher("heuristic").evolve(cases, skills, config) and not found.requests
    return [draft.title for draft in found.drafts]


STUCK = case(*[("A page.", "click[next]")] * 4, end="A page.", task="")
CIRCLES = case(*walk(*"ABCABCABCABC"), end="You are at C.", task="")
MALFORMED = case(*[(f"room {place}", f"I think {place}") for place in "abc"], verdict="invalid", task="")
PASSING = case(
    ("a hall", "go to shelf 1"), ("On the shelf 1 is a mug 2.", "go to desk 1"), end="On the desk 1 is a pen 1."
)
FINE = case(*walk(*"ABCDEF"), end="You are at F.")


@pytest.mark.parametrize(
    ("faulty", "title"),
    [
        (STUCK, "Repeat an action that changed nothing"),
        (CIRCLES, "Go back to what was already looked at"),
        (MALFORMED, "Write an action that cannot be read or is not possible"),
        (PASSING, "Pass by what the task names"),
    ],
)
def test_a_fault_that_most_failures_share_is_drafted_as_a_mistake(faulty: Case, title: str) -> None:
    cases = [replace(faulty, task_id="t1"), replace(faulty, task_id="t2"), replace(FINE, task_id="t3")]
    assert drafted(cases) == [title]
    (draft,) = evolved_by_counting(cases, [], CONFIG).drafts
    assert (draft.tier, draft.task_type, draft.evidence) == ("mistake", "", ("t1", "t2"))
    assert draft.text and draft.when_to_apply and not any(sign.isdigit() for sign in draft.text)


def test_a_skill_that_names_what_failures_never_came_to_gets_a_better_text() -> None:
    """The kind of action is known because failures of another type did it, or because the skill quotes it."""
    skill = Skill("c1", "Clean it", "Take it, clean it with the sink, put it away.", "always", task_type="clean")
    other = [case(("a sink", "clean mug 1 with sink 1"), kind="other", name="o", task="")] * 2
    (draft,) = evolved_by_counting([FINE, FINE, *other], [skill], CONFIG).drafts
    assert draft.base == "c1" and draft.text.startswith(skill.text) and "any `clean`" in draft.text
    assert (draft.title, draft.when_to_apply, draft.task_type) == (skill.title, "always", "clean")
    again = replace(skill, text=draft.text)
    assert drafted([FINE, FINE, *other], again) == [], "it is said once"
    assert drafted([FINE, FINE], skill) == [], "nobody knows that it is an action"
    quoting = replace(skill, text="Take it, then `clean {it} with {sink}`.")
    assert drafted([FINE, FINE], quoting) == ["Clean it"]
    warning = replace(skill, text="Do not clean it.")
    assert drafted([FINE, FINE, *other], warning) == []
    assert drafted([FINE, FINE, *other], replace(skill, task_type="heat")) == []
