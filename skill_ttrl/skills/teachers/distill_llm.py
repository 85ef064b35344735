"""The questions of distillation: general principles, skills by type of task, mistakes to avoid (SkillRL, arXiv 2602.08234,
section 3).

One question for the principles, one for each type, one for the mistakes, all at once. A question shows successes and failures
as `DistillConfig` says, as many as have room; what has none is said. Under `on_failure: heuristic` the part of a question
without a usable answer is done by counting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from skill_ttrl.config import DistillConfig
from skill_ttrl.errors import EndpointError
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.querying import LLMQuerier, attribute
from skill_ttrl.skills.teachers.asking_cases import (
    WrittenSkill,
    draft_of,
    first_drafts,
    room_for_cases,
    rules,
    shown_cases,
)
from skill_ttrl.skills.teachers.cases import NO_TYPE, round_robin
from skill_ttrl.skills.teachers.wins import distilled as counted
from skill_ttrl.skills.types import Case, Draft, TeacherResult
from skill_ttrl.types import Message, Tier

GENERAL, TASK, MISTAKE = "distill_general", "distill_task", "distill_mistake"
REQUEST = "distill_request"
TEMPLATES = (GENERAL, TASK, MISTAKE, REQUEST)


class SkillsAnswer(BaseModel):
    """The teacher's answer: a list of skills, which may be empty."""

    model_config = ConfigDict(extra="forbid")
    from_list: ClassVar[bool] = True
    """A list alone, without the object around it, is an answer too (`llm.structured.read_json`)."""
    skills: list[WrittenSkill]

    @model_validator(mode="before")
    @classmethod
    def _a_list_alone(cls, answer: Any) -> Any:
        return {"skills": answer} if isinstance(answer, list) else answer


@dataclass(frozen=True, slots=True)
class DistillQuestion:
    """One question: its messages, and the skills that its answer is for."""

    tier: Tier
    task_type: str
    most: int
    """Most skills that are taken from the answer."""
    messages: tuple[Message, ...]
    cases: tuple[Case, ...]
    """Episodes that it shows, number 1 first."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in notes."""
        by_tier = {"general": "general principles", "mistake": "mistakes", "task": f"skills of {self.task_type!r}"}
        return by_tier[self.tier]

    def draft_of(self, entry: WrittenSkill) -> tuple[Draft | None, str]:
        """The draft of an entry of its answer, or None and why it is refused."""
        return draft_of(entry, self.cases, tier=self.tier, task_type=self.task_type)


def distilled(asking: LLMQuerier, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
    """Skills from episodes in the words of a language model.

    Raises:
        EndpointError: a question came to nothing, under `on_failure: stop`.
        BudgetError: what may be spent is spent.
    """
    questions, notes = questions_of(cases, config, asking.templates)
    drafts: list[Draft] = []
    failed = 0
    answers = asking.ask([each.messages for each in questions], SkillsAnswer)
    for question, answer in zip(questions, answers, strict=True):
        notes += question.notes
        if not isinstance(answer, EndpointError):
            taken, refused = first_drafts(map(question.draft_of, answer.skills), question.most)
            drafts += taken
            notes += [f"{question.name}: {problem}" for problem in refused]
            continue
        failed += 1
        if asking.on_failure == "heuristic":
            notes.append(f"{question.name}: no usable answer, so they are counted instead (heuristic). {answer}")
            drafts += _counted(question, cases, config)
        else:
            notes.append(f"{question.name}: left out, there is no usable answer. {answer}")
    return TeacherResult(tuple(drafts), tuple(notes), requests=len(questions), failed=failed)


def questions_of(
    cases: Sequence[Case], config: DistillConfig, templates: Templates
) -> tuple[list[DistillQuestion], list[str]]:
    """The questions that episodes lead to, and why one is not asked."""
    by_type: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_type[case.task_type].append(case)
    chosen = {kind: _chosen(by_type[kind], config) for kind in sorted(by_type)}
    notes = [f"{kind or NO_TYPE}: {_missing(found)}" for kind, found in by_type.items() if _missing(found)]
    turns = round_robin(chosen.values())
    lost = [case for case in turns if not case.won]
    wanted = [(GENERAL, "general", "", config.max_general, turns)]
    wanted += [(TASK, "task", kind, config.max_specific, found) for kind, found in chosen.items() if kind]
    wanted.append((MISTAKE, "mistake", "", config.max_mistakes, lost))
    questions = []
    for template, tier, kind, most, shown in wanted:
        if not most or not shown:
            continue
        found = _question(templates, template, tier, kind, most, shown, config)  # type: ignore[arg-type]  # tiers are named above
        if found.cases:
            questions.append(found)
        else:
            notes.append(
                f"{found.name}: not asked, no episode has room in distill.prompt_max_tokens={config.prompt_max_tokens}."
            )
    return questions, notes


def _question(
    templates: Templates, template: str, tier: Tier, kind: str, most: int, cases: Sequence[Case], config: DistillConfig
) -> DistillQuestion:
    more = {"task_type": attribute(kind)} if template == TASK else {}
    system = rules(templates, template, most, **more)

    def request(episodes: str) -> Message:
        return Message("user", templates.render(REQUEST, episodes=episodes))

    room = room_for_cases(config.prompt_max_tokens, (system, request("-")), SkillsAnswer)
    shown = shown_cases(cases, last_steps=config.last_steps, tokens=room)
    found = DistillQuestion(tier, kind, most, (system, request(shown.text)), shown.cases)
    if not shown.left_out:
        return found
    said = f"{shown.left_out} of {len(cases)} episodes have no room in distill.prompt_max_tokens={config.prompt_max_tokens}."
    return replace(found, notes=(f"{found.name}: {said}",))


def _chosen(cases: Sequence[Case], config: DistillConfig) -> list[Case]:
    """Successes and failures by turns: of different tasks first, the short successes and the long failures first."""
    won = _varied(sorted((each for each in cases if each.won), key=lambda case: (len(case.steps), case.task_id)))
    lost = _varied(sorted((each for each in cases if not each.won), key=lambda case: (-len(case.steps), case.task_id)))
    return round_robin([won[: config.successes], lost[: config.failures]])


def _varied(cases: Iterable[Case]) -> list[Case]:
    seen: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        seen[case.task_id].append(case)
    return round_robin(seen.values())


def _missing(cases: Sequence[Case]) -> str:
    won = sum(case.won for case in cases)
    if won == len(cases):
        return f"none of {won} episodes failed; the teacher is shown successes only."
    return f"none of {len(cases)} episodes succeeded; the teacher is shown failures only." if not won else ""


def _counted(question: DistillQuestion, cases: Sequence[Case], config: DistillConfig) -> list[Draft]:
    """The drafts that the question asked for, by counting; of a type alone, whatever it shares with others."""
    own = [case for case in cases if question.tier != "task" or case.task_type == question.task_type]
    return [each for each in counted(own, config).drafts if each.tier == question.tier]
