"""The question that failures lead to: new and better skills (SkillRL, arXiv 2602.08234, section 3).

One question a look: the last steps of the failures, and the skills of the bank that these episodes may have been shown, with their
record. What comes back is checked entry by entry: one that names a skill or an episode that was not shown, or a type of task that
nothing failed at, is refused with its reason, and the others stand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, model_validator

from skill_ttrl.config import EvolveConfig
from skill_ttrl.errors import EndpointError
from skill_ttrl.llm.openai.replies import tokens_in_text
from skill_ttrl.skills.changes import TIERS, quote
from skill_ttrl.skills.querying import TEXT_CHARS, LLMQuerier, fenced
from skill_ttrl.skills.teachers.asking_cases import (
    WrittenSkill,
    draft_of,
    first_drafts,
    room_for_cases,
    rules,
    shown_cases,
)
from skill_ttrl.skills.teachers.failures import evolved_by_counting
from skill_ttrl.skills.types import Case, Draft, TeacherResult
from skill_ttrl.types import Message, Skill, Tier

RULES, REQUEST = "evolve", "evolve_request"
TEMPLATES = (RULES, REQUEST)
SKILLS_SHARE = 0.5
"""Of the room of a question, the bank's skills take so much at most; the failures have the rest."""


class NewSkill(WrittenSkill):
    """A skill for the bank."""

    tier: str = "task"
    task_type: str = ""


class BetterSkill(WrittenSkill):
    """A text that takes the place of a skill's."""

    base: str


class EvolveAnswer(BaseModel):
    """The teacher's answer. Both lists may be empty; one that is left out is empty."""

    model_config = ConfigDict(extra="forbid")
    from_list: ClassVar[bool] = True
    """A list alone is one of new skills, as SkillRL's teacher was asked for."""
    new_skills: list[NewSkill]
    changed_skills: list[BetterSkill]

    @model_validator(mode="before")
    @classmethod
    def _lists_may_be_left_out(cls, answer: Any) -> Any:
        if isinstance(answer, list):
            return {"new_skills": answer, "changed_skills": []}
        if not isinstance(answer, dict) or not answer.keys() & cls.model_fields.keys():
            return answer
        return {name: [] for name in cls.model_fields} | {
            key: [] if each is None else each for key, each in answer.items()
        }


@dataclass(frozen=True, slots=True)
class EvolveQuestion:
    """One question, and the episodes and skills that its answer may name."""

    messages: tuple[Message, ...]
    cases: tuple[Case, ...]
    """Failures that it shows, number 1 first; without any, there is nothing to ask."""
    skills: Mapping[str, Skill]
    """Skills that it shows whole, by id."""
    notes: tuple[str, ...] = ()


def evolved_by_asking(
    asking: LLMQuerier, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig
) -> TeacherResult:
    """See `Teacher.evolve`.

    Raises:
        EndpointError: the request came to nothing, under `on_failure: stop`.
        BudgetError: what may be spent is spent.
    """
    question = question_of(asking, failures, skills, config)
    if not question.cases:
        return TeacherResult(notes=question.notes)
    (answer,) = asking.ask([question.messages], EvolveAnswer)
    if not isinstance(answer, EndpointError):
        drafts, refused = _taken(answer, question, config.max_new_skills)
        return TeacherResult(drafts, (*question.notes, *refused), requests=1)
    if asking.on_failure == "heuristic":
        notes = (*question.notes, f"no usable answer, so the failures are counted instead (heuristic). {answer}")
        return TeacherResult(evolved_by_counting(failures, skills, config).drafts, notes, requests=1, failed=1)
    return TeacherResult(notes=(*question.notes, f"there is no usable answer. {answer}"), requests=1, failed=1)


def question_of(
    asking: LLMQuerier, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig
) -> EvolveQuestion:
    """The question that failures lead to, within `evolve.prompt_max_tokens`; what has no room is noted."""
    system = rules(asking.templates, RULES, config.max_new_skills)

    def request(bank: str, episodes: str) -> Message:
        return Message("user", asking.templates.render(REQUEST, skills=bank or "none", episodes=episodes))

    room = room_for_cases(config.prompt_max_tokens, (system, request("-", "-")), EvolveAnswer)
    types = list(dict.fromkeys(case.task_type for case in failures))
    near = in_view(skills, types)
    whole = _with_room(near, int(SKILLS_SHARE * room))
    bank = "\n".join(whole.values())
    cases = shown_cases(failures, last_steps=config.last_steps, tokens=room - tokens_in_text(bank))
    notes = []
    if len(whole) < len(near):
        notes.append(
            f"{len(near) - len(whole)} of {len(near)} skills had no room in evolve.prompt_max_tokens={config.prompt_max_tokens}"
        )
    if cases.left_out:
        notes.append(
            f"{cases.left_out} of {len(failures)} failures had no room in evolve.prompt_max_tokens={config.prompt_max_tokens}"
        )
    by_id = {skill.id: skill for skill in near if skill.id in whole}
    return EvolveQuestion((system, request(bank, cases.text)), cases.cases, by_id, tuple(notes))


def in_view(skills: Sequence[Skill], types: Sequence[str]) -> list[Skill]:
    """The skills that episodes of these types may have been shown: those of their types, in that order, then those for any."""
    of_type = [
        skill for kind in types if kind for skill in skills if skill.tier != "general" and skill.task_type == kind
    ]
    taken = {skill.id for skill in of_type}
    for_any = [skill for skill in skills if skill.id not in taken and (skill.tier == "general" or not skill.task_type)]
    return [*of_type, *for_any]


def _with_room(skills: Sequence[Skill], tokens: int) -> dict[str, str]:
    """Skills by id as the question shows them, in order, as many as have room; one that is too long to be shown whole has none."""
    found: dict[str, str] = {}
    left = tokens
    for skill in skills:
        if len(skill.text) > TEXT_CHARS:
            continue
        when = f"\nWhen to apply: {skill.when_to_apply}" if skill.when_to_apply else ""
        facts = {"id": skill.id, "tier": skill.tier, "task_type": skill.task_type or "any", "title": skill.title}
        record = {"uses": skill.stats.uses, "successes": skill.stats.successes}
        inside = f"{skill.text}{when}"
        text = fenced("skill", inside, len(inside), **facts, **record)
        if tokens_in_text(text) + 1 <= left:
            found[skill.id] = text
            left -= tokens_in_text(text) + 1
    return found


def _taken(answer: EvolveAnswer, question: EvolveQuestion, most: int) -> tuple[tuple[Draft, ...], list[str]]:
    """The drafts of an answer, changed skills first, `most` in all; and why entries are refused."""
    types = {case.task_type for case in question.cases}
    read = [_better(entry, question) for entry in answer.changed_skills]
    read += [_new(entry, question, types) for entry in answer.new_skills]
    found, refused = first_drafts(read, most)
    return tuple(found), refused


def _better(entry: BetterSkill, question: EvolveQuestion) -> tuple[Draft | None, str]:
    skill = question.skills.get(entry.base.strip().removeprefix("#"))
    if skill is None:
        return None, f"the teacher's text for {quote(entry.base)}: the teacher was not shown such a skill"
    return draft_of(entry, question.cases, tier=skill.tier, task_type=skill.task_type, base=skill.id)


def _new(entry: NewSkill, question: EvolveQuestion, types: Collection[str]) -> tuple[Draft | None, str]:
    said = f"the teacher's skill {quote(entry.title or entry.text)}"
    tier, kind = entry.tier.strip().lower(), entry.task_type.strip()
    if tier not in TIERS:
        return None, f"{said}: a tier is one of {', '.join(TIERS)}, found {quote(entry.tier)}"
    kind = "" if kind in ("any", "all") or tier == "general" else kind
    if kind and kind not in types:
        return None, f"{said}: no episode that was shown is of the type {quote(kind)}"
    if not kind and tier == "task" and len(types) == 1:
        (kind,) = types
    return draft_of(entry, question.cases, tier=cast(Tier, tier), task_type=kind)
