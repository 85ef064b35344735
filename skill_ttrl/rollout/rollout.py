"""Rollouts: every task is tried `group_size` times through one batching backend.

The same for one turn and for many, in one of two orders. In `lockstep` all living tries ask at once, turn by turn: the same seed
gives the same samples. When `free`, each asks as soon as its environment has answered: a slow one holds up nobody. Tries that stand
at the same prompt at the start of a group are one request with `n` samples, so the prompt is read once. Where the agent has a skill
bank, what a try asks in the middle of an answer is answered there and then.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from skill_ttrl.agents.agent import Agent
from skill_ttrl.errors import BudgetError, EndpointError, EnvError
from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling
from skill_ttrl.llm.batching import BatchingBackend
from skill_ttrl.rollout.env_pool import EnvPool, EnvThreads
from skill_ttrl.rollout.episode import ActiveRollout, call_inline
from skill_ttrl.rollout.turns import Play, PromptCache, answers, attach_prompt_skills
from skill_ttrl.types import Completion, Group, Task, Trajectory, derive_seed

Schedule = Literal["lockstep", "free"]
Placed = tuple[int, ActiveRollout]
"""A try and its place among all."""
THREADS = 256
"""Most environments that are called at the same time in threads."""
GROUP_START_WAIT_S = 1.0
"""Seconds that the first try of a group to be ready waits for the others, to share its first request with them."""


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
    schedule: Schedule = "lockstep",
    episode_seconds: float | None = None,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> list[Group]:
    """Try each task `group_size` times; one `Group` for each task, in order.

    Args:
        tasks: to be tried.
        group_size: tries at each.
        envs: where environments are taken from.
        agent: makes prompts and reads answers.
        backend: samples.
        sampling: how.
        seed: of all random choices.
        max_turns: longest episode.
        max_prompt_tokens: an episode whose conversation grows past it ends there; one that begins past it has failed. What the
            bank adds to a prompt has a budget of its own and does not count.
        constrain: the model can write nothing but an action that the environment lists, where it lists any.
        schedule: `lockstep` calls environments here and in order, `free` in threads.
        episode_seconds: an episode that has taken so long has failed (`stop_reason` "timeout"). Environments are then called in
            threads in either schedule, and one that hangs is not used again. None: it may take any time.
        on_episode: called with each try as it ends, in any order.
    """
    owners = [task for task in tasks for _ in range(group_size)]
    threads = EnvThreads(THREADS)
    call = threads.call if schedule == "free" or episode_seconds is not None else call_inline
    taken = zip(owners, envs.take(len(owners)), strict=True)
    episodes = [ActiveRollout(task, env, envs, call, episode_seconds) for task, env in taken]
    getattr(backend, "ready", lambda: None)()  # an engine that starts only now takes nobody's time
    play = Play(agent, backend, sampling, seed, max_turns, max_prompt_tokens, constrain, on_episode)
    starts = range(0, len(episodes), group_size)
    try:
        if schedule == "lockstep":
            await _in_lockstep(play, episodes, group_size)
        else:
            if getattr(backend, "blocking", False):
                batching = BatchingBackend(backend, lambda: len(episodes) - len(play.ended))
                play.backend = cast(Backend, batching)
            placed = list(enumerate(episodes))
            await _all(_group(play, placed[start : start + group_size]) for start in starts)
    finally:
        threads.close()
    tries = [play.ended[place] for place in range(len(episodes))]
    return [Group(task, tuple(tries[start : start + group_size])) for task, start in zip(tasks, starts, strict=True)]


async def _in_lockstep(play: Play, episodes: Sequence[ActiveRollout], group_size: int) -> None:
    """All living tries ask together, turn by turn.

    Their environments are called one after the other: two that share something, a file or a generator, meet in the same order
    every time, without which a resumed run would not be the same.
    """
    for episode in episodes:  # all tries at a task begin alike, and a resumed run begins them as the first one did
        await episode.start(derive_seed(play.seed, "env", episode.task.id))
    if play.agent.skills is not None:
        attach_prompt_skills(episodes, play.agent, play.backend)
    for turn in range(play.max_turns):
        known: PromptCache = {}
        waiting: dict[tuple[int, Request], list[ActiveRollout]] = defaultdict(list)
        for place, episode in enumerate(episodes):
            request = play.ask(episode, known)
            if request is not None:
                waiting[place // group_size, request].append(episode)
        if not waiting:
            break
        requests = [replace(request, n=len(row)) for (_, request), row in waiting.items()]
        found = await answers(requests, list(waiting.values()), play, derive_seed(play.seed, "turn", turn))
        for generation, row in found:
            for episode, completion in zip(row, generation.completions, strict=True):
                await play.take(episode, generation, completion)
        for place, episode in enumerate(episodes):
            play.end(place, episode)
    for place, episode in enumerate(episodes):
        play.end(place, episode)


async def _group(play: Play, row: Sequence[Placed]) -> None:
    """The tries at one task when `free`: those that are ready at about the same time begin together."""

    async def later(start: asyncio.Task[None], placed: Placed) -> None:
        await start
        await _begin(play, [placed])

    seed = derive_seed(play.seed, "env", row[0][1].task.id)
    starts = [(asyncio.create_task(placed[1].start(seed)), placed) for placed in row]
    try:
        _, late = await asyncio.wait([start for start, _ in starts], return_when=asyncio.FIRST_COMPLETED)
        if late:
            _, late = await asyncio.wait(late, timeout=GROUP_START_WAIT_S)
        ready = [placed for start, placed in starts if start not in late]
        await _all([_begin(play, ready), *(later(start, placed) for start, placed in starts if start in late)])
    finally:
        for start, _ in starts:
            start.cancel()


async def _begin(play: Play, row: Sequence[Placed]) -> None:
    """Tries that have begun, from their first turn on; those at the same prompt share their first request."""
    if play.agent.skills is not None:
        attach_prompt_skills([episode for _, episode in row], play.agent, play.backend)
    known: PromptCache = {}
    waiting: dict[Request, list[Placed]] = defaultdict(list)
    for place, episode in row:
        request = play.ask(episode, known)
        if request is None:
            play.end(place, episode)
        else:
            waiting[request].append((place, episode))
    await _all(_together(play, request, asking) for request, asking in waiting.items())


async def _together(play: Play, request: Request, row: Sequence[Placed]) -> None:
    """The first turn of tries that stand at the same prompt; each goes on alone from there."""
    requests = [replace(request, n=len(row))]
    found = await answers(requests, [[episode for _, episode in row]], play, _seed(play, *row[0]))
    for generation, _ in found:
        pairs = zip(row, generation.completions, strict=True)
        await _all(_alone(play, *placed, generation, completion) for placed, completion in pairs)
    for place, episode in row:
        play.end(place, episode)


async def _alone(
    play: Play, place: int, episode: ActiveRollout, generation: Generation, completion: Completion
) -> None:
    """The rest of a try, from its first answer on."""
    await play.take(episode, generation, completion)
    while (request := play.ask(episode, {})) is not None:
        for generation, _ in await answers([request], [[episode]], play, _seed(play, place, episode)):
            await play.take(episode, generation, generation.completions[0])
    play.end(place, episode)


def _seed(play: Play, place: int, episode: ActiveRollout) -> int:
    return derive_seed(play.seed, "episode", place, len(episode.steps))


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of it side by side; the first error ends the others, but for answers that are paid for."""
    running = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*running)
    except BaseException as error:
        if not isinstance(error, BudgetError):
            for task in running:
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise


def all_unanswered(groups: Sequence[Group]) -> bool:
    """True where the model gave no answer in any try."""
    return all(trajectory.stop_reason == "no_answer" for group in groups for trajectory in group.trajectories)


def refuse_failure(groups: Sequence[Group]) -> list[str]:
    """What went wrong in the tries that failed: such a try is data, unless there is nothing else.

    Raises:
        EndpointError: the model gave no answer in any try.
        EnvError: every try failed otherwise: the environment is broken, and there is nothing to learn from or to measure.
    """
    tries = [trajectory for group in groups for trajectory in group.trajectories]
    errors = [trajectory.error for trajectory in tries if trajectory.error is not None]
    if tries and all_unanswered(groups):
        raise EndpointError(f"The model gave no answer in any of {len(tries)} tries. The first: {errors[0]}", "failed")
    if errors and len(errors) == len(tries):
        raise EnvError(f"Every one of {len(tries)} tries failed in {groups[0].task.env_id}. The first: {errors[0]}")
    return errors
