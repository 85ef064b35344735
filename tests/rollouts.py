"""Rollouts of tests: tasks, an agent and a backend in, groups out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from skill_ttrl.agents.agent import Agent, PromptFormatter
from skill_ttrl.llm.backend import Backend, Sampling, wait_for
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout
from skill_ttrl.types import Group, Task, Trajectory

AGENT = Agent(PromptFormatter("plain"))


def play(
    envs: EnvPool | Callable[[], Any],
    tasks: Sequence[Task],
    tries: int,
    backend: Backend,
    agent: Agent = AGENT,
    *,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
    **settings: Any,
) -> list[Group]:
    """Play each task `tries` times; `settings` are those of `RolloutSettings`."""
    pool = envs if isinstance(envs, EnvPool) else EnvPool(envs)
    how = RolloutSettings(**{"sampling": Sampling(), "seed": 0, **settings})
    work = rollout(tasks, tries, envs=pool, agent=agent, backend=backend, settings=how, on_episode=on_episode)
    return wait_for(work)
