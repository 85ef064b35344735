"""Questions about episodes to a language model: shows episodes, and turns an entry of an answer into a draft.

Texts of episodes go in escaped, between tags that they cannot close, and of bounded length. An answer is a list of skills;
each is used as a whole or refused with its reason. The questions themselves are in `distill_llm` and `evolve_llm`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from skill_ttrl.llm.openai.replies import tokens_in_text
from skill_ttrl.llm.openai.structured import instruction
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.admit import made_title, text_problem
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.formats.records import SPELLINGS
from skill_ttrl.skills.ops import MAX_TITLE
from skill_ttrl.skills.querying import TEXT_CHARS, fenced, shortened
from skill_ttrl.skills.types import Case, Draft
from skill_ttrl.types import Message, Step, Tier

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


@dataclass(frozen=True, slots=True)
class ShownCases:
    """The episodes for which a question has room."""

    text: str
    """The episodes between tags, numbered from 1; empty where none has room."""
    cases: tuple[Case, ...]
    """In the text's order, number 1 first."""
    left_out: int = 0


def shown_cases(cases: Iterable[Case], *, last_steps: int, tokens: int) -> ShownCases:
    """Episodes for a question, in order, as many as have room.

    Args:
        cases: the most telling first.
        last_steps: most steps of each, from its end.
        tokens: room for all of them together, in tokens (about 4 bytes each).
    """
    texts: list[str] = []
    shown: list[Case] = []
    left, left_out = tokens, 0
    for case in cases:
        text = case_text(case, len(shown) + 1, last_steps)
        size = tokens_in_text(text) + 1
        if size > left:
            left_out += 1
            continue
        texts.append(text)
        shown.append(case)
        left -= size
    return ShownCases("\n".join(texts), tuple(shown), left_out)


def case_text(case: Case, number: int, last_steps: int) -> str:
    """One episode between tags, from its task to what was seen last."""
    steps = case.steps[-last_steps:]
    before = len(case.steps) - len(steps)
    lines = [f"Task: {shortened(case.task, TASK_CHARS)}"] if case.task else []
    if before:
        lines.append(f"[{before} earlier steps are left out]")
    for step in steps:
        lines += [_seen(step.observation), f"Action: {_one_line(step.action, ACTION_CHARS)}{_trouble(step)}"]
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


def room_for_cases(config_tokens: int, question: Sequence[Message], schema: type[BaseModel]) -> int:
    """Tokens that are left of a question's bound when everything but the episodes is in it; at least 0."""
    taken = sum(tokens_in_text(each.content) for each in question) + tokens_in_text(instruction(schema))
    return max(0, config_tokens - taken)


def draft_of(
    entry: WrittenSkill, shown_ones: Sequence[Case], *, tier: Tier, task_type: str = "", base: str = ""
) -> tuple[Draft | None, str]:
    """The draft of an answer's entry, or None and why it is refused.

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


def first_drafts(read: Iterable[tuple[Draft | None, str]], most: int) -> tuple[list[Draft], list[str]]:
    """The first `most` drafts of an answer that were read (`draft_of`), and why each of the other entries is refused."""
    found: list[Draft] = []
    refused: list[str] = []
    for draft, problem in read:
        if draft is None:
            refused.append(problem)
        elif len(found) == most:
            more = f"it is one more than the {most} that were asked for"
            refused.append(f"the teacher's skill {quote(draft.title)}: {more}")
        else:
            found.append(draft)
    return found, refused


def _seen(observation: str) -> str:
    return f"Observation: {_one_line(observation, OBSERVATION_CHARS)}"


def _one_line(text: str, most: int) -> str:
    return shortened(" ".join(text.split()), most).replace("\n", " ")


def _trouble(step: Step) -> str:
    return "" if step.action_status in (None, "valid") else f" ({step.action_status})"
