"""What acts in a text environment: observations in, conversations out.

An agent is a pure function of what has happened so far. Sampling is the backend's, acting is the environment's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.types import Message, Skill, Step


class Agent(Protocol):
    """Turns an episode so far into the conversation that the model is to continue."""

    def messages(self, steps: Sequence[Step], observation: str, skills: Sequence[Skill] = ()) -> tuple[Message, ...]:
        """Conversation after `steps`, now that `observation` is seen; `skills` were chosen at the start."""
        ...


class ConversationAgent:
    """An agent without skills: the first observation is put into the template; what follows depends on its memory.

    Args:
        formatter: makes the first message.
        memory: `conversation`: later observations follow the model's own turns as they are. `none`: each turn is a first.
    """

    def __init__(self, formatter: PromptFormatter, memory: str = "conversation") -> None:
        self.formatter = formatter
        self.memory = memory

    def messages(self, steps: Sequence[Step], observation: str, skills: Sequence[Skill] = ()) -> tuple[Message, ...]:
        """See `Agent.messages`; it has no skills to show."""
        return conversation(self.formatter, self.memory, steps, observation, None)


def conversation(
    formatter: PromptFormatter,
    memory: str,
    steps: Sequence[Step],
    observation: str,
    skills: Sequence[Skill] | None,
    bank_empty: bool | None = None,
) -> tuple[Message, ...]:
    """The messages of an episode: the first observation in its template, then the turns, as far as `memory` reaches."""
    if not steps or memory == "none":
        return formatter.messages(observation, skills, bank_empty=bank_empty)
    turns = list(formatter.messages(steps[0].observation, skills, bank_empty=bank_empty))
    for step, seen in zip(steps, [*(later.observation for later in steps[1:]), observation], strict=True):
        said = step.action if step.completion is None else step.completion.text
        turns += [Message("assistant", said), Message("user", seen)]
    return tuple(turns)
