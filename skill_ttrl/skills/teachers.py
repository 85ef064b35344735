"""Teachers: skills from won and lost episodes, and from failures while the policy learns (SkillRL, arXiv 2602.08234, section 3).

`heuristic` counts what winners did and losers did not; `analogy` guesses from failures what helps with a type of task that the bank has
no skill for; `openai` asks a language model. A custom one is named `module:attribute`: any callable without arguments that returns a
`Teacher`.

Distillation asks the language model one question for the principles, one for each type and one for the mistakes, all at once.
Evolution asks one: the last steps of the failures, and the skills of the bank that these episodes may have been shown, with their
record. Texts of episodes go in escaped, between tags that they cannot close, and of bounded length; a note says what has no room. Each
entry of an answer is used as a whole or refused with its reason. Under `on_failure: heuristic` counting does the part of a question
without a usable answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.openai.replies import instruction, tokens_in_text
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import Registry, naming, require_methods
from skill_ttrl.skills.admit import made_title, text_problem
from skill_ttrl.skills.changes import TIERS, quote
from skill_ttrl.skills.heuristic_teacher import (
    cases_by_type,
    distilled,
    evolved_by_analogy,
    evolved_by_counting,
    task_ids,
)
from skill_ttrl.skills.ops import MAX_TITLE
from skill_ttrl.skills.querying import (
    OPENAI,
    TEXT_CHARS,
    ListsAnswer,
    LLMEndpoints,
    LLMQuerier,
    attribute,
    fenced,
    shortened,
)
from skill_ttrl.skills.types import NO_TYPE, Case, Draft, Teacher, TeacherResult, grouped, round_robin
from skill_ttrl.types import Message, Skill, Tier

GENERAL, TASK, MISTAKE = "distill_general", "distill_task", "distill_mistake"
DISTILL_REQUEST = "distill_request"
EVOLVE, EVOLVE_REQUEST = "evolve", "evolve_request"
TEMPLATES = (GENERAL, TASK, MISTAKE, DISTILL_REQUEST, EVOLVE, EVOLVE_REQUEST)
SKILLS_SHARE = 0.5
"""Of the room of a question, the bank's skills take so much at most; the failures have the rest."""
OBSERVATION_CHARS = 400
"""Of each observation of an episode, so many characters (SkillRL: 200)."""
TASK_CHARS = 1000
LAST_STEPS = 5
"""Steps at the end of each episode that a question shows."""
QUESTION_TOKENS = 6000
"""Longest question, at 4 bytes a token (SkillRL's longest prompt); episodes and skills without room are left out, and a note says so."""
ACTION_CHARS = 300


class WrittenSkill(BaseModel):
    """A skill in the teacher's words; a title that is missing is made from the text, all else but the text may be missing too."""

    title: str = ""
    text: str
    when_to_apply: str = ""
    support: list[int] = []
    """Numbers of the episodes that it comes from, as they were shown."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question, and what its answer may name."""

    messages: tuple[Message, ...]
    cases: tuple[Case, ...]
    """Episodes that it shows, number 1 first; without any there is nothing to ask."""
    tier: Tier = "task"
    task_type: str = ""
    most: int = 0
    """Most skills that are taken from the answer."""
    skills: Mapping[str, Skill] = field(default_factory=dict)
    """Skills of the bank that it shows whole, by id."""

    @property
    def name(self) -> str:
        """Its name in notes."""
        by_tier = {"general": "general principles", "mistake": "mistakes", "task": f"skills of {self.task_type!r}"}
        return by_tier[self.tier]


def shown_cases(cases: Iterable[Case], tokens: int) -> tuple[str, tuple[Case, ...]]:
    """As many episodes as have room, in order: their text between tags, numbered from 1, and the episodes.

    Args:
        cases: the most telling first.
        tokens: room for all of them together, in tokens (about 4 bytes each).
    """
    texts: list[str] = []
    shown: list[Case] = []
    for case in cases:
        text = case_text(case, len(shown) + 1)
        size = tokens_in_text(text) + 1
        if size <= tokens:
            texts.append(text)
            shown.append(case)
            tokens -= size
    return "\n".join(texts), tuple(shown)


def case_text(case: Case, number: int) -> str:
    """One episode between tags, from its task to what was seen last."""
    steps = case.steps[-LAST_STEPS:]
    before = len(case.steps) - len(steps)
    lines = [f"Task: {shortened(case.task, TASK_CHARS)}"] if case.task else []
    if before:
        lines.append(f"[{before} earlier steps are left out]")
    for step in steps:
        trouble = "" if step.action_status in (None, "valid") else f" ({step.action_status})"
        lines += [_seen(step.observation), f"Action: {_one_line(step.action, ACTION_CHARS)}{trouble}"]
    if case.final_obs:
        lines.append(_seen(case.final_obs))
    facts = {"n": number, "outcome": "success" if case.won else "failure", "task_type": case.task_type}
    inside = "\n".join(lines)
    # Each part is bounded and escaped; escaped again, as a whole, nothing can close the tag from within.
    return fenced("episode", inside, len(inside), **facts, steps=len(case.steps))


def rules(templates: Templates, template: str, most: int, **more: str) -> Message:
    """The system message of a question: what a skill is, how long, and how many are wanted."""
    limits = {"most": str(most), "title_chars": str(MAX_TITLE), "text_chars": str(TEXT_CHARS)}
    return Message("system", templates.render(template, **limits, **more))


def room_for_cases(question: Sequence[Message], schema: type[BaseModel]) -> int:
    """Tokens that are left of `QUESTION_TOKENS` when everything but the episodes is in it; at least 0."""
    taken = sum(tokens_in_text(each.content) for each in question) + tokens_in_text(instruction(schema))
    return max(0, QUESTION_TOKENS - taken)


def draft_of(
    entry: WrittenSkill, shown_ones: Sequence[Case], *, tier: Tier, task_type: str = "", base: str = ""
) -> Draft | str:
    """The draft of an answer's entry, or why it is refused.

    Args:
        entry: what the teacher wrote.
        shown_ones: the episodes that it was shown, number 1 first.
        tier: what was asked for.
        task_type: what it is for; empty for any.
        base: id of the skill that it takes the place of.
    """
    problem = text_problem(entry.text, TEXT_CHARS)
    beyond = [number for number in entry.support if not 1 <= number <= len(shown_ones)]
    if problem is None and beyond:
        problem = f"it names the episode {quote(beyond[0])} of {len(shown_ones)}"
    if problem is None and len(entry.when_to_apply) > TASK_CHARS:
        problem = f"when to apply it has {len(entry.when_to_apply)} characters, the limit is {TASK_CHARS}"
    if problem is not None:
        return f"the teacher's skill {quote(entry.title or entry.text)}: {problem}"
    named = [shown_ones[number - 1] for number in entry.support] or list(shown_ones)
    return Draft(
        title=" ".join(entry.title.split())[:MAX_TITLE] or made_title(entry.text.strip()),
        text=entry.text.strip(),
        when_to_apply=entry.when_to_apply.strip(),
        tier=tier,
        task_type=task_type,
        base=base,
        evidence=task_ids(named),
    )


def _first(read: Sequence[Draft | str], most: int) -> tuple[list[Draft], list[str]]:
    """The first `most` drafts of an answer that were read (`draft_of`), and why each of the other entries is refused."""
    drafts = [each for each in read if isinstance(each, Draft)]
    more = f"the answer has more than the {most} requested"
    taken = {id(each) for each in drafts[:most]}
    refused = [
        each if isinstance(each, str) else f"the teacher's skill {quote(each.title)}: {more}"
        for each in read
        if id(each) not in taken
    ]
    return drafts[:most], refused


def _seen(observation: str) -> str:
    return f"Observation: {_one_line(observation, OBSERVATION_CHARS)}"


def _one_line(text: str, most: int) -> str:
    return shortened(" ".join(text.split()), most).replace("\n", " ")


# --- distillation ---


class SkillsAnswer(ListsAnswer):
    """The teacher's answer: a list of skills, which may be empty."""

    from_list: ClassVar[bool] = True
    """A list alone, without the object around it, is an answer too (`llm.openai.replies.read_json`)."""
    skills: list[WrittenSkill]


def questions_of(
    cases: Sequence[Case], config: DistillConfig, templates: Templates
) -> tuple[list[Question], list[str]]:
    """The questions that episodes lead to, and why one is not asked."""
    by_type = cases_by_type(cases)
    chosen = {kind: _chosen(by_type[kind], config) for kind in sorted(by_type)}
    notes = []
    for kind, found in by_type.items():
        won = sum(case.won for case in found)
        if won in (0, len(found)):
            what = "failed; the teacher is shown successes" if won else "succeeded; the teacher is shown failures"
            notes.append(f"{kind or NO_TYPE}: none of {len(found)} episodes {what} only.")
    turns = round_robin(chosen.values())
    wanted: list[tuple[str, Tier, str, int, list[Case]]] = [(GENERAL, "general", "", config.max_general, turns)]
    wanted += [(TASK, "task", kind, config.max_specific, found) for kind, found in chosen.items() if kind]
    wanted.append((MISTAKE, "mistake", "", config.max_mistakes, [case for case in turns if not case.won]))
    questions = []
    for template, tier, kind, most, shown in wanted:
        if not most or not shown:
            continue
        more = {"task_type": attribute(kind)} if template == TASK else {}
        system = rules(templates, template, most, **more)
        request = partial(templates.render, DISTILL_REQUEST)
        room = room_for_cases((system, Message("user", request(episodes="-"))), SkillsAnswer)
        text, cases_shown = shown_cases(shown, room)
        question = Question((system, Message("user", request(episodes=text))), cases_shown, tier, kind, most)
        if cases_shown:
            questions.append(question)
        if left_out := len(shown) - len(cases_shown):
            notes.append(
                f"{question.name}: {left_out} of {len(shown)} episodes have no room in {QUESTION_TOKENS} tokens."
            )
    return questions, notes


def _chosen(cases: Sequence[Case], config: DistillConfig) -> list[Case]:
    """Successes and failures by turns: of different tasks first, the short successes and the long failures first."""
    won = _varied(sorted((each for each in cases if each.won), key=lambda case: (len(case.steps), case.task_id)))
    lost = _varied(sorted((each for each in cases if not each.won), key=lambda case: (-len(case.steps), case.task_id)))
    return round_robin([won[: config.successes], lost[: config.failures]])


def _varied(cases: Iterable[Case]) -> list[Case]:
    return round_robin(grouped(cases, key=lambda case: case.task_id).values())


# --- evolution ---


class NewSkill(WrittenSkill):
    """A skill for the bank."""

    tier: str = "task"
    task_type: str = ""


class BetterSkill(WrittenSkill):
    """A text that takes the place of a skill's."""

    base: str


class EvolveAnswer(ListsAnswer):
    """The teacher's answer. Both lists may be empty; one that is left out is empty."""

    from_list: ClassVar[bool] = True
    """A list alone is one of new skills, as SkillRL's teacher was asked for."""
    new_skills: list[NewSkill]
    changed_skills: list[BetterSkill]


class LLMTeacher:
    """Asks a language model. Several questions of one call go out together.

    Args:
        asking: the model.
    """

    def __init__(self, asking: LLMQuerier) -> None:
        self.asking = asking
        for name in TEMPLATES:  # one that cannot be read is found now
            asking.templates.get(name)

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
        """Ask for principles, skills by type and mistakes, all at once.

        Raises:
            EndpointError: a question came to nothing, under `on_failure: stop`.
            BudgetError: what may be spent is spent; nothing is to be used.
        """
        questions, notes = questions_of(cases, config, self.asking.templates)
        drafts: list[Draft] = []
        answers = self.asking.ask([each.messages for each in questions], SkillsAnswer)
        for question, answer in zip(questions, answers, strict=True):
            if not isinstance(answer, EndpointError):
                tier, kind = question.tier, question.task_type
                read = [draft_of(entry, question.cases, tier=tier, task_type=kind) for entry in answer.skills]
                taken, refused = _first(read, question.most)
                drafts += taken
                notes += [f"{question.name}: {problem}" for problem in refused]
            elif self.asking.on_failure == "heuristic":
                notes.append(f"{question.name}: no usable answer; the heuristic was used instead. {answer}")
                # Of a type alone, whatever it shares with others.
                own = [each for each in cases if question.tier != "task" or each.task_type == question.task_type]
                drafts += [each for each in distilled(own, config).drafts if each.tier == question.tier]
            else:
                notes.append(f"{question.name}: skipped, because there was no usable answer. {answer}")
        failed = sum(isinstance(answer, EndpointError) for answer in answers)
        return TeacherResult(tuple(drafts), tuple(notes), requests=len(questions), failed=failed)

    def evolve(self, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
        """Ask for new and better skills from failures; raises as `distill`."""
        question, notes = question_of(self.asking, failures, skills, config)
        if not question.cases:
            return TeacherResult(notes=tuple(notes))
        (answer,) = self.asking.ask([question.messages], EvolveAnswer)
        if not isinstance(answer, EndpointError):
            # Changed skills first, `max_new_skills` in all.
            read = [_better(entry, question) for entry in answer.changed_skills]
            read += [_new(entry, question) for entry in answer.new_skills]
            drafts, refused = _first(read, config.max_new_skills)
            return TeacherResult(tuple(drafts), (*notes, *refused), requests=1)
        counts = self.asking.on_failure == "heuristic"
        said = "no usable answer; the heuristic was used instead" if counts else "there is no usable answer"
        instead = evolved_by_counting(failures, skills, config).drafts if counts else ()
        return TeacherResult(instead, (*notes, f"{said}. {answer}"), requests=1, failed=1)


def question_of(
    asking: LLMQuerier, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig
) -> tuple[Question, list[str]]:
    """The question that failures lead to, and notes on what has no room."""
    system = rules(asking.templates, EVOLVE, config.max_new_skills)
    request = partial(asking.templates.render, EVOLVE_REQUEST)
    room = room_for_cases((system, Message("user", request(skills="-", episodes="-"))), EvolveAnswer)
    near = in_view(skills, list(dict.fromkeys(case.task_type for case in failures)))
    whole: dict[str, str] = {}
    left = int(SKILLS_SHARE * room)
    for skill in near:  # one that is too long to be shown whole is not shown
        text = _skill_text(skill)
        if len(skill.text) <= TEXT_CHARS and tokens_in_text(text) + 1 <= left:
            whole[skill.id] = text
            left -= tokens_in_text(text) + 1
    bank = "\n".join(whole.values())
    text, cases = shown_cases(failures, room - tokens_in_text(bank))
    notes = [
        f"{most - count} of {most} {what} had no room in {QUESTION_TOKENS} tokens"
        for what, count, most in (("skills", len(whole), len(near)), ("failures", len(cases), len(failures)))
        if count < most
    ]
    messages = system, Message("user", request(skills=bank or "none", episodes=text))
    return Question(messages, cases, skills={skill.id: skill for skill in near if skill.id in whole}), notes


def _skill_text(skill: Skill) -> str:
    """A skill between tags, with its record."""
    inside = f"{skill.text}\nWhen to apply: {skill.when_to_apply}" if skill.when_to_apply else skill.text
    facts = {"id": skill.id, "tier": skill.tier, "task_type": skill.task_type or "any", "title": skill.title}
    record = {"uses": skill.stats.uses, "successes": skill.stats.successes}
    return fenced("skill", inside, len(inside), **facts, **record)


def in_view(skills: Sequence[Skill], types: Sequence[str]) -> list[Skill]:
    """The skills that episodes of these types may have been shown: those of their types, in that order, then those for any."""
    for_any = [skill for skill in skills if skill.tier == "general" or not skill.task_type]
    others = [skill for skill in skills if skill.tier != "general" and skill.task_type]
    return [*(skill for kind in types for skill in others if skill.task_type == kind), *for_any]


def _better(entry: BetterSkill, question: Question) -> Draft | str:
    skill = question.skills.get(entry.base.strip().removeprefix("#"))
    if skill is None:
        return f"the teacher's text for {quote(entry.base)}: the teacher was not shown such a skill"
    return draft_of(entry, question.cases, tier=skill.tier, task_type=skill.task_type, base=skill.id)


def _new(entry: NewSkill, question: Question) -> Draft | str:
    types = {case.task_type for case in question.cases}
    said = f"the teacher's skill {quote(entry.title or entry.text)}"
    tier, kind = entry.tier.strip().lower(), entry.task_type.strip()
    if tier not in TIERS:
        return f"{said}: a tier is one of {', '.join(TIERS)}, found {quote(entry.tier)}"
    kind = "" if kind in ("any", "all") or tier == "general" else kind
    if kind and kind not in types:
        return f"{said}: no episode that was shown is of the type {quote(kind)}"
    if not kind and tier == "task" and len(types) == 1:
        (kind,) = types
    return draft_of(entry, question.cases, tier=cast(Tier, tier), task_type=kind)


TEACHERS: Registry[Callable[..., Teacher]] = Registry("teacher")


@TEACHERS.register("heuristic")
class HeuristicTeacher:
    """Counts what winners did and losers did not; needs no language model."""

    distill = staticmethod(distilled)
    evolve = staticmethod(evolved_by_counting)


@TEACHERS.register("analogy")
class AnalogyTeacher(HeuristicTeacher):
    """Counts as `HeuristicTeacher` does in won episodes; failures of a type without a skill give guesses, for a gate to decide on."""

    reads_listed = True
    evolve = staticmethod(evolved_by_analogy)


TEACHERS.register(OPENAI)(lambda models: LLMTeacher(models.asking("teacher")))


def make_teacher(name: str = "heuristic", *, models: LLMEndpoints | None = None) -> Teacher:
    """The teacher called `name`; `models` holds the endpoint that `openai` asks.

    Raises:
        ConfigError: the name is unknown, the teacher cannot be made, or a custom factory returns no teacher.
        ExtensionError: a custom factory raised an error.
    """
    factory = TEACHERS.get(name)
    with naming(f"The teacher {name!r}", "when it was made without arguments"):
        made = factory(models or LLMEndpoints()) if name == OPENAI else factory()
    require_methods(made, name, "distill", "evolve")
    return made


def taught(teacher: Teacher, method: Literal["distill", "evolve"], *given: Any) -> TeacherResult:
    """Call a method of a teacher, which may be the user's own, and check its result.

    Raises:
        ExtensionError: it raised an error.
        ConfigError: it returned something else.
    """
    who = f"The teacher {type(teacher).__qualname__}"
    with naming(who, f"in {method}"):
        result = getattr(teacher, method)(*given)
    if not isinstance(result, TeacherResult):
        raise ConfigError(f"{who} must return a TeacherResult, not {type(result).__name__}, from {method}.")
    return result
