"""Environments by name: what `--env` means, and how one is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from skill_ttrl.errors import ConfigError, EnvError, SkillTTRLError, did_you_mean
from skill_ttrl.registry import import_user_module
from skill_ttrl.signals import FAILURES

SHORT_NAMES: dict[str, str] = {
    "math": "SkillTTRL/Math-v0",
    "qa": "SkillTTRL/QA-v0",
    "alfworld": "SkillTTRL/ALFWorld-v0",
    "webshop": "SkillTTRL/WebShop-v0",
    "remote": "SkillTTRL/Remote-v0",
}
REMOTE_URL = "url"
"""Argument with which any environment runs on a server, unless it has such an argument of its own; see `remote.env`."""
_GYMNASIUM_ADDS = " was raised from the environment creator for "
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


def resolve_env(name: str) -> str:
    """The id that `gymnasium.make` takes, from a short name, `module:EnvId-v0` or a registered id.

    The module of `module:EnvId-v0` is imported, from the working directory too. The id keeps the module, so that it can be
    made in another process.

    Raises:
        EnvError: nothing has this name, there is no such module, or importing it registers no such id.
    """
    if name in SHORT_NAMES:
        return SHORT_NAMES[name]
    if ":" in name:
        return _resolve_in_module(name)
    if name in gymnasium.registry:
        return name
    known = [*SHORT_NAMES, *(spec.id for spec in _text_specs())]
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
    env_id, kwargs = _placed(resolve_env(name), kwargs)
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
    name, kwargs = _placed(resolve_env(name), kwargs)
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
    return {"split": split} if "split" in inspect.signature(_creator(name)).parameters else {}


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
    short = {env_id: name for name, env_id in SHORT_NAMES.items()}
    return [
        EnvInfo(spec.id, short.get(spec.id, ""), _description(spec), _module(spec))
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


@contextmanager
def _making(name: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Whatever an environment's own code raises is one error, which names the environment; ours pass."""
    check_arguments(name, kwargs)
    try:
        yield
    except SkillTTRLError:
        raise
    except FAILURES as error:
        said = str(error).partition(_GYMNASIUM_ADDS)[0]
        raise EnvError(f"Cannot make {name} with {kwargs or 'no arguments'}: {type(error).__name__}: {said}") from error


def check_arguments(name: str, kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that an environment does not have, before it does what takes long.

    Raises:
        EnvError: there is one.
    """
    parameters = inspect.signature(_creator(_placed(resolve_env(name), kwargs)[0])).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for given in kwargs:
        if given not in parameters and given not in _OF_GYMNASIUM:
            raise EnvError(f"{name} has no argument {given[:80]!r}.{did_you_mean(given[:80], parameters)}")


def _placed(env_id: str, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments that an environment is made with: those of the remote one where `kwargs` has a `url`."""
    remote = SHORT_NAMES["remote"]
    own = env_id == remote or REMOTE_URL not in kwargs or REMOTE_URL in inspect.signature(_creator(env_id)).parameters
    return (env_id, dict(kwargs)) if own else (remote, {"env": env_id, **kwargs})


def _creator(name: str) -> Callable[..., Any]:
    """Return the callable that creates an environment, usually its class."""
    entry = gymnasium.registry[resolve_env(name).rpartition(":")[2]].entry_point
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
