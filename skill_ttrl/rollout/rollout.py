"""Single- and multi-turn rollouts: every task is played `group_size` times through one batching backend.

`sync` advances all active rollouts together, one batched turn at a time; the same seed gives the same samples. `async` advances
each rollout as soon as its environment responds, so a slow environment blocks no other. Rollouts that stand at the same prompt at
the start of a group share one request with `n` samples, so the prompt is read once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

from skill_ttrl.agents.agent import Agent
from skill_ttrl.errors import BudgetError, EndpointError, EnvError
from skill_ttrl.llm.backend import Backend, Generation, Request
from skill_ttrl.llm.hand_over import BatchingBackend
from skill_ttrl.rollout.env_pool import EnvPool, EnvThreads, TextEnvironment
from skill_ttrl.rollout.episode import ActiveRollout, call_inline
from skill_ttrl.rollout.scripted import Adviser
from skill_ttrl.rollout.turns import PromptCache, RolloutContext, RolloutSettings, attach_prompt_skills, generate_turn
from skill_ttrl.types import Completion, Group, Task, Trajectory, derive_seed

CallAll = Callable[[Iterable[Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]
"""Awaits all of these, in one order or at the same time."""
THREADS = 256
"""Most environments that are called at the same time in threads."""
GROUP_START_WAIT_S = 1.0
"""Seconds that the first rollout of a group to be ready waits for the others, to share its first request with them."""


async def rollout(
    tasks: Sequence[Task],
    group_size: int,
    *,
    envs: EnvPool,
    agent: Agent,
    backend: Backend,
    settings: RolloutSettings,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> list[Group]:
    """Play each task `group_size` times; one `Group` for each task, in order.

    `on_episode` is called with each rollout as it ends, in any order.
    """
    owners = [task for task in tasks for _ in range(group_size)]
    with envs.lend(len(owners)) as taken:
        run = await _play(
            list(zip(owners, taken, strict=True)),
            group_size,
            envs,
            RolloutContext(agent, backend, settings, on_episode),
        )
    rollouts = [run.finished[place] for place in range(len(owners))]
    starts = range(0, len(owners), group_size)
    return [Group(task, tuple(rollouts[start : start + group_size])) for task, start in zip(tasks, starts, strict=True)]


async def _play(
    placed: Sequence[tuple[Task, TextEnvironment]], group_size: int, envs: EnvPool, run: RolloutContext
) -> RolloutContext:
    """Play each task in its environment; gives `run` with what came of it."""
    backend, settings = run.backend, run.settings
    threads = EnvThreads(THREADS)
    elsewhere = all(getattr(env.unwrapped, "elsewhere", False) for _, env in placed)
    in_threads = settings.schedule == "async" or settings.rollout_timeout_s is not None or elsewhere
    call = threads.call if in_threads else call_inline
    episodes = [ActiveRollout(task, env, envs, call, settings.rollout_timeout_s) for task, env in placed]
    if settings.adviser is not None:
        for place, episode in enumerate(episodes):
            episode.adviser = Adviser(settings.adviser(), settings.seed, place % group_size)
    getattr(backend, "start", lambda: None)()  # an engine that starts only now takes nobody's time
    extends = run.agent.prompts_extend and settings.max_turns > 1
    places = [found for _, env in placed if (found := getattr(env.unwrapped, "place", None)) is not None]
    try:
        await _gather(threads.call(place) for place in places)  # making them takes no episode's time
        with getattr(backend, "keeping", nullcontext)() if extends else nullcontext():
            if settings.schedule == "sync":
                await _run_lockstep(run, episodes, group_size, _gather if elsewhere else _one_by_one)
            else:
                if getattr(backend, "blocking", False):
                    batching = BatchingBackend(backend, lambda: len(episodes) - len(run.finished))
                    run.backend = cast(Backend, batching)
                rows = list(enumerate(episodes))
                starts = range(0, len(episodes), group_size)
                await _gather(_run_group(run, rows[start : start + group_size]) for start in starts)
    finally:
        threads.close()
    return run


async def _run_lockstep(
    run: RolloutContext, episodes: Sequence[ActiveRollout], group_size: int, call_all: CallAll
) -> None:
    """Advance all active rollouts together, turn by turn.

    Environments of this process are called one after the other, always in the same order: where two share a file or a generator, a resumed run
    would otherwise differ. Those that live elsewhere, each by itself, are called at the same time.
    """
    # One seed for all rollouts of a task, the same in a resumed run.
    await call_all(episode.start(derive_seed(run.settings.seed, "env", episode.task.id)) for episode in episodes)
    if run.agent.skills is not None:
        attach_prompt_skills(episodes, run.agent, run.backend)
    for turn in range(run.settings.max_turns):
        known: PromptCache = {}
        waiting: dict[tuple[int, Request], list[ActiveRollout]] = defaultdict(list)
        for place, episode in enumerate(episodes):
            request = run.build_request(episode, known)
            if request is not None:
                waiting[place // group_size, request].append(episode)
        if not waiting:
            break
        requests = [replace(request, n=len(row)) for (_, request), row in waiting.items()]
        found = await generate_turn(requests, list(waiting.values()), run, derive_seed(run.settings.seed, "turn", turn))
        await call_all(
            run.apply_completion(episode, generation, completion)
            for generation, row in found
            for episode, completion in zip(row, generation.completions, strict=True)
        )
        for place, episode in enumerate(episodes):
            run.finish(place, episode)
    for place, episode in enumerate(episodes):
        run.finish(place, episode)


async def _run_group(run: RolloutContext, row: Sequence[tuple[int, ActiveRollout]]) -> None:
    """Run the rollouts of one task when `async`: those that are ready at about the same time share their start."""

    async def later(start: asyncio.Task[None], placed: tuple[int, ActiveRollout]) -> None:
        await start
        await _run_from_start(run, [placed])

    seed = derive_seed(run.settings.seed, "env", row[0][1].task.id)
    starts = [(asyncio.create_task(placed[1].start(seed)), placed) for placed in row]
    try:
        _, late = await asyncio.wait([start for start, _ in starts], return_when=asyncio.FIRST_COMPLETED)
        if late:
            _, late = await asyncio.wait(late, timeout=GROUP_START_WAIT_S)
        ready = [placed for start, placed in starts if start not in late]
        await _gather(
            [_run_from_start(run, ready), *(later(start, placed) for start, placed in starts if start in late)]
        )
    finally:
        for start, _ in starts:
            start.cancel()


async def _run_from_start(run: RolloutContext, row: Sequence[tuple[int, ActiveRollout]]) -> None:
    """Run rollouts whose environments have been reset; those at the same prompt share their first request."""
    if run.agent.skills is not None:
        attach_prompt_skills([episode for _, episode in row], run.agent, run.backend)
    known: PromptCache = {}
    waiting: dict[Request, list[tuple[int, ActiveRollout]]] = defaultdict(list)
    for place, episode in row:
        request = run.build_request(episode, known)
        if request is None:
            run.finish(place, episode)
        else:
            waiting[request].append((place, episode))
    await _gather(_run_shared_first_turn(run, request, asking) for request, asking in waiting.items())


async def _run_shared_first_turn(
    run: RolloutContext, request: Request, row: Sequence[tuple[int, ActiveRollout]]
) -> None:
    """Run the first turn of rollouts at the same prompt; each continues alone from there."""
    requests = [replace(request, n=len(row))]
    found = await generate_turn(requests, [[episode for _, episode in row]], run, _seed(run, *row[0]))
    for generation, _ in found:
        pairs = zip(row, generation.completions, strict=True)
        await _gather(_run_rest(run, *placed, generation, completion) for placed, completion in pairs)
    for place, episode in row:
        run.finish(place, episode)


async def _run_rest(
    run: RolloutContext, place: int, episode: ActiveRollout, generation: Generation, completion: Completion
) -> None:
    """Run the rest of a rollout, from its first completion on."""
    await run.apply_completion(episode, generation, completion)
    while (request := run.build_request(episode, {})) is not None:
        for generation, _ in await generate_turn([request], [[episode]], run, _seed(run, place, episode)):
            await run.apply_completion(episode, generation, generation.completions[0])
    run.finish(place, episode)


def _seed(run: RolloutContext, place: int, episode: ActiveRollout) -> int:
    return derive_seed(run.settings.seed, "episode", place, len(episode.steps))


async def _one_by_one(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    for each in work:
        await each


async def _gather(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. The first error cancels the others; after a `BudgetError` they finish, as they are paid for."""
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
    """True if the model gave no answer in any rollout."""
    return all(trajectory.stop_reason == "no_answer" for group in groups for trajectory in group.trajectories)


def refuse_failure(groups: Sequence[Group]) -> list[str]:
    """Return the errors of the failed rollouts. A failed rollout is data, unless there is nothing else.

    Raises:
        EndpointError: the model gave no answer in any rollout.
        EnvError: every rollout failed: the environment is broken, and there is nothing to learn from or to measure.
    """
    rollouts = [trajectory for group in groups for trajectory in group.trajectories]
    errors = [trajectory.error for trajectory in rollouts if trajectory.error is not None]
    if rollouts and all_unanswered(groups):
        raise EndpointError(
            f"The model gave no answer in any of {len(rollouts)} rollouts. The first: {errors[0]}", "failed"
        )
    if errors and len(errors) == len(rollouts):
        raise EnvError(f"All {len(rollouts)} rollouts failed in {groups[0].task.env_id}. The first error: {errors[0]}")
    return errors
