"""The tasks of an environment that are played, and how often each is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import env_tasks, resolve_env
from skill_ttrl.envs.lookup import refuse_split, split_argument
from skill_ttrl.envs.tasks import spread
from skill_ttrl.errors import ConfigError, EnvError, did_you_mean
from skill_ttrl.progress import OPENING, Counting, Progress, telling_warnings
from skill_ttrl.runs.folder import describe_environment
from skill_ttrl.types import Task, to_json

Unit = tuple[Task, int]
"""A task, and the index of the rollout of it."""


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """Tasks of an environment, and how often each is played."""

    env: str
    """Short name, Gymnasium id, or `module:EnvId-v0`."""
    split: str = "train"
    """Part of the environment's tasks."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment; its split is added where it takes one (`made`)."""
    types: Sequence[str] = ()
    """Only tasks of these types; empty: all."""
    episodes: int | None = None
    """So many, of tasks that are spread over the split and its types (`envs.tasks.spread`); None: `rollouts_per_task` of every task."""
    rollouts_per_task: int = 1
    """Episodes of each task; they begin alike."""
    subset_size: int | None = None
    """Only of so many tasks, spread over the split: those that a run trains on; None: all."""

    def made(self, kwargs: Mapping[str, Any]) -> TaskSelection:
        """The same tasks of an environment that is made with `kwargs`, to which the split is added.

        Raises:
            EnvError: there is a split among the arguments too.
        """
        refuse_split(kwargs)
        return replace(self, kwargs={**kwargs, **split_argument(self.env, self.split)})

    def units(self, progress: Progress) -> list[Unit]:
        """Rollouts in order: all rollouts of a task before the next one.

        Raises:
            ConfigError: a number is below 1.
            EnvError: there is no such environment, split or type.
        """
        for name, value in (("episodes", self.episodes), ("rollouts_per_task", self.rollouts_per_task)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, found {value}.")
        most = None if self.episodes is None else -(-self.episodes // self.rollouts_per_task)
        whole = not self.types and self.subset_size is None
        with telling_warnings(progress):
            counting = Counting(progress, OPENING, "item")
            tasks = env_tasks(self.env, self.kwargs, self.split, most if whole else self.subset_size, counting)
        known = {task.task_type for task in tasks}
        for kind in self.types:
            if kind not in known:
                raise EnvError(
                    f"{self.env} has no tasks of type {kind!r} in the split {self.split!r}.{did_you_mean(kind, known - {''})}"
                )
        if not whole:
            tasks = spread([task for task in tasks if not self.types or task.task_type in self.types], most)
        if most is not None and len(tasks) < most:
            progress.notice(
                f"{self.split} has only {len(tasks):,} tasks, so {len(tasks) * self.rollouts_per_task:,} episodes are played instead of "
                f"{self.episodes:,}. To play each task more often: --rollouts-per-task (collect.rollouts_per_task)."
            )
        return [(task, attempt) for task in tasks for attempt in range(self.rollouts_per_task)][: self.episodes]

    def made_with(self, units: Sequence[Unit], agent: str, seed: int) -> dict[str, Any]:
        """All that decides which lines a collection has, except what matters of the agent apart from its name."""
        digest = hashlib.blake2b(digest_size=16)
        for task, attempt in units:
            digest.update(f"{attempt} {to_json(task)}\n".encode())
        return {
            "env": resolve_env(self.env),
            "kwargs": json.loads(json.dumps(self.kwargs, default=str)),
            "agent": agent,
            "split": self.split,
            "types": sorted(self.types),
            "rollouts_per_task": self.rollouts_per_task,
            "seed": seed,
            "episodes": len(units),
            "tasks": digest.hexdigest(),
            "skill_ttrl": describe_environment()["skill_ttrl"],
        }


def training_selection(config: SkillTTRLConfig) -> TaskSelection:
    """Select the tasks that the collect phase of a run plays: tasks that the run trains on.

    Raises:
        ConfigError: they come from files.
        EnvError: there is no such environment, or its arguments name a split.
    """
    asked, env = config.collect, config.env
    if config.data.train is not None:
        raise ConfigError(
            "The phase collect plays the environment's training tasks (env.train_split), but data.train names other tasks. Remove "
            "one of the two."
        )
    selection = TaskSelection(
        env.id,
        env.train_split,
        episodes=asked.episodes,
        rollouts_per_task=asked.rollouts_per_task,
        subset_size=env.train_tasks,
    )
    return selection.made(env.kwargs)
