"""The tasks of an environment: its own, or its seeds."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import gymnasium
from gymnasium.utils import seeding

from skill_ttrl.envs.lookup import make_env, prepare_env, resolve_env, split_argument
from skill_ttrl.envs.text_env import close_env
from skill_ttrl.errors import EnvError, SkillTTRLError, SplitError
from skill_ttrl.signals import FAILURES
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


def find_task(
    env: gymnasium.Env[Any, Any], env_id: str, *, name: str | None = None, split: str | None = None, seed: int = 0
) -> Task:
    """The task that is meant, or one of a split, drawn with `seed`.

    Args:
        env: whose tasks they are; one without tasks has its seeds.
        env_id: its id.
        name: a task's id, or a part of it that no other has. Without `split` the other splits are looked through as well: those that the
            environment names (`splits`), else the one that the id begins with, as ALFWorld's do.
        split: part of the data; None: the environment's own.
        seed: draws one where there is no `name`.

    Raises:
        EnvError: there is no such task or split.
    """
    find = getattr(env.unwrapped, "tasks", None)
    own: Sequence[Task] | None = find(split) if callable(find) else None
    if own is None or not callable(find):
        if name is not None:
            raise EnvError(f"{env_id} has no list of tasks: its seeds are its tasks. Choose one with --seed.")
        return Task(f"seed-{seed}", env_id, seed=seed, split=split or "train")
    of = "" if split is None else f"of the split {split!r} "
    if not own:
        raise EnvError(f"{env_id} has no tasks {of}to play.")
    if name is None:
        return own[int(seeding.np_random(seed)[0].integers(len(own)))]
    tasks = {task.id: task for task in own}
    if split is None and name not in tasks:
        for other in getattr(env.unwrapped, "splits", ()) or (name.partition("/")[0],):
            with suppress(EnvError):  # what stands before the slash need be no split, and a split may have no tasks
                tasks |= {task.id: task for task in find(other)}
    found = [name] if name in tasks else [each for each in tasks if name in each]
    if len(found) == 1:
        return tasks[found[0]]
    near = found[:3] or get_close_matches(name, tasks, n=3, cutoff=0.4) or list(tasks)[:3]
    several = f"{len(found)} tasks {of}have" if found else f"None of {len(tasks):,} tasks {of}has"
    raise EnvError(f"{several} {name!r} in the id. Such as: {', '.join(near)}.")


def _seed_tasks(env_id: str, split: str, count: int) -> list[Task]:
    if count > _SEEDS_PER_SPLIT:
        raise EnvError(f"A split has at most {_SEEDS_PER_SPLIT:,} seeds as tasks, but {count:,} were requested.")
    block = _SPLIT_BLOCKS.get(split, len(_SPLIT_BLOCKS) + zlib.crc32(split.encode()) % 1000)
    start = block * _SEEDS_PER_SPLIT
    return [Task(id=f"seed-{seed}", env_id=env_id, seed=seed, split=split) for seed in range(start, start + count)]
