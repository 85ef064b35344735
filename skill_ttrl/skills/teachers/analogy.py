"""Skills for a type of task that nobody has won yet, by analogy: a skill of another type, with an action that failures were offered.

Failures alone do not say what would have won. They do show which actions were possible, in the words of the environment, and the bank
shows what skills look like. So each offered action that names something of the task takes the place of a step of the same shape in a
skill of another type: `clean X with sinkbasin` becomes `polish X with shelf`, and so does every step with its words. What comes of it has only
steps that were offered. These are guesses: first come actions that no skill names, and of these the one that most failures were offered and
did not take. A gate (`skills.gate`) has to decide on them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from skill_ttrl.config import EvolveConfig
from skill_ttrl.skills.teachers.actions import GAP, PLACEHOLDERS, Forms, names_task, words
from skill_ttrl.skills.teachers.findings import MIN_EPISODES, reads_like, task_ids
from skill_ttrl.skills.types import Case, Draft, TeacherResult
from skill_ttrl.types import Skill, Step

_QUOTED = re.compile(r"`([^`\n]{1,80})`")
_WORD = re.compile(r"[^\W_]+")


def evolved_by_analogy(failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
    """See `Teacher.evolve`, but for the bound: the drafts are all there are, the likeliest first, and whoever admits them takes the
    first `config.max_new_skills` that were not rejected before.

    Nothing is drafted for a type that the bank has a skill for, nor from episodes without listed actions.
    """
    by_type: dict[str, list[Case]] = defaultdict(list)
    for case in failures:
        by_type[case.task_type].append(case)
    known = [skill for skill in skills if skill.tier == "task" and skill.task_type]
    drafts: dict[tuple[str, str], Draft] = {}
    for kind, cases in by_type.items():
        if kind and all(skill.task_type != kind for skill in known):
            for draft in _analogies(kind, cases, known):
                drafts.setdefault((kind, draft.text), draft)
    return TeacherResult(tuple(drafts.values()))


def _analogies(kind: str, cases: Sequence[Case], skills: Sequence[Skill]) -> Iterator[Draft]:
    holders: dict[str, list[Case]] = defaultdict(list)
    taken: Counter[str] = Counter()
    forms = Forms(_doing(case, _offered(case)) for case in cases)
    for case in cases:
        for form in _named_forms(forms, case, _offered(case)):
            holders[form].append(case)
        taken.update(_named_forms(forms, case, {step.action for step in case.steps}))
    known = {_wide(step) for skill in skills for step in _QUOTED.findall(skill.text)}
    possible = {words(action) for case in cases for action in _offered(case)}
    likely = sorted(
        (form for form in holders if len(holders[form]) >= MIN_EPISODES),
        key=lambda form: (_wide(form) in known, taken[form] - len(holders[form]), form),
    )
    when = reads_like(forms, cases)
    for form in likely:
        for skill in skills:
            for step in _QUOTED.findall(skill.text):
                if _shape(step) == _shape(form):
                    text = _reworded(skill.text, dict(zip(step.split(), form.split(), strict=True)))
                    if all(_is_possible(each, possible) for each in _QUOTED.findall(text)):
                        yield Draft(skill.title, text, when, "task", kind, evidence=task_ids(holders[form]))


def _doing(case: Case, actions: set[str]) -> Case:
    """The episode with these actions for steps."""
    return replace(case, steps=tuple(Step("", action, 0.0, False, False) for action in sorted(actions)))


def _named_forms(forms: Forms, case: Case, actions: set[str]) -> list[str]:
    """Forms of those of the actions that name something of the task, in order."""
    found = (forms.of(case, action) for action in actions)
    return sorted({form.text for form in found if form is not None and names_task(form.text)})


def _offered(case: Case) -> set[str]:
    """The actions that were possible at some step of an episode."""
    return {action for step in case.steps for action in step.admissible_actions}


def _shape(step: str) -> tuple[str, ...]:
    """The step with its placeholders and gaps alone: steps of one shape can stand for each other."""
    return tuple(word if word in (*PLACEHOLDERS, GAP) else "" for word in step.split())


def _wide(step: str) -> str:
    """The step with any thing in the place of what the task names."""
    return " ".join(GAP if word in PLACEHOLDERS else word for word in step.split())


def _is_possible(step: str, possible: Collection[tuple[str, ...]]) -> bool:
    """True if some offered action reads like the step."""
    wanted = _wide(step).split()
    return any(
        len(action) == len(wanted) and all(own in (GAP, word) for own, word in zip(wanted, action, strict=True))
        for action in possible
    )


def _reworded(text: str, names: Mapping[str, str]) -> str:
    """The text with other words in its steps."""
    return _QUOTED.sub(lambda step: _WORD.sub(lambda word: names.get(word[0], word[0]), step[0]), text)
