"""Rationales in `<think>` for demonstrations, written by a language model (`demonstrations.rationale: openai`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from skill_ttrl.errors import EndpointError, annotate_error
from skill_ttrl.progress import Progress
from skill_ttrl.skills.querying import LLMQuerier, shortened
from skill_ttrl.stages.inputs.demonstrate import StepShown
from skill_ttrl.types import Message

PHASE = "thoughts"
BATCH = 64
"""Questions that go out together: between them it can be stopped, and says how far it is."""
SHOWN_CHARS = 24_000
MOST_CHARS = 1200
"""Longest thought in characters; a longer one is cut."""
KEPT = "The answers received so far are saved with the run and will be reused."
"""Said of thoughts that were paid for, where the others failed."""
TAGS = ("<think>", "</think>", "<action>", "</action>")


class ThoughtAnswer(BaseModel):
    """The teacher's answer."""

    model_config = ConfigDict(extra="forbid")
    thought: str


def with_thoughts(shown: Sequence[StepShown], asking: LLMQuerier, progress: Progress) -> list[StepShown]:
    """The demonstrations with thoughts. One that could not be had stays empty, which is said, unless `skills.on_failure` is `stop`.

    Args:
        shown: the demonstrations.
        asking: the model.
        progress: reports how far it is.

    Raises:
        EndpointError: no usable answer came, under `stop`.
        BudgetError: what may be spent is spent.
    """
    progress.start(PHASE, len(shown), "thought")
    found: list[StepShown] = []
    failed = 0
    for begin in range(0, len(shown), BATCH):
        batch = shown[begin : begin + BATCH]
        ways = "skills.on_failure=skip leaves the thought out of such a demonstration"
        with annotate_error(EndpointError, f"Nothing was trained; {ways}. {KEPT}"):
            answers = asking.ask([question(each, asking) for each in batch], ThoughtAnswer)
        for each, answer in zip(batch, answers, strict=True):
            if isinstance(answer, EndpointError):
                failed += 1
                found.append(each)
            else:
                found.append(replace(each, thought=cleaned(answer.thought)))
        progress.advance(PHASE, len(found), {"failed": float(failed)})
    progress.finish(PHASE)
    if failed:
        progress.notice(
            f"The teacher gave no thought for {failed} of {len(shown)} demonstrations; they have none.", warning=True
        )
    return found


def question(shown: StepShown, asking: LLMQuerier) -> tuple[Message, ...]:
    """The question to the teacher about one demonstration."""
    prompt = "\n\n".join(message.content for message in shown.messages)
    request = asking.templates.render(
        "thought_request", shown=shortened(prompt, SHOWN_CHARS), done=shortened(shown.action, SHOWN_CHARS)
    )
    return (Message("system", asking.templates.render("thought")), Message("user", request))


def cleaned(thought: str) -> str:
    """A thought as it may stand in `<think>`: without tags that would end it or act, of bounded length."""
    for tag in TAGS:
        thought = thought.replace(tag, "")
    return thought.strip()[:MOST_CHARS]
