"""What acts in a text environment: observations in, conversations out.

An agent is a pure function of what has happened so far. Sampling is the backend's, acting is the environment's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.types import Message, Step


class Agent(Protocol):
    """Turns an episode so far into the conversation that the model is to continue."""

    def messages(self, steps: Sequence[Step], observation: str) -> tuple[Message, ...]:
        """Conversation after `steps`, now that `observation` is seen."""
        ...


class ConversationAgent:
    """The first observation is put into the template; later ones follow the model's own turns as they are."""

    def __init__(self, formatter: PromptFormatter) -> None:
        self.formatter = formatter

    def messages(self, steps: Sequence[Step], observation: str) -> tuple[Message, ...]:
        """See `Agent.messages`."""
        if not steps:
            return self.formatter.messages(observation)
        turns = list(self.formatter.messages(steps[0].observation))
        for step, seen in zip(steps, [*(later.observation for later in steps[1:]), observation], strict=True):
            turns += [Message("assistant", step.action), Message("user", seen)]
        return tuple(turns)
