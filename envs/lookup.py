"""Environments by name: what `--env` means, how one is made, and its tasks: its own, or its seeds."""

from __future__ import annotations

import functools
import heapq
import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode

from skill_ttrl.envs.text_env import close_env, own_errors
from skill_ttrl.errors import ConfigError, EnvError, SplitError, did_you_mean
from skill_ttrl.registry import import_user_module
from skill_ttrl.trust import check_import
from skill_ttrl.types import Task

SHORT_NAMES: dict[str, str] = {
    "math": "SkillTTRL/Math-v0",
    "qa": "SkillTTRL/QA-v0",
    "alfworld": "SkillTTRL/ALFWorld-v0",
    "webshop": "SkillTTRL/WebShop-v0",
    "remote": "SkillTTRL/Remote-v0",
}


@dataclass(frozen=True, slots=True)
class Family:
    """Environments of another library: `PREFIX:NAME` is the environment `env_id` with NAME as its argument `argument`."""

    form: str
    """The form of its names, as shown to users."""
    env_id: str
    argument: str
    package: str
    """The package that is imported."""
    extra: str
    """The extra that installs the package."""
    needs_trust: bool = True
    """It imports what NAME says, or connects to it."""


FAMILIES = {
    "reasoning_gym": Family(
        "reasoning_gym:NAME[,NAME]", "SkillTTRL/ReasoningGym-v0", "names", "reasoning_gym", "reasoning-gym", False
    ),
    "verifiers": Family("verifiers:NAME", "SkillTTRL/Verifiers-v0", "name", "verifiers", "verifiers"),
    "openenv": Family("openenv:URL", "SkillTTRL/OpenEnv-v0", "url", "openenv", "openenv"),
}
REMOTE_URL = "url"
"""Argument with which any environment runs on a server, unless it has such an argument of its own; see `remote.env`."""
_OF_GYMNASIUM = ("max_episode_steps",)
"""Arguments of `gymnasium.make` that an environment itself need not have."""


@dataclass(frozen=True, slots=True)
class EnvInfo:
    """One row of the table of environments."""

    id: str
    short_name: str
    """Empty where it has none."""
    description: str
    """First line of the class's docstring."""
    module: str
    install: str = ""
    """The command that installs a missing package; empty if none is missing."""


def resolve_env(name: str) -> str:
    """The id that `gymnasium.make` takes, from a short name, `module:EnvId-v0` or a registered id; a name of a `Family` as it is.

    The module of `module:EnvId-v0` is imported, from the working directory too. The id keeps the module, so that it can be
    made in another process.

    Raises:
        EnvError: nothing has this name, there is no such module, or importing it registers no such id.
        TrustError: it is of a family that imports or connects, named in a file of others that nobody has trusted.
    """
    if name in SHORT_NAMES:
        return SHORT_NAMES[name]
    family = _family(name)
    if family is not None:
        if family.needs_trust:
            check_import(name.partition(":")[0])
        return name
    if ":" in name:
        return _resolve_in_module(name)
    if name in gymnasium.registry:
        return name
    known = [*SHORT_NAMES, *(f"{prefix}:NAME" for prefix in FAMILIES), *(spec.id for spec in _text_specs())]
    raise EnvError(
        f"Unknown environment {name!r}.{did_you_mean(name, known)} Your own is written module:EnvId-v0; the module is also "
        "looked for in the working directory. List all with: skillttrl envs."
    )


def make_env(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make an environment by any of its names; Gymnasium's passive checker is left out, `check_text_env` is ours.

    With the argument `url` it runs on a server (`remote.env.RemoteEnv`).

    Raises:
        EnvError: see `resolve_env`; or it cannot be made with these arguments.
    """
    env_id, kwargs = placed(name, kwargs)
    with _making(env_id, kwargs):  # its module has been imported: Gymnasium is to import none
        return gymnasium.make(env_id.rpartition(":")[2], disable_env_checker=True, **kwargs)


def prepare_env(name: str, kwargs: Mapping[str, Any], progress: Callable[[int, int], None]) -> None:
    """Do the slow work that creating an environment takes the first time, and report its progress.

    An environment with slow work has a class method `prepare(progress, **kwargs)`: ALFWorld reads every game of a split once. For all
    others this does nothing.

    Args:
        name: see `resolve_env`.
        kwargs: arguments that the environment will be made with.
        progress: called with (items done, items in total); never called if nothing is slow.

    Raises:
        EnvError: see `make_env`.
    """
    name, kwargs = placed(name, kwargs)
    prepare = getattr(_creator(name), "prepare", None)
    if callable(prepare):
        with _making(name, kwargs):
            prepare(progress, **kwargs)


def make_vec_env(
    name: str, num_envs: int, *, asynchronous: bool = False, **kwargs: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Many environments that are stepped together, by any of their names.

    What a vector does at an episode's end is fixed: `AutoresetMode.NEXT_STEP`. The step that ends an episode returns its last
    observation, reward and `info`; the next step of the vector ignores that environment's action and returns the first
    observation of its next episode, with reward 0. Nothing is lost, and nothing is put aside under `final_obs`.

    Observations are a tuple of texts, actions any sequence of texts. A seed given to `reset` is that of the first environment;
    the others have the ones that follow. `info` is Gymnasium's: for each key an array with an entry for each environment (the
    admissible commands of the third are `info["admissible_commands"][2]`).

    Args:
        name: see `resolve_env`.
        num_envs: how many, at least 1.
        asynchronous: one process for each (text goes through pipes: `shared_memory=False`), else all in this process, which is
            faster for environments that are, like the fast engine of ALFWorld.
        kwargs: of each environment.

    Raises:
        EnvError: see `make_env`.
    """
    env_id = resolve_env(name)
    if num_envs < 1:
        raise EnvError(f"A vector needs at least one environment, found {num_envs}.")
    make = [functools.partial(make_env, env_id, **kwargs)] * num_envs
    make[0]().close()  # what is wrong with the arguments is said here, as one error, and not in every process
    if asynchronous:
        return gymnasium.vector.AsyncVectorEnv(make, shared_memory=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    return gymnasium.vector.SyncVectorEnv(make, autoreset_mode=AutoresetMode.NEXT_STEP)


def split_argument(name: str, split: str) -> dict[str, str]:
    """`split`, for an environment that is made with one, so that it looks for the tasks of no other; else nothing.

    Raises:
        EnvError: see `resolve_env`.
    """
    return {"split": split} if "split" in _parameters(name) else {}


def refuse_split(kwargs: Mapping[str, Any]) -> None:
    """Refuse environment arguments that contain `split`, where `--split` already names the split.

    Raises:
        ConfigError: they contain it; one of the two would be ignored.
    """
    if "split" in kwargs:
        raise ConfigError(f"--split names the split; remove env.kwargs.split={kwargs['split']}.")


def env_defaults(name: str, kwargs: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Config defaults of an environment: `TextEnv.config_defaults` of its class; empty if it has none.

    Those of `remote` are the server's: a class method `served_defaults(**kwargs)` returns them.

    Raises:
        EnvError: see `resolve_env`; or the server cannot be asked.
    """
    creator = _creator(name)
    served = getattr(creator, "served_defaults", None)
    found = served(**kwargs) if callable(served) and kwargs else getattr(creator, "config_defaults", {})
    if not isinstance(found, Mapping):
        raise EnvError(f"config_defaults of {name} must be a dict of config keys, found {type(found).__name__}.")
    return found


def env_question_option(name: str) -> str | None:
    """`TextEnv.question_option` of an environment's class; None if it has none. Raises as `resolve_env`."""
    return getattr(_creator(name), "question_option", None)


def list_envs() -> list[EnvInfo]:
    """Every registered environment that does not belong to Gymnasium itself, by id."""
    short = {env_id: name for name, env_id in SHORT_NAMES.items()} | {
        each.env_id: each.form for each in FAMILIES.values()
    }
    missing = {each.env_id: each.extra for each in FAMILIES.values() if find_spec(each.package) is None}
    return [
        EnvInfo(
            spec.id,
            short.get(spec.id, ""),
            _description(spec),
            _module(spec),
            f"pip install -e '.[{missing[spec.id]}]'" if spec.id in missing else "",
        )
        for spec in sorted(_text_specs(), key=lambda spec: spec.id)
    ]


def _resolve_in_module(name: str) -> str:
    try:
        found, env_id = import_user_module(name, "environment")
    except ConfigError as error:
        raise EnvError(str(error)) from None
    module = found.__name__
    if env_id in gymnasium.registry:
        return name
    registered = [spec.id for spec in _text_specs() if _module(spec) == module]
    if not registered:
        raise EnvError(
            f"{module!r} was imported but registers no environment. It must call gymnasium.register({env_id!r}, entry_point=...) "
            "when it is imported."
        )
    raise EnvError(f"{module!r} registers no environment {env_id!r}.{did_you_mean(env_id, registered)}")


def _making(name: str, kwargs: Mapping[str, Any]) -> AbstractContextManager[None]:
    return own_errors(f"Cannot make {name} with {kwargs or 'no arguments'}:")


def placed(name: str, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments that an environment is made with: those of the remote one where `kwargs` has a `url`.

    Raises:
        EnvError: there is no such environment, or it has no such argument.
    """
    env_id, remote = resolve_env(name), SHORT_NAMES["remote"]
    family, made_with = _family(env_id), dict(kwargs)
    if not (env_id == remote or REMOTE_URL not in kwargs or REMOTE_URL in _parameters(env_id)):
        env_id, made_with = remote, {"env": env_id, **kwargs}
    elif family is not None:
        env_id, made_with = family.env_id, {**kwargs, family.argument: env_id.partition(":")[2]}
    known = _parameters(env_id)
    for given in kwargs if all(each.kind is not each.VAR_KEYWORD for each in known.values()) else ():
        if given not in known and given not in _OF_GYMNASIUM:
            raise EnvError(f"{name} has no argument {given[:80]!r}.{did_you_mean(given[:80], known)}")
    return env_id, made_with


def _parameters(env_id: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_creator(env_id)).parameters


def _family(name: str) -> Family | None:
    """The family of `PREFIX:NAME`; None for any other name."""
    prefix, _, rest = name.partition(":")
    return FAMILIES.get(prefix) if rest else None


def _creator(name: str) -> Callable[..., Any]:
    """Return the callable that creates an environment, usually its class."""
    family = _family(name)
    entry = gymnasium.registry[family.env_id if family else resolve_env(name).rpartition(":")[2]].entry_point
    try:
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
    except (ImportError, AttributeError) as error:
        raise EnvError(f"{name} cannot be loaded from {entry}: {error}.") from error
    if creator is None:
        raise EnvError(f"{name} is registered without an entry_point, so it cannot be made.")
    return creator


def _text_specs() -> list[EnvSpec]:
    """Registered environments other than Gymnasium's own, which show no text."""
    return [spec for spec in gymnasium.registry.values() if _module(spec).partition(".")[0] not in {"gymnasium", ""}]


def _module(spec: EnvSpec) -> str:
    if isinstance(spec.entry_point, str):
        return spec.entry_point.partition(":")[0]
    return str(getattr(spec.entry_point, "__module__", ""))


def _description(spec: EnvSpec) -> str:
    try:
        return (_creator(spec.id).__doc__ or "").strip().partition("\n")[0]
    except EnvError as error:
        return f"(not usable: {error})"


DEFAULT_SEED_TASKS = 256
SEEDS_PER_SPLIT = 1_000_000
SPLIT_BLOCKS = {"train": 0, "validation": 1, "test": 2}


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
        with own_errors(f"{env_id}.tasks({split!r}) raised"):
            find = getattr(env.unwrapped, "tasks", None)
            own = find(split) if callable(find) else None
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
    if count > SEEDS_PER_SPLIT:
        raise EnvError(f"A split has at most {SEEDS_PER_SPLIT:,} seeds as tasks, but {count:,} were requested.")
    block = SPLIT_BLOCKS.get(split, len(SPLIT_BLOCKS) + zlib.crc32(split.encode()) % 1000)
    start = block * SEEDS_PER_SPLIT
    return [Task(id=f"seed-{seed}", env_id=env_id, seed=seed, split=split) for seed in range(start, start + count)]
