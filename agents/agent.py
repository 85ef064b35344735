"""What acts in a text environment: what is seen in, conversations out, and back from the model's words to an action.

An agent is a pure function of what has happened so far. Sampling is the backend's, acting is the environment's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from skill_ttrl.agents.action_list import AS_LISTED, Listing, has_slot
from skill_ttrl.agents.action_parser import Project, Projection, whole
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.agents.turn_prompt import Prompt, Window
from skill_ttrl.types import Message, Skill, Step


@dataclass(frozen=True)
class Scene:
    """Where an episode stands when the agent is to act."""

    observation: str
    """What is seen now."""
    steps: Sequence[Step] = ()
    """What has been done, oldest first."""
    task: str = ""
    """What is to be done, in words; empty where only the observations say it."""
    admissible: tuple[str, ...] = ()
    """The actions that are possible now; empty where the environment lists none."""
    skills: tuple[Skill, ...] = ()
    """Chosen at the start of the episode."""


class Agent(Protocol):
    """Turns an episode so far into a prompt, and the model's answer into an action."""

    def prompt(self, scene: Scene) -> Prompt:
        """What the model is asked in this scene."""
        ...

    def read(self, written: str, scene: Scene) -> Projection:
        """The action that the model's own words mean in this scene."""
        ...


class ConversationAgent:
    """An agent without skills.

    Args:
        formatter: makes the first message.
        memory: `conversation`: later observations follow the model's own turns as they are. `none`: each turn is a first.
        window: makes every prompt instead (`agent.memory: window`).
        project: finds the action in what was written.
        listing: of the possible actions in a prompt.
    """

    def __init__(
        self,
        formatter: PromptFormatter,
        memory: str = "conversation",
        *,
        window: Window | None = None,
        project: Project = whole,
        listing: Listing = AS_LISTED,
    ) -> None:
        self.formatter = formatter
        self.memory = memory
        self.window = window
        self.project = project
        self.listing = listing

    def listed(self, scene: Scene) -> tuple[str, ...]:
        """The possible actions in the order in which the prompt lists them."""
        return self.listing(scene.admissible, scene.task, (), [step.action for step in scene.steps])

    def prompt(self, scene: Scene) -> Prompt:
        """See `Agent.prompt`; it has no skills to show."""
        if self.window is not None:
            return self.window.prompt(scene.observation, scene.steps, scene.task, self.listed(scene), asks=False)
        return Prompt(conversation(self.formatter, self.memory, scene, None))

    def read(self, written: str, scene: Scene) -> Projection:
        """See `Agent.read`."""
        return self.project(written, (*self.listed(scene), *filter(has_slot, scene.admissible)))


def conversation(
    formatter: PromptFormatter,
    memory: str,
    scene: Scene,
    skills: Sequence[Skill] | None,
    bank_empty: bool | None = None,
) -> tuple[Message, ...]:
    """The messages of an episode: the first observation in its template, then the turns, as far as `memory` reaches."""
    steps, observation = scene.steps, scene.observation
    if not steps or memory == "none":
        return formatter.messages(observation, skills, bank_empty=bank_empty)
    turns = list(formatter.messages(steps[0].observation, skills, bank_empty=bank_empty))
    for step, seen in zip(steps, [*(later.observation for later in steps[1:]), observation], strict=True):
        said = step.action if step.completion is None else step.completion.text
        turns += [Message("assistant", said), Message("user", seen)]
    return tuple(turns)
