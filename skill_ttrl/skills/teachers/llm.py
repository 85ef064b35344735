"""The teacher that asks a language model, for `distill.teacher: openai` and `evolve.teacher: openai`; whom it asks is
`endpoints.teacher`. What a question shows of episodes, and how what is written in an answer becomes a draft, stands here; the
questions themselves are in `distill_llm` and `evolve_llm`.

Texts of episodes go in escaped, between tags that they cannot close, and of bounded length. An answer is a list of skills;
each is checked by itself and used as a whole or refused with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.llm.openai.replies import tokens_in_text
from skill_ttrl.llm.openai.structured import instruction
from skill_ttrl.skills.bank.changes import quote
from skill_ttrl.skills.formats.records import SPELLINGS
from skill_ttrl.skills.merge.llm import text_problem
from skill_ttrl.skills.merge.plan import made_title
from skill_ttrl.skills.ops import MAX_TITLE
from skill_ttrl.skills.querying import LLMQuerier, fenced, shortened
from skill_ttrl.skills.teachers.teacher import Case, Draft, TeacherResult
from skill_ttrl.types import Message, Skill, Step, Tier

OBSERVATION_CHARS = 400
"""Of each observation of an episode, so many characters (SkillRL: 200)."""
TASK_CHARS = 1000
ACTION_CHARS = 300


class WrittenSkill(BaseModel):
    """A skill in the teacher's words; a title that is missing is made from the text, all else but the text may be missing too."""

    model_config = ConfigDict(extra="ignore")
    title: str = ""
    text: str
    when_to_apply: str = ""
    support: list[int] = []
    """Numbers of the episodes that it comes from, as they were shown."""

    @model_validator(mode="before")
    @classmethod
    def _other_spellings(cls, entry: Any) -> Any:
        """Models call a skill's text `principle`, `how_to_avoid`, …, as published banks do; null is nothing."""
        if not isinstance(entry, dict):
            return entry
        given = {name: value for name, value in entry.items() if value is not None}
        if "how_to_avoid" in given:
            given.setdefault("title", given.get("description", ""))
        for name in ("text", "when_to_apply"):
            spelled = next((given[each] for each in SPELLINGS[name] if each in given), None)
            if spelled is not None:
                given.setdefault(name, spelled)
        return given


class SkillsAnswer(BaseModel):
    """What the teacher is asked for: a list of skills, which may be empty."""

    model_config = ConfigDict(extra="forbid")
    from_list: ClassVar[bool] = True
    """A list alone, without the object around it, is an answer too (`llm.structured.read_json`)."""
    skills: list[WrittenSkill]

    @model_validator(mode="before")
    @classmethod
    def _a_list_alone(cls, answer: Any) -> Any:
        return {"skills": answer} if isinstance(answer, list) else answer


class LLMTeacher:
    """Asks a language model. Several questions of one call go out together.

    Args:
        asking: the model.
    """

    def __init__(self, asking: LLMQuerier) -> None:
        from skill_ttrl.skills.teachers import distill_llm, evolve_llm

        self.asking = asking
        for name in (*distill_llm.TEMPLATES, *evolve_llm.TEMPLATES):  # one that cannot be read is found now
            asking.templates.get(name)

    def distill(self, cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
        """See `Teacher.distill`.

        Raises:
            EndpointError: a request came to nothing, and failures are not to be got over.
            BudgetError: what may be spent is spent; nothing is to be used.
        """
        from skill_ttrl.skills.teachers.distill_llm import distilled

        return distilled(self.asking, cases, config)

    def evolve(self, failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
        """See `Teacher.evolve`; raises as `distill`."""
        from skill_ttrl.skills.teachers.evolve_llm import evolved_by_asking

        return evolved_by_asking(self.asking, failures, skills, config)


@dataclass(frozen=True, slots=True)
class ShownCases:
    """What of many episodes a question has room for."""

    text: str
    """The episodes between tags, numbered from 1; empty where none has room."""
    cases: tuple[Case, ...]
    """Those that are shown, number 1 first."""
    left_out: int = 0


def shown_cases(cases: Iterable[Case], *, last_steps: int, tokens: int) -> ShownCases:
    """Episodes for a question, in order, as many as have room.

    Args:
        cases: the most telling first.
        last_steps: most steps of each, from its end.
        tokens: room for all of them together, in tokens (about 4 bytes each).
    """
    texts: list[str] = []
    kept: list[Case] = []
    left, left_out = tokens, 0
    for case in cases:
        text = case_text(case, len(kept) + 1, last_steps)
        size = tokens_in_text(text) + 1
        if size > left:
            left_out += 1
            continue
        texts.append(text)
        kept.append(case)
        left -= size
    return ShownCases("\n".join(texts), tuple(kept), left_out)


def case_text(case: Case, number: int, last_steps: int) -> str:
    """One episode between tags, from its task to what was seen last."""
    steps = case.steps[-last_steps:]
    before = len(case.steps) - len(steps)
    lines = [f"Task: {shortened(case.task, TASK_CHARS)}"] if case.task else []
    if before:
        lines.append(f"[{before} earlier steps are left out]")
    for step in steps:
        lines += [_seen(step.observation), f"Action: {_one_line(step.action, ACTION_CHARS)}{_trouble(step)}"]
    if case.last_observation:
        lines.append(_seen(case.last_observation))
    facts = {"n": number, "outcome": "success" if case.won else "failure", "task_type": case.task_type}
    inside = "\n".join(lines)
    # Each part is bounded and escaped; escaped again, as a whole, nothing can close the tag from within.
    return fenced("episode", inside, len(inside), **facts, steps=len(case.steps))


def room_for_cases(config_tokens: int, question: Sequence[Message], schema: type[BaseModel]) -> int:
    """Tokens that are left of a question's bound when everything but the episodes is in it; at least 0."""
    taken = sum(tokens_in_text(each.content) for each in question) + tokens_in_text(instruction(schema))
    return max(0, config_tokens - taken)


def draft_of(
    entry: WrittenSkill, shown_ones: Sequence[Case], *, tier: Tier, task_type: str = "", base: str = ""
) -> tuple[Draft | None, str]:
    """What an entry of an answer becomes: a draft, or None and why it is refused.

    Args:
        entry: what the teacher wrote.
        shown_ones: the episodes that it was shown, number 1 first.
        tier: what was asked for.
        task_type: what it is for; empty for any.
        base: id of the skill that it takes the place of.
    """
    problem = text_problem(entry.text)
    beyond = [number for number in entry.support if not 1 <= number <= len(shown_ones)]
    if problem is None and beyond:
        problem = f"it names the episode {quote(beyond[0])} of {len(shown_ones)}"
    if problem is None and len(entry.when_to_apply) > TASK_CHARS:
        problem = f"when to apply it has {len(entry.when_to_apply)} characters, the most is {TASK_CHARS}"
    if problem is not None:
        return None, f"the teacher's skill {quote(entry.title or entry.text)}: {problem}"
    named = [shown_ones[number - 1] for number in entry.support] or list(shown_ones)
    return (
        Draft(
            title=" ".join(entry.title.split())[:MAX_TITLE] or made_title(entry.text.strip()),
            text=entry.text.strip(),
            when_to_apply=entry.when_to_apply.strip(),
            tier=tier,
            task_type=task_type,
            base=base,
            evidence=tuple(dict.fromkeys(case.task_id for case in named)),
        ),
        "",
    )


def _seen(observation: str) -> str:
    return f"Observation: {_one_line(observation, OBSERVATION_CHARS)}"


def _one_line(text: str, most: int) -> str:
    return shortened(" ".join(text.split()), most).replace("\n", " ")


def _trouble(step: Step) -> str:
    return "" if step.verdict in (None, "valid") else f" ({step.verdict})"
