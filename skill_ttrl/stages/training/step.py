"""A training step: its tasks, the samples of it that are trained on, and the wall time of its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.progress import Progress
from skill_ttrl.rl.device import GpuMemoryMonitor
from skill_ttrl.types import Group, Task, VoteResult, derive_seed

if TYPE_CHECKING:
    from accelerate import Accelerator

VOTED = "majority"
"""The reward that the votes decide, as `vote.strategy` says."""


def step_tasks(tasks: Sequence[Task], count: int, step: int, seed: int) -> list[Task]:
    """The tasks of one step, all different: each epoch is one order drawn from the run's seed, cut into whole steps.

    What does not fill a last step is left to the next epochs' orders.
    """
    epoch, place = divmod(step, len(tasks) // count)
    order = np.random.default_rng(derive_seed(seed, "tasks", epoch)).permutation(len(tasks))
    return [tasks[position] for position in order[place * count : (place + 1) * count]]


def select_training_samples(
    groups: Sequence[Group], votes: Sequence[VoteResult], config: SkillTTRLConfig, step: int
) -> list[tuple[Group, VoteResult]]:
    """Select the rollouts to train on: `n_samples_per_prompt` a group, sampled with a fixed seed (TTRL).

    All rollouts vote; only these contribute to the loss. Excludes failed rollouts, and a rollout left alone because the rest of
    its group failed. Where two wordings were sampled, half are of each. Where votes are rewarded, excludes prompts that the vote
    skips.
    """
    rng = np.random.default_rng(derive_seed(config.seed, "subset", step))
    chosen = []
    for group, vote in zip(groups, votes, strict=True):
        drawn: list[int] = []
        views = sorted({trajectory.prompt_variant for trajectory in group.trajectories})
        for view in views:
            keep = (config.rollout.n_samples_per_prompt - len(drawn)) // (len(views) - views.index(view))
            rollouts = enumerate(group.trajectories)
            whole = [place for place, each in rollouts if each.error is None and each.prompt_variant == view]
            drawn += whole if len(whole) <= keep else sorted(rng.choice(whole, keep, replace=False).tolist())
        if len(drawn) == 1 < min(len(group.trajectories), config.rollout.n_samples_per_prompt):
            drawn = []
        if not (vote.skipped and config.rl.reward == VOTED):
            chosen.append((group.select(drawn), vote.select(drawn)))
    return chosen


class StepTimer:
    """Wall time of the parts of one step, and on a GPU the memory that it took."""

    def __init__(self, progress: Progress, phase: str, accelerator: Accelerator) -> None:
        self._progress, self._phase = progress, phase
        self._memory = GpuMemoryMonitor(accelerator.device)
        self._began, self._cpu_began = time.perf_counter(), time.process_time()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Time a part, and show it as what the phase is at. Parts of one name add up."""
        self._memory.sample()
        self._progress.enter(self._phase, part)
        began = time.perf_counter()
        yield
        self._seconds[f"{part}_seconds"] = self._seconds.get(f"{part}_seconds", 0.0) + time.perf_counter() - began

    def add(self, part: str, seconds: float) -> None:
        """Count a part that another thread did, wall time of its own; it does not add up with the others to the whole step."""
        self._seconds[f"{part}_seconds"] = seconds

    def stop(self) -> dict[str, float]:
        """Seconds of each part, `seconds` of the whole step, of all cores together `cpu_seconds`, and GPU memory."""
        self._memory.sample()
        whole = {"seconds": time.perf_counter() - self._began, "cpu_seconds": time.process_time() - self._cpu_began}
        return {**self._seconds, **whole, **self._memory.metrics()}
