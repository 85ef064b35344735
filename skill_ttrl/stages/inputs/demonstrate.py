"""Demonstrations from episodes: what a good agent did at each step, under the prompts that the policy will see, skills included.

The skills in them vary: those that are found for the task, none at all, or others of the bank (`demonstrations` in the config), so
that following them is worth learning and doing without them is learnt as well.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from skill_ttrl.agents.action_parser import project
from skill_ttrl.agents.agent import Agent, AgentInput, task_skills
from skill_ttrl.config import DemonstrationsConfig, SkillTTRLConfig
from skill_ttrl.data.families import Demonstration
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import DataError
from skill_ttrl.rollout.scripted import ADVICE
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.skills.types import goal_of
from skill_ttrl.types import Message, Skill, Step, Trajectory, derive_seed

LONGEST_EXAMPLE = 20
"""Characters of a demonstration that is shown as an example of an answer."""


@dataclass(frozen=True, slots=True)
class StepShown:
    """One step to imitate."""

    messages: tuple[Message, ...]
    """The prompt."""
    action: str
    """The action to imitate."""
    thought: str
    """Content of `<think>`; empty: no such tag."""
    task_id: str
    task_type: str
    skills: tuple[str, ...]
    """Ids of the skills in the prompt."""
    answer: str = ""
    """The action as the model writes it: its number, where actions are numbered, or its form; empty: its text."""

    def response(self, tagged: bool) -> str:
        """Target text of the model."""
        thought = f"<think>{self.thought}</think>" if self.thought else ""
        answer = self.answer or self.action
        return f"{thought}<action>{answer}</action>" if tagged else answer


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of demonstrations: actions, types and skills."""

    examples: int
    episodes: int
    """Episodes that the examples come from."""
    won: int
    """Successful ones among these episodes."""
    by_type: Mapping[str, int] = field(default_factory=dict)
    """Examples by type of task."""
    skills_shown: Mapping[str, int] = field(default_factory=dict)
    """Examples whose prompt shows a skill, by its id; skills of the bank that none shows have 0."""
    no_skill_fraction: float = 0.0
    """Share of the examples whose prompts have none."""
    not_possible: int = 0
    """Steps that were left out because what was done was not among the possible actions."""
    not_written: int = 0
    """Steps that were left out because the form of actions cannot write what was done there, or before in their episode."""


def answer_note(config: SkillTTRLConfig, demonstrations: Sequence[Demonstration]) -> str | None:
    """A warning where most demonstrations of math problems have no answer that a vote can read; None where they have.

    Raises:
        DataError: none has one.
    """
    source = config.demonstration_source
    if source is None or source.path.startswith("synthetic:") or resolve_env(config.env.id) != MATH_ENV_ID:
        return None  # a family knows what it teaches: some parts of `operators` teach words alone
    parser = OutputParser(last_number=bool(config.env.kwargs.get("last_number")))
    silent = [shown.response for shown in demonstrations if not parser.parse(shown.response).answer]
    if 2 * len(silent) < len(demonstrations):
        return None
    few = len(demonstrations) - len(silent)
    short = next((text.strip() for text in silent if 0 < len(text.strip()) <= LONGEST_EXAMPLE), "63")
    found = (
        f"{few:,} of {len(demonstrations):,} demonstrations in {source.path} contain{'s' * (few == 1)} an answer; write "
        f"\\boxed{{{short}}} or <answer>{short}</answer>"
    )
    if not few:
        raise DataError(f"{found}, or set env.kwargs.last_number=true if their last number is the answer.")
    return f"{found}. Samples without answers cannot be voted on."


ChosenStep = tuple[Trajectory, int, str]
"""An episode, the place of a step in it, and what to do there."""
LeftOut = tuple[int, int]
"""How many steps of the episodes are not imitated: `Coverage.not_possible`, `Coverage.not_written`."""


def chosen_steps(
    trajectories: Sequence[Trajectory], config: DemonstrationsConfig, agent: Agent | None = None
) -> tuple[list[ChosenStep], LeftOut]:
    """(episode, step, what to do there) of what is imitated, in order, and what was left out.

    What the form of actions of `agent` cannot write is not learnt; nor is what follows such an action in its episode, where prompts
    have it.

    Raises:
        DataError: there is nothing to imitate.
    """
    found: list[ChosenStep] = []
    refused = not_written = 0
    for trajectory in trajectories:
        if trajectory.error is not None or not (trajectory.is_success or config.label == "expert"):
            continue
        for place, action, written in _labels(trajectory, config, agent):
            listed = trajectory.steps[place].admissible_actions
            if not (
                action in listed or not listed or project(f"<action>{action}</action>", listed).action_status == "valid"
            ):
                refused += 1
            elif not written:
                not_written += 1
            else:
                found.append((trajectory, place, action))
    if not found:
        won = sum(trajectory.is_success for trajectory in trajectories)
        raise DataError(
            f"There is nothing to imitate with demonstrations.label={config.label}: {won} of {len(trajectories)} episodes succeeded, and "
            f"agent.observations cannot write {not_written} of their steps. Collect more episodes, or use a better agent. label=success "
            "needs successful episodes, label=expert episodes that were collected with --epsilon."
        )
    most = config.examples or len(found)
    if most < len(found):
        found = [found[place * len(found) // most] for place in range(most)]
    return found, (refused, not_written)


def _labels(
    trajectory: Trajectory, config: DemonstrationsConfig, agent: Agent | None
) -> Iterator[tuple[int, str, bool]]:
    """(step, what to do there, True if that and its prompt can be written) of one episode."""
    written = True
    for place, step in enumerate(trajectory.steps):
        action = _label(step, config)
        if agent is None or not agent.writes_form:
            if action is not None:
                yield place, action, True
            continue
        scene = scene_at(trajectory, place, ())
        if action is not None:
            yield place, action, written and agent.answer(action, scene) is not None
        if written and agent.memory != "none":  # its prompts have what was done
            written = agent.answer(step.action, scene) is not None


def _label(step: Step, config: DemonstrationsConfig) -> str | None:
    advice = step.info.get(ADVICE)
    if config.label == "expert":
        return advice if isinstance(advice, str) else None
    # An episode that was won in spite of a step that its agent did not want shows nothing good at that step.
    return None if isinstance(advice, str) and advice != step.action else step.action


def demonstrate(
    trajectories: Sequence[Trajectory], agent: Agent, config: DemonstrationsConfig, seed: int
) -> tuple[list[StepShown], list[Trajectory], LeftOut]:
    """The steps to imitate, with the prompts that `agent` makes of them, the episodes that they are of, and what was left out.

    Raises:
        DataError: there is nothing to imitate.
    """
    steps, left_out = chosen_steps(trajectories, config, agent)
    skills = skills_of_episodes(steps, agent, config, seed)
    return show_steps(steps, agent, skills), _episodes(steps), left_out


def show_steps(
    steps: Sequence[ChosenStep], agent: Agent, shown: Mapping[int, tuple[Skill, ...]], *, prompts: bool = True
) -> list[StepShown]:
    """The steps of `chosen_steps`, with the skills of each episode (`skills_of_episodes`); without `prompts` they have no messages."""
    found = []
    for trajectory, place, action in steps:
        task, skills = trajectory.task, shown[id(trajectory)]
        scene = scene_at(trajectory, place, skills)
        messages = agent.prompt(scene).messages if prompts else ()
        names, answer = tuple(skill.id for skill in skills), agent.answer(action, scene) or ""
        found.append(StepShown(messages, action, "", task.id, task.task_type, names, answer))
    return found


def _episodes(steps: Sequence[ChosenStep]) -> list[Trajectory]:
    return list({id(trajectory): trajectory for trajectory, _, _ in steps}.values())


def scene_at(trajectory: Trajectory, place: int, skills: tuple[Skill, ...]) -> AgentInput:
    """The scene in which the step at this place was taken."""
    step = trajectory.steps[place]
    return AgentInput(step.observation, trajectory.steps[:place], goal_of(trajectory), step.admissible_actions, skills)


def skills_of_episodes(
    steps: Sequence[ChosenStep],
    agent: Agent,
    config: DemonstrationsConfig,
    seed: int,
) -> dict[int, tuple[Skill, ...]]:
    """The skills in the prompts of each episode, by the identity of its trajectory: found, none, or others.

    A skill that the task brings (`agent.task_skills`) is always shown.
    """
    episodes = _episodes(steps)
    said = [goal_of(each) or each.steps[0].observation for each in episodes]
    found = agent.select_skills([each.task for each in episodes], said)
    everything = [] if agent.bank is None else list(agent.bank.snapshot)
    shown: dict[int, tuple[Skill, ...]] = {}
    for place, (trajectory, own) in enumerate(zip(episodes, found, strict=True)):
        drawn = random.Random(derive_seed(seed, "skills shown", trajectory.task.id, place))
        share = drawn.random()
        if task_skills(trajectory.task) is not None:
            shown[id(trajectory)] = own.skills
        elif share < config.no_skill_fraction:
            shown[id(trajectory)] = ()
        elif share < config.no_skill_fraction + config.random_skill_fraction:
            others = drawn.sample(everything, min(len(everything), max(1, len(own.skills))))
            shown[id(trajectory)] = agent.fit_to_budget(others).skills
        else:
            shown[id(trajectory)] = own.skills
    return shown


def coverage(
    shown: Sequence[StepShown], episodes: Sequence[Trajectory], bank: Sequence[Skill], left_out: LeftOut
) -> Coverage:
    """Coverage of the demonstrations of these episodes.

    Args:
        shown: the demonstrations.
        episodes: the imitated episodes.
        bank: all skills.
        left_out: steps that are not imitated.
    """
    counts = Counter(skill for each in shown for skill in each.skills)
    return Coverage(
        examples=len(shown),
        episodes=len(episodes),
        won=sum(trajectory.is_success for trajectory in episodes),
        by_type=dict(sorted(Counter(each.task_type for each in shown).items())),
        skills_shown={skill.id: counts[skill.id] for skill in bank},
        no_skill_fraction=sum(not each.skills for each in shown) / len(shown) if shown else 0.0,
        not_possible=left_out[0],
        not_written=left_out[1],
    )


def as_chat(shown: StepShown, tagged: bool) -> dict[str, object]:
    """A demonstration as other trainers read it: `messages` with roles, the last one the assistant's."""
    said = [*shown.messages, Message("assistant", shown.response(tagged))]
    return {
        "messages": [asdict(message) for message in said],
        "task": shown.task_id,
        "task_type": shown.task_type,
        "skills": list(shown.skills),
    }


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
    episodes = _episodes(steps)
    if config.examples is not None and config.examples < len(steps):
        most = max(1, len(episodes) * config.examples // len(steps))
        episodes = [episodes[place * len(episodes) // most] for place in range(most)]
        chosen = {*map(id, episodes)}
        steps = [each for each in steps if id(each[0]) in chosen]
    skills = skills_of_episodes(steps, agent, config, seed)
    shown = show_steps(steps, agent, skills, prompts=False)
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
