"""Tasks of an optimization by role: training, selection and test. No task has two roles."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from skill_ttrl.config import OptimizeConfig, SkillTTRLConfig
from skill_ttrl.data.formats import QA_ENV_ID
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.progress import Progress
from skill_ttrl.stages.inputs.leak import task_content
from skill_ttrl.stages.inputs.pin import pinned_source
from skill_ttrl.stages.inputs.tasks import source_tasks, training_tasks
from skill_ttrl.stages.optimizing.rollouts import true_answer
from skill_ttrl.types import Task, derive_seed

TRAIN, SELECTION, TEST = "train", "selection", "test"
NEED_ANSWERS = (MATH_ENV_ID, QA_ENV_ID)
"""Environments that grade by a task's true answer alone."""
HELD_OUT = 0.25
"""Share of the training tasks that decide on candidates, if the config does not set it."""
WAYS = (
    "Each task has one role: training tasks are shown to the optimizer, selection tasks decide, test tasks report. Use "
    "others, or remove them from one role."
)


def find_tasks(config: SkillTTRLConfig, progress: Progress) -> dict[str, list[Task]]:
    """The tasks of each role.

    Training tasks are those of `data.train`, or the environment's own. Selection tasks are what `optimize.selection` names, by default a
    share of the training tasks. Test tasks are those of `data.eval`, else `optimize.test_tasks` of the training tasks, else the environment's
    own; none where only `data.train` names tasks, or with `optimize.test_tasks: 0`.

    Raises:
        DataError: a task has two roles, or too few are there to hold some out.
        ConfigError: `optimize.selection` names its tasks twice.
        SkillTTRLError: tasks cannot be read.
    """
    env_id, asked = resolve_env(config.env.id), config.optimize or OptimizeConfig()
    train = training_tasks(config, env_id, pinned_source(config.train_source), progress)
    own, data, test = asked.selection, config.data, list[Task]()
    if own.tasks is not None and (own.data is not None or own.split is not None):
        raise ConfigError("optimize.selection: set tasks, or data and its split, not both.")
    if own.split is not None and own.data is None and data.train is not None:
        raise ConfigError(
            "optimize.selection.split names a split of the environment's own tasks, but data.train replaces them. Set optimize.selection.data or "
            "optimize.selection.tasks."
        )
    if asked.test_tasks and data.eval is not None:
        raise ConfigError("optimize.test_tasks and data.eval both name test tasks: set only one.")
    if asked.test_tasks:
        train, test = hold_out(train, asked.test_tasks, derive_seed(config.seed, TEST), TEST)
    elif asked.test_tasks is None and data.eval is not None:
        test = source_tasks(config, env_id, pinned_source(config.eval_source), TEST, None, progress)
    elif asked.test_tasks is None and data.train is None:
        test = source_tasks(config, env_id, None, config.env.eval_split, config.env.eval_tasks, progress)
    elif asked.test_tasks is None:
        progress.notice(
            "Without data.eval nothing is tested at the end, and the selection score of the best document is optimistic."
        )
    if own.data is not None or own.split is not None:
        source = data.source(own.data)
        if source is not None:
            source.split = own.split
        selection = source_tasks(config, env_id, pinned_source(source), own.split or SELECTION, None, progress)
    else:
        train, selection = hold_out(train, own.tasks, derive_seed(config.seed, SELECTION), SELECTION)
    return told_apart({TRAIN: train, SELECTION: selection, TEST: test})


def hold_out(tasks: Sequence[Task], count: int | None, seed: int, role: str) -> tuple[list[Task], list[Task]]:
    """Training tasks, and `count` others drawn from them by `seed`; None: a quarter. Both in their order.

    Tasks that state the same stay together, so that none is in both.

    Raises:
        DataError: too few are left to train on.
    """
    contents = list(dict.fromkeys(map(task_content, tasks)))
    wanted = math.ceil(len(contents) * HELD_OUT) if count is None else count
    if wanted >= len(contents):
        raise DataError(
            f"Holding out {wanted} {role} tasks of {len(contents)} different training tasks leaves none to train on. Lower "
            "optimize.selection.tasks or optimize.test_tasks, or set optimize.selection.data or data.eval."
        )
    held = {*random.Random(seed).sample(contents, wanted)}
    selection: dict[str, Task] = {}
    for task in tasks:
        if (content := task_content(task)) in held:
            selection.setdefault(content, task)
    return [task for task in tasks if task_content(task) not in held], [*selection.values()]


def told_apart(roles: Mapping[str, Sequence[Task]]) -> dict[str, list[Task]]:
    """The same tasks with ids that are unique over all roles.

    An id of two different tasks is no leak where it is a mere number, as files count from 1: such tasks take the name of their role.

    Raises:
        DataError: a task has two roles, by what it states or by its id.
    """
    names: dict[str, str] = {}
    contents: dict[str, str] = {}
    found: dict[str, list[Task]] = {}
    for role, tasks in roles.items():
        found[role] = []
        for task in tasks:
            other, content = names.get(task.id, role), contents.setdefault(task_content(task), role)
            if content != role:
                raise DataError(f"The {role} task {_shown(task)} is also a {_named(content)} task. {WAYS}")
            if other != role and not task.id.isdigit():
                raise DataError(
                    f"The id {task.id!r} names a {_named(other)} task and another {_named(role)} task. {WAYS}"
                )
            names.setdefault(task.id, role)
            found[role].append(task if other == role else replace(task, id=f"{role}-{task.id}"))
    return found


def check_answers(roles: Mapping[str, Sequence[Task]]) -> None:
    """Refuse tasks without a true answer where the environment cannot tell success without one.

    Raises:
        DataError: so it is; names how many of which role.
    """
    found = []
    for role, tasks in roles.items():
        missing = [task for task in tasks if task.env_id in NEED_ANSWERS and true_answer(task) is None]
        if missing:
            found.append(f"{len(missing)} of {len(tasks)} {_named(role)} tasks (first {_shown(missing[0])})")
    if found:
        env_id = next(task.env_id for tasks in roles.values() for task in tasks)
        raise DataError(
            f"{' and '.join(found)} have no true answer, and {env_id} needs one. Give each record its answer (data.answer_field names its "
            "column), or remove such records; test tasks are optional (optimize.test_tasks=0)."
        )


def _named(role: str) -> str:
    return "training" if role == TRAIN else role


def _shown(task: Task) -> str:
    question = task.options.get("question")
    return f"{task.id!r} ({question[:60]!r})" if isinstance(question, str) else repr(task.id)
