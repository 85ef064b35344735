"""What the teacher is asked when skills are distilled: general principles, skills by type of task, mistakes to avoid (SkillRL,
arXiv 2602.08234, section 3).

One question for the principles, one for each type, one for the mistakes, all at once. A question shows successes and failures
as `DistillConfig` says, as many as have room; what has none is said. Under `on_failure: heuristic` the part of a question
without a usable answer is done by counting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import TypeVar

from skill_ttrl.config import DistillConfig
from skill_ttrl.errors import EndpointError
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.ops import MAX_TITLE
from skill_ttrl.skills.querying import TEXT_CHARS, LLMQuerier, attribute
from skill_ttrl.skills.teachers.llm import SkillsAnswer, draft_of, room_for_cases, shown_cases
from skill_ttrl.skills.teachers.teacher import Case, Draft, TeacherResult, fused
from skill_ttrl.types import Message, Tier

GENERAL, TASK, MISTAKE = "distill_general", "distill_task", "distill_mistake"
REQUEST = "distill_request"
TEMPLATES = (GENERAL, TASK, MISTAKE, REQUEST)
NO_TYPE = "(no type)"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """One question, and what its answer is for."""

    tier: Tier
    task_type: str
    most: int
    """Most skills that are taken from the answer."""
    messages: tuple[Message, ...]
    cases: tuple[Case, ...]
    """Those that it shows, number 1 first."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """How it is called in notes."""
        by_tier = {"general": "general principles", "mistake": "mistakes", "task": f"skills of {self.task_type!r}"}
        return by_tier[self.tier]


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
            drafts += _taken(question, answer, notes)
            continue
        failed += 1
        if asking.on_failure == "heuristic":
            notes.append(f"{question.name}: no usable answer, so they are counted instead (heuristic). {answer}")
            drafts += _counted(question, cases, config)
        else:
            notes.append(f"{question.name}: left out, there is no usable answer. {answer}")
    one_each, fusions = fused(drafts)
    return TeacherResult(tuple(one_each), (*notes, *fusions), requests=len(questions), failed=failed)


def questions_of(
    cases: Sequence[Case], config: DistillConfig, templates: Templates
) -> tuple[list[Question], list[str]]:
    """The questions that episodes lead to, and why one is not asked."""
    by_type: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_type[case.task_type].append(case)
    chosen = {kind: _chosen(by_type[kind], config) for kind in sorted(by_type)}
    notes = [f"{kind or NO_TYPE}: {_missing(found)}" for kind, found in by_type.items() if _missing(found)]
    turns = _in_turn(chosen.values())
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
                f"{found.name}: not asked, no episode has room in distill.prompt_tokens={config.prompt_tokens}."
            )
    return questions, notes


def _question(
    templates: Templates, template: str, tier: Tier, kind: str, most: int, cases: Sequence[Case], config: DistillConfig
) -> Question:
    rules = {"most": str(most), "title_chars": str(MAX_TITLE), "text_chars": str(TEXT_CHARS)}
    if template == TASK:
        rules["task_type"] = attribute(kind)
    system = Message("system", templates.render(template, **rules))

    def asked(episodes: str) -> Message:
        return Message("user", templates.render(REQUEST, episodes=episodes))

    room = room_for_cases(config.prompt_tokens, (system, asked("-")), SkillsAnswer)
    shown = shown_cases(cases, last_steps=config.last_steps, tokens=room)
    found = Question(tier, kind, most, (system, asked(shown.text)), shown.cases)
    if not shown.left_out:
        return found
    said = f"{found.name}: {shown.left_out} of {len(cases)} episodes have no room in distill.prompt_tokens={config.prompt_tokens}."
    return replace(found, notes=(said,))


def _chosen(cases: Sequence[Case], config: DistillConfig) -> list[Case]:
    """Successes and failures by turns: of different tasks first, the short successes and the long failures first."""
    won = _varied(sorted((each for each in cases if each.won), key=lambda case: (len(case.steps), case.task_id)))
    lost = _varied(sorted((each for each in cases if not each.won), key=lambda case: (-len(case.steps), case.task_id)))
    return _in_turn([won[: config.successes], lost[: config.failures]])


def _varied(cases: Iterable[Case]) -> list[Case]:
    seen: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        seen[case.task_id].append(case)
    return _in_turn(seen.values())


def _in_turn(lists: Iterable[Sequence[T]]) -> list[T]:
    nothing = object()
    return [each for each in chain(*zip_longest(*lists, fillvalue=nothing)) if each is not nothing]  # type: ignore[misc]


def _missing(cases: Sequence[Case]) -> str:
    won = sum(case.won for case in cases)
    if won == len(cases):
        return f"none of {won} episodes failed; the teacher is shown successes only."
    return f"none of {len(cases)} episodes succeeded; the teacher is shown failures only." if not won else ""


def _taken(question: Question, answer: SkillsAnswer, notes: list[str]) -> list[Draft]:
    """The drafts of one answer; what is refused is noted with its reason."""
    found: list[Draft] = []
    for entry in answer.skills:
        draft, problem = draft_of(entry, question.cases, tier=question.tier, task_type=question.task_type)
        if draft is not None and len(found) == question.most:
            problem = (
                f"the teacher's skill {draft.title!r}: it is one more than the {question.most} that were asked for"
            )
        elif draft is not None:
            found.append(draft)
        if problem:
            notes.append(f"{question.name}: {problem}")
    return found


def _counted(question: Question, cases: Sequence[Case], config: DistillConfig) -> list[Draft]:
    """What the question asked for, by counting; of a type alone, whatever it shares with others."""
    from skill_ttrl.skills.teachers.wins import distilled as counted

    own = [case for case in cases if question.tier != "task" or case.task_type == question.task_type]
    return [each for each in counted(own, config).drafts if each.tier == question.tier]
