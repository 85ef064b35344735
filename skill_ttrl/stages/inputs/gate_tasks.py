"""The tasks that changes of a skill bank are tested on (`skills.gate`): held out from training, and not those of the evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skill_ttrl.config import GateConfig, SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.progress import Progress
from skill_ttrl.stages.inputs.leak import leaked, seen_tasks, settle, task_content
from skill_ttrl.stages.inputs.tasks import source_tasks
from skill_ttrl.types import Task, derive_seed


def gate_of(config: SkillTTRLConfig) -> GateConfig | None:
    """The gate of a run; None where no bank changes in it, or all changes are applied as they come."""
    skills = config.skills
    return skills.gate if skills is not None and skills.enabled and "rl" in config.phases else None


def hold_out(
    config: SkillTTRLConfig,
    env_id: str,
    train: Sequence[Task],
    evaluated: Sequence[Task] | None,
    progress: Progress,
    warnings: list[str],
) -> tuple[list[Task], list[Task]]:
    """Split the tasks to train on from those of the gate; the latter are none where there is no gate.

    Args:
        config: the whole config.
        env_id: the environment's Gymnasium id.
        train: all training tasks.
        evaluated: those of the evaluation; None where these are the training tasks.
        progress: shows how far reading is.
        warnings: gets lines on tasks that the evaluation shares with `skills.gate.data`.

    Raises:
        ConfigError: too few tasks, or the run is measured on its training tasks.
        DataError: the gate's own tasks cannot be read, or are those of the evaluation.
    """
    gate = gate_of(config)
    if gate is None:
        return [*train], []
    if evaluated is None:
        raise ConfigError(
            "skills.gate decides by success on training tasks, and this run evaluates on the same tasks. Give it separate "
            "evaluation tasks (data.eval), or leave out skills.gate."
        )
    if gate.data is None:
        return split_tasks(train, gate.tasks, config.seed)
    tasks = source_tasks(config, env_id, gate.data, "train", None, progress)[: gate.tasks]
    warnings += settle(config, leaked(config, evaluated, seen_tasks(tasks), "skills.gate.data"))
    held_out = {task_content(task) for task in tasks}
    return [task for task in train if task_content(task) not in held_out], tasks


def split_tasks(tasks: Sequence[Task], count: int, seed: int) -> tuple[list[Task], list[Task]]:
    """Draw `count` tasks with the seed: the others in their order, and these, without true answers, in the order that they were drawn.

    Raises:
        ConfigError: none would be left to train on.
    """
    if count >= len(tasks):
        raise ConfigError(
            f"skills.gate.tasks is {count}, but there are {len(tasks)} training tasks, and the gate's tasks are not trained on. "
            "Lower it, or add tasks."
        )
    drawn = np.random.default_rng(derive_seed(seed, "gate tasks")).permutation(len(tasks))[:count].tolist()
    held_out = {*drawn}
    return [task for place, task in enumerate(tasks) if place not in held_out], [
        tasks[place].without_ground_truth() for place in drawn
    ]
