"""Rollouts: every task is tried `group_size` times, all tries advancing together through one batching backend.

The loop is the same for one turn and for many. At each turn all living episodes ask at once; tries that stand at the same
prompt (the first turn of a group) are one request with `n` samples, so the prompt is read once. Where the agent has a skill
bank, what a try asks in the middle of an answer is answered there and then, for all tries that ask together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium

from skill_ttrl.agents.agent import Agent, Scene
from skill_ttrl.agents.projection import Projection
from skill_ttrl.agents.skill_agent import Asked, SkillAgent
from skill_ttrl.episode import finite, goal_of, listed_actions, plain, source_of
from skill_ttrl.errors import EnvError
from skill_ttrl.llm.base import Backend, Generation, Request, Sampling
from skill_ttrl.llm.pauses import Pause, generate_with_pauses
from skill_ttrl.skills.merge import note
from skill_ttrl.skills.merger import titles
from skill_ttrl.skills.ops import RETRIEVE_END, OutputParser
from skill_ttrl.types import (
    Completion,
    Group,
    Message,
    Skill,
    SkillOps,
    Step,
    StopReason,
    Task,
    Trajectory,
    derive_seed,
)

TextEnvironment = gymnasium.Env[str, str]
_PARSER = OutputParser()


class EnvPool:
    """Environments that are made once and used again for every episode.

    Args:
        make: makes one environment; called as often as episodes run side by side.
    """

    def __init__(self, make: Callable[[], TextEnvironment]) -> None:
        self._make = make
        self._envs: list[TextEnvironment] = []

    def take(self, count: int) -> list[TextEnvironment]:
        """`count` environments, ready to be reset."""
        while len(self._envs) < count:
            self._envs.append(self._make())
        return self._envs[:count]

    def close(self) -> None:
        """Close them all."""
        for env in self._envs:
            env.close()
        self._envs.clear()


@dataclass
class Episode:
    """One try while it runs."""

    task: Task
    env: TextEnvironment
    observation: str = ""
    steps: list[Step] = field(default_factory=list)
    stop_reason: StopReason | None = None
    error: str | None = None
    skills: tuple[Skill, ...] = ()
    """What its prompts show."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """What its present prompt had no room for; see `Step.left_out`."""
    skills_had_no_room: Mapping[str, int] = field(default_factory=dict)
    """The same of the skills that were found for it, which holds for all of its prompts."""
    skill_tokens: int = 0
    """How much longer its prompts are for that, and for what is said of the bank."""
    retrieved: list[Skill] = field(default_factory=list)
    """What it was told, in order."""
    notes: tuple[Skill, ...] = ()
    """Skills it wrote itself, where it may find them again."""
    admissible: tuple[str, ...] = ()
    """Actions that the environment lists as possible now (`info["admissible_commands"]`)."""
    begun: Mapping[str, Any] = field(default_factory=dict)
    """What the environment said at the start beside the observation."""

    def start(self, seed: int) -> None:
        """Reset the environment, with `seed` where the task has none of its own.

        The true answer goes along only where the task still carries it.
        """
        options = dict(self.task.options)
        if self.task.reference is not None:
            options["reference"] = self.task.reference
        try:
            self.observation, info = self.env.reset(
                seed=seed if self.task.seed is None else self.task.seed, options=options
            )
            self.admissible, self.begun = listed_actions(info), plain(info)
        except Exception as error:  # an environment is foreign code: its failure is this episode's outcome
            self._fail(error)

    @property
    def scene(self) -> Scene:
        """What its agent sees now."""
        asked = self.task.options.get("question")
        task = goal_of(self.begun) or (asked if isinstance(asked, str) else "")
        return Scene(self.observation, tuple(self.steps), task, self.admissible, self.skills)

    def act(
        self,
        prompt_ids: tuple[int, ...],
        completion: Completion,
        max_turns: int,
        projection: Projection,
    ) -> None:
        """Hand the action to the environment; where no answer came, the episode ends with the reason."""
        if completion.finish_reason == "error":
            self.stop_reason, self.error = "error", completion.error or "The sampler gave no answer."
            return
        try:
            seen, reward, terminated, truncated, info = self.env.step(projection.action)
            step = Step(
                observation=self.observation,
                action=projection.action,
                reward=finite(reward),
                terminated=bool(terminated),
                truncated=bool(truncated),
                prompt_ids=prompt_ids,
                completion=completion,
                info=plain(info, self.begun),
                admissible=self.admissible,
                verdict=projection.verdict,
                complaint=projection.complaint,
                left_out=self.left_out,
            )
        except Exception as error:  # as in `start`
            self._fail(error)
            return
        self.steps.append(step)
        self.observation, self.admissible = seen, listed_actions(info)
        if terminated:
            self.stop_reason = "terminated"
        elif truncated:
            self.stop_reason = "truncated"
        elif len(self.steps) >= max_turns:
            self.stop_reason = "max_turns"

    def end_too_long(self, found: int, limit: int) -> None:
        """There is no room for another turn; where there was none for the first, nothing was tried."""
        if self.steps:
            self.stop_reason = "truncated"
        else:
            self.stop_reason, self.error = "error", f"The prompt has {found} tokens, more than the {limit} allowed."

    def finish(self, bank_version: int | None = None) -> Trajectory:
        """The whole try. The answer is the environment's `info["answer"]` where it gives one, else found in the text.

        `bank_version` is that of the skill bank; None where there is none, then the text is not searched for operations.
        """
        answer = None
        if self.steps:
            last = self.steps[-1]
            answer = last.info["answer"] if "answer" in last.info else _PARSER.parse(last.written).answer
            answer = answer if answer is None else str(answer)
        assert self.stop_reason is not None
        return Trajectory(
            self.task,
            tuple(self.steps),
            answer,
            self.stop_reason,
            error=self.error,
            ops=None if bank_version is None else operations(self.steps),
            skills_in_prompt=tuple(skill.id for skill in self.skills),
            retrieved=tuple(skill.id for skill in self.retrieved),
            bank_version=bank_version,
            last_observation=self.observation if self.steps else "",
            source=source_of(self.begun),
            goal=goal_of(self.begun),
        )

    def _fail(self, error: Exception) -> None:
        self.stop_reason, self.error = "error", f"{type(error).__name__}: {error}"


async def rollout(
    tasks: Sequence[Task],
    group_size: int,
    *,
    envs: EnvPool,
    agent: Agent,
    backend: Backend,
    sampling: Sampling,
    seed: int,
    max_turns: int = 1,
    max_prompt_tokens: int | None = None,
    constrain: bool = False,
) -> list[Group]:
    """Try each task `group_size` times; one `Group` for each task, in order.

    With `constrain` the model can write nothing but an action that the environment lists, where it lists any. An episode whose
    conversation grows past `max_prompt_tokens` ends there; one that begins past it has failed. What the bank adds to a prompt has
    a budget of its own and does not count.
    """
    owners = [task for task in tasks for _ in range(group_size)]
    episodes = [Episode(task, env) for task, env in zip(owners, envs.take(len(owners)), strict=True)]
    for episode in episodes:  # all tries at a task begin alike, and a resumed run begins them as the first one did
        episode.start(derive_seed(seed, "env", episode.task.id))
    if isinstance(agent, SkillAgent):
        show_skills(episodes, agent, backend)
    for turn in range(max_turns):
        living = [(number, episode) for number, episode in enumerate(episodes) if episode.stop_reason is None]
        if not living:
            break
        waiting: dict[tuple[int, Request], list[Episode]] = defaultdict(list)
        prompts: dict[tuple[Message, ...], tuple[Request, int]] = {}  # tries at the same point share their conversation
        for number, episode in living:
            prompt = agent.prompt(episode.scene)
            messages, episode.left_out = prompt.messages, {**prompt.left_out, **episode.skills_had_no_room}
            if messages not in prompts:
                ids = backend.encode(messages)
                prompts[messages] = (
                    Request(messages, token_ids=ids),
                    backend.count(messages) if ids is None else len(ids),
                )
            request, length = prompts[messages]
            length -= episode.skill_tokens
            if max_prompt_tokens is not None and length > max_prompt_tokens:
                episode.end_too_long(length, max_prompt_tokens)
                continue
            choices = episode.admissible if constrain else ()
            waiting[number // group_size, replace(request, choices=choices)].append(episode)
        requests = [replace(request, n=len(asking)) for (_, request), asking in waiting.items()]
        asking = list(waiting.values())
        answered = await answers(requests, asking, agent, backend, sampling, derive_seed(seed, "turn", turn))
        for row, generation in zip(asking, answered, strict=True):
            for episode, completion in zip(row, generation.completions, strict=True):
                projection = agent.read(completion.written, episode.scene)
                episode.act(generation.prompt_ids, completion, max_turns, projection)
                if isinstance(agent, SkillAgent) and agent.config.own_notes and episode.error is None:
                    episode.notes += tuple(note(text, episode.task) for text in operations(episode.steps[-1:]).generate)
    version = agent.access.snapshot.version if isinstance(agent, SkillAgent) and agent.access is not None else None
    tries = [episode.finish(version) for episode in episodes]
    return [
        Group(task, tuple(tries[number * group_size : (number + 1) * group_size])) for number, task in enumerate(tasks)
    ]


def show_skills(episodes: Sequence[Episode], agent: SkillAgent, backend: Backend) -> None:
    """Choose the skills of every first prompt, all searched together; tries that begin alike see the same ones."""
    begun = {(episode.task.id, episode.observation): episode for episode in episodes}
    scenes = [episode.scene for episode in begun.values()]
    chosen = agent.choose(
        [episode.task for episode in begun.values()], [each.task or each.observation for each in scenes]
    )
    bare = agent.seeing(None)  # a prompt as its limit counts it
    for episode, scene, shown in zip(begun.values(), scenes, chosen, strict=True):
        with_skills = agent.prompt(replace(scene, skills=shown.skills)).messages
        episode.skill_tokens = backend.count(with_skills) - backend.count(bare.prompt(scene).messages)
        episode.skills = shown.skills
        episode.skills_had_no_room = {"skills": shown.left_out} if shown.left_out else {}
    for episode in episodes:
        first = begun[episode.task.id, episode.observation]
        episode.skills, episode.skill_tokens = first.skills, first.skill_tokens
        episode.skills_had_no_room = first.skills_had_no_room


async def answers(
    requests: Sequence[Request],
    asking: Sequence[Sequence[Episode]],
    agent: Agent,
    backend: Backend,
    sampling: Sampling,
    seed: int,
) -> list[Generation]:
    """One turn of all living tries; where the agent has a bank, their questions to it are answered on the way."""
    if not isinstance(agent, SkillAgent):
        return await backend.generate(requests, sampling, seed=seed)

    def tell(pauses: Sequence[Pause]) -> list[str | None]:
        owners = [asking[pause.request][pause.sample] for pause in pauses]
        questions = [Asked(owner.task, pause.written, owner.notes) for owner, pause in zip(owners, pauses, strict=True)]
        told = agent.tell(questions)
        for owner, answer in zip(owners, told, strict=True):
            owner.retrieved += answer.skills if answer is not None else ()
        return [None if answer is None else answer.text for answer in told]

    return await generate_with_pauses(
        backend, requests, sampling, seed=seed, mark=RETRIEVE_END, answer=tell, limit=agent.max_questions
    )


def operations(steps: Sequence[Step]) -> SkillOps:
    """All that a try asked of the skill bank, in the order of its turns; read from its own words only."""
    found = [_PARSER.parse(step.written).skill_ops for step in steps]
    return SkillOps(
        generate=tuple(text for ops in found for text in ops.generate),
        retrieve=tuple(query for ops in found for query in ops.retrieve),
        evolve=tuple(evolution for ops in found for evolution in ops.evolve),
        errors=tuple(error for ops in found for error in ops.errors),
        titles=tuple(title for ops in found for title in titles(ops)),
    )


def refuse_failure(groups: Sequence[Group]) -> list[str]:
    """What went wrong in the tries that failed: such a try is data, unless there is nothing else.

    Raises:
        EnvError: every try failed: the environment is broken, and there is nothing to learn from or to measure.
    """
    tries = [trajectory for group in groups for trajectory in group.trajectories]
    errors = [trajectory.error for trajectory in tries if trajectory.error is not None]
    if errors and len(errors) == len(tries):
        raise EnvError(f"Every one of {len(tries)} tries failed in {groups[0].task.env_id}. The first: {errors[0]}")
    return errors
