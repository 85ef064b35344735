"""Demonstrations of whole episodes, where an episode is one growing conversation (`agent.context_mode: episode`).

What was done stays in the conversation, whatever was advised: what is to be learnt at a turn is a text of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.config import DemonstrationsConfig
from skill_ttrl.skills.types import goal_of
from skill_ttrl.stages.inputs.demonstrate import (
    LeftOut,
    StepShown,
    chosen_steps,
    scene_at,
    show_steps,
    skills_of_episodes,
)
from skill_ttrl.types import Message, Skill, Trajectory

MEMORY = "episode"
"""The `agent.context_mode` of such episodes."""


@dataclass(frozen=True, slots=True)
class TurnShown:
    """One turn of an episode."""

    done: str
    """The text that the assistant wrote."""
    learnt: str | None
    """The text to learn in its place; None: nothing."""
    seen: Message | None = None
    """The message that followed; None: it was the last turn."""


@dataclass(frozen=True, slots=True)
class EpisodeShown:
    """One episode to imitate."""

    prompt: tuple[Message, ...]
    """The first prompt."""
    turns: tuple[TurnShown, ...]
    task_id: str = ""
    task_type: str = ""
    skills: tuple[str, ...] = ()
    """Ids of the skills in the first prompt."""

    def as_chat(self) -> dict[str, Any]:
        """The episode as other trainers read it: `messages` with roles, and in `learnt` what is to be learnt in place of each of the
        assistant's; null: nothing.
        """
        said = list(self.prompt)
        for turn in self.turns:
            said.append(Message("assistant", turn.done))
            if turn.seen is not None:
                said.append(turn.seen)
        return {
            "messages": [{"role": message.role, "content": message.content} for message in said],
            "learnt": [turn.learnt for turn in self.turns],
            "task": self.task_id,
            "task_type": self.task_type,
            "skills": list(self.skills),
        }

    @classmethod
    def from_chat(cls, row: Mapping[str, Any]) -> Self:
        """The episode that `as_chat` gave; of its task and skills nothing is kept.

        Raises:
            ValueError, TypeError, KeyError: it is none.
        """
        said = [Message(**message) for message in row["messages"]]
        first = next(place for place, message in enumerate(said) if message.role == "assistant")
        done, seen = said[first::2], [*said[first + 1 :: 2], None]
        turns = [
            TurnShown(message.content, learnt, after)
            for message, learnt, after in zip(done, row["learnt"], seen, strict=True)
        ]
        if any(turn.learnt is not None and not isinstance(turn.learnt, str) for turn in turns):
            raise TypeError("learnt is a list of texts and nulls")
        return cls(tuple(said[:first]), tuple(turns))


def demonstrate_episodes(
    trajectories: Sequence[Trajectory], agent: Agent, config: DemonstrationsConfig, seed: int, *, tagged: bool
) -> tuple[list[EpisodeShown], list[StepShown], list[Trajectory], LeftOut]:
    """Episodes to imitate, the steps of them that are learnt, without prompts, what was collected of them, and what was left out.

    An episode ends before an action that the form of actions cannot write.
    Where `demonstrations.examples` bounds the steps, whole episodes are left out, so many that about so many steps are learnt.

    Raises:
        DataError: there is nothing to imitate.
    """
    steps, left_out = chosen_steps(trajectories, config.model_copy(update={"examples": None}), agent)
    episodes = list({id(trajectory): trajectory for trajectory, _, _ in steps}.values())
    if config.examples is not None and config.examples < len(steps):
        most = max(1, len(episodes) * config.examples // len(steps))
        episodes = [episodes[place * len(episodes) // most] for place in range(most)]
        chosen = {*map(id, episodes)}
        steps = [each for each in steps if id(each[0]) in chosen]
    skills = skills_of_episodes(steps, agent, config, seed)
    shown = list(show_steps(steps, trajectories, agent, config, skills, prompts=False))
    learnt: dict[int, dict[int, StepShown]] = {}
    for (trajectory, place, _), step in zip(steps, shown, strict=True):
        learnt.setdefault(id(trajectory), {})[place] = step
    grown = [_show(each, agent, learnt[id(each)], skills[id(each)], tagged) for each in episodes]
    return grown, shown, episodes, left_out


def _show(
    trajectory: Trajectory, agent: Agent, learnt: Mapping[int, StepShown], skills: tuple[Skill, ...], tagged: bool
) -> EpisodeShown:
    """One episode, up to the last turn at which something is learnt."""
    steps, goal, last = trajectory.steps, goal_of(trajectory), max(learnt)
    turns = []
    for place, step in enumerate(steps[: last + 1]):
        shown = learnt.get(place)
        target = None if shown is None else shown.response(tagged)
        done = target
        if shown is None or target is None or shown.action != step.action:
            answer = agent.answer(step.action, scene_at(trajectory, place, skills))
            # What cannot be written is the last turn: only what should have been done there stands in it.
            done = target if answer is None else f"<action>{answer}</action>" if tagged else answer
        seen = None
        if place < last:
            after = steps[place + 1]
            seen = agent.next_message(
                AgentInput(after.observation, steps[: place + 1], goal, after.admissible_actions, skills)
            )
        assert done is not None
        turns.append(TurnShown(done, target, seen))
    return EpisodeShown(
        agent.prompt(scene_at(trajectory, 0, skills)).messages,
        tuple(turns),
        trajectory.task.id,
        trajectory.task.task_type,
        tuple(skill.id for skill in skills),
    )
