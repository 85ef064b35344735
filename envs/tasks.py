"""The tasks of an environment: its own, or its seeds."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skill_ttrl.envs.contract import close_env
from skill_ttrl.envs.lookup import make_env, prepare_env, resolve_env, split_argument
from skill_ttrl.errors import EnvError, SkillTTRLError, SplitError
from skill_ttrl.signals import FAILURES, pass_signals
from skill_ttrl.types import Task

DEFAULT_SEED_TASKS = 256
_SEEDS_PER_SPLIT = 1_000_000
_SPLIT_BLOCKS = {"train": 0, "validation": 1, "test": 2}


def env_tasks(
    env_id: str,
    kwargs: Mapping[str, Any],
    split: str = "train",
    count: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Task]:
    """The tasks of one split of an environment; None for all, else `count` of them, spread over types and order (`spread`).

    An environment that is made with a `split` is made with this one, whatever `kwargs` say. `progress` is as for
    `prepare_env`.

    An environment without a method `tasks`, or whose method returns None, has its seeds as tasks: 0, 1, 2, … for "train",
    from 1,000,000 on for "validation", from 2,000,000 on for "test" (256 where no count is given).

    Raises:
        EnvError: see `make_env`; `SplitError`: the split has no tasks.
    """
    arguments = {**kwargs, **split_argument(env_id, split)}
    prepare_env(env_id, arguments, progress)
    env = make_env(env_id, **arguments)
    try:
        find = getattr(env.unwrapped, "tasks", None)
        own = find(split) if callable(find) else None
    except SkillTTRLError:
        raise
    except FAILURES as error:
        pass_signals(error)
        raise EnvError(f"{env_id}.tasks({split!r}) raised {type(error).__name__}: {error}.") from error
    finally:
        close_env(env)
    if own is None:
        return _seed_tasks(resolve_env(env_id), split, DEFAULT_SEED_TASKS if count is None else count)
    tasks = [replace(task, env_id=resolve_env(env_id)) for task in spread(own, count)]
    if not tasks:
        raise SplitError(f"{env_id} has no tasks in the split {split!r}.")
    return tasks


def spread(tasks: Sequence[Task], count: int | None) -> list[Task]:
    """So many tasks, in their order, that are to stand for all: always the same ones.

    Each type has its share of them, and at least one task where `count` allows it; those of a type are taken at even distances.
    Tasks often stand in the order of their types, so that the first ones are of one type only.

    Args:
        tasks: what there is.
        count: how many; None, or as many as there are: all.
    """
    if count is None or count >= len(tasks):
        return list(tasks)
    places: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        places.setdefault(task.task_type, []).append(place)
    taken = dict.fromkeys(places, 0)
    # Adams' method: always the type with most tasks for each that was taken of it; before that, those of which none was, largest first.
    queue = [(-float(len(tasks) + len(own)), order, kind) for order, (kind, own) in enumerate(places.items())]
    heapq.heapify(queue)
    for _ in range(count):
        _, order, kind = queue[0]
        taken[kind] += 1
        heapq.heapreplace(queue, (-len(places[kind]) / taken[kind], order, kind))
    chosen = [own[number * len(own) // taken[kind]] for kind, own in places.items() for number in range(taken[kind])]
    return [tasks[place] for place in sorted(chosen)]


def _seed_tasks(env_id: str, split: str, count: int) -> list[Task]:
    if count > _SEEDS_PER_SPLIT:
        raise EnvError(f"At most {_SEEDS_PER_SPLIT:,} seeds make the tasks of one split, {count:,} were asked.")
    block = _SPLIT_BLOCKS.get(split, len(_SPLIT_BLOCKS) + zlib.crc32(split.encode()) % 1000)
    start = block * _SEEDS_PER_SPLIT
    return [Task(id=f"seed-{seed}", env_id=env_id, seed=seed, split=split) for seed in range(start, start + count)]
