"""Defaults that come from the parts that a config names: its environment, then its algorithm."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from skill_ttrl.agents.scripted import make_scripted_agent, scripted_agent_names
from skill_ttrl.config import RLConfig, SkillTTRLConfig, load_config, parse_override
from skill_ttrl.config.load import apply_override, read_source
from skill_ttrl.config.rl import ImpliedType
from skill_ttrl.config.section import explain_problem
from skill_ttrl.data.tasks import system_message
from skill_ttrl.envs import SHORT_NAMES, env_defaults, resolve_env
from skill_ttrl.errors import ConfigError, DataError, EnvError, SkillTTRLError, did_you_mean
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.log import with_own_embedder
from skill_ttrl.train.tasks import ConfigTasks

MAX_TURNS = 50
"""Turns of an episode where neither a config nor the environment says how many."""
PROMPT = ("template", "context_mode")
"""Keys of `agent` that a prompt is made by. A config that states one of them otherwise than the environment keeps its own."""
OF_A_PROMPT = (*PROMPT, "history_length", "action_parser")
MAX_SERVED = 100_000
_WHOLE = TypeAdapter(Annotated[int, Field(strict=True, ge=0, le=MAX_SERVED)])
_SERVED: Mapping[str, Callable[[Any], object]] = {
    "agent.template": lambda value: value in Templates().names(),
    "agent.context_mode": lambda value: isinstance(value, str),
    "agent.history_length": lambda value: value is None or _WHOLE.validate_python(value),
    "agent.action_parser": lambda value: isinstance(value, str),
    "agent.max_turns": _WHOLE.validate_python,
    "data.max_prompt_tokens": _WHOLE.validate_python,
    "rl.reward": lambda value: value == "env",
}
"""Keys that the server of a remote environment may set → raises, or is false, for a value that it may not. The config checks them too."""


def with_env_defaults(config: SkillTTRLConfig, *, playing: Sequence[str] | None = None) -> SkillTTRLConfig:
    """The config with the defaults of its environment, where it states nothing itself.

    A config that has a template or a memory of its own keeps its way of reading actions too: they belong together.

    Args:
        config: as it was loaded; the saved config of a run states everything.
        playing: the overrides that the config was loaded with, where a policy is to play whole episodes. Unless they state
            `agent.max_turns` or a program plays, an episode has more than one turn: the environment's number, or `MAX_TURNS`. The config of a policy
            that was trained on questions says 1.

    Raises:
        EnvError: there is no such environment, or its `config_defaults` name a key or a value that no config has, or that the
            server of a remote one may not set.
    """
    found = config.model_copy(deep=True)
    stated = config.agent.model_fields_set
    defaults = env_defaults(config.env.id, config.env.kwargs)
    own_prompt = any(key in stated and getattr(config.agent, key) != defaults.get(f"agent.{key}") for key in PROMPT)
    for key, value in defaults.items():
        section, _, name = key.partition(".")
        target = getattr(found, section, None) if section in type(found).model_fields else None
        is_stated = isinstance(target, BaseModel) and name in getattr(config, section).model_fields_set
        if resolve_env(config.env.id) == SHORT_NAMES["remote"] and not is_stated:
            # By another default a server would get power over this machine, or set what our own environments do not.
            allowed = False
            with suppress(ValidationError, TypeError):
                allowed = key in _SERVED and _SERVED[key](value) is not False
            if not allowed:
                raise EnvError(
                    f"The server {config.env.kwargs.get('url')} wants to set {key[:80]!r} to {value!r:.80}, which only your own config may. A "
                    f"server may set {', '.join(_SERVED)}, to values that come with this package. Set the key in your config, or use another server."
                )
        if not isinstance(target, BaseModel) or name not in type(target).model_fields:
            known = [f"agent.{each}" for each in type(config.agent).model_fields]
            raise EnvError(
                f"{config.env.id} sets a default for {key!r}, which is not a setting.{did_you_mean(key, known)}"
            )
        if is_stated or (own_prompt and section == "agent" and name in OF_A_PROMPT):
            continue
        _set(target, name, value, EnvError, f"{config.env.id} sets the invalid default {key}")
    is_given = any(each.startswith("agent.max_turns=") for each in playing or ())
    if playing is not None and found.agent.max_turns == 1 and not is_given and config.program is None:
        found.agent.max_turns = int(defaults.get("agent.max_turns", MAX_TURNS))
    return found


def in_another_env(source: str, env: str) -> list[str]:
    """Overrides that make a config one for `env`: nothing where it is already.

    What the config says of its own environment's tasks, arguments, prompts and reward gives way to what `env` brings.
    """
    own = load_config(source)
    if resolve_env(own.env.id) == resolve_env(env):
        return []
    states = "agent.template" in env_defaults(env)
    prompts = {f"agent.{key}": getattr(type(own.agent)(), key) for key in OF_A_PROMPT} if states else {}
    given: Mapping[str, Any] = {**prompts, **env_defaults(env)}
    fresh = {"env.kwargs": {}, "env.train_split": "train", "env.eval_split": "test"}
    return [f"{key}={json.dumps(value)}" for key, value in {**fresh, **given}.items()]


def check_foreign(source: str, config: SkillTTRLConfig) -> None:
    """Refuse what a config still takes over from the environment that it was written for, where it is used in another.

    Raises:
        ConfigError: demonstrations or a bank are of that one.
        EnvError: this one lacks the scripted agent that collects.
    """
    own = load_config(source)
    if resolve_env(own.env.id) == resolve_env(config.env.id):
        return
    shown = config.imitates and config.sft.data is not None and config.sft.data == own.sft.data
    bank = config.skills is not None and own.skills is not None and config.skills.bank == own.skills.bank is not None
    foreign = [name for name, is_foreign in (("sft.data", shown), ("skills.bank", bank)) if is_foreign]
    if foreign:
        raise ConfigError(
            f"{source} was written for {own.env.id}, and its {' and '.join(foreign)} {'is' if len(foreign) == 1 else 'are'} of that "
            f"environment: they teach nothing in {config.env.id}. Set others with --set {foreign[0]}=..., remove the phase (--set 'phases=[rl]'), or use a recipe for this environment: skillttrl configs."
        )
    if "collect" in config.phases and config.collect.agent in scripted_agent_names():
        make_scripted_agent(config.collect.agent, resolve_env(config.env.id))


def with_defaults(config: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config of a training run: with the defaults of its environment, its skill bank, its data and its algorithm, where it states nothing itself.

    Raises:
        EnvError, ConfigError: there is no such environment or algorithm, or a default of theirs is none that a config can have; or
            `rl.total_epochs` counts passes over a hub's data set, whose size is not known before it is fetched.
        DataError: the tasks that `rl.total_epochs` passes over cannot be read.
    """
    config = with_env_defaults(config)
    update: dict[str, Any] = {"rl": with_algorithm_defaults(config.rl)}
    if config.skills is not None:
        update["skills"] = with_own_embedder(config.skills)
    source = config.train_source
    # Nothing is downloaded here: for a hub data set, reading the tasks reports what to set.
    if source is not None and not source.path.startswith("hf:") and "system" not in config.agent.model_fields_set:
        with suppress(DataError):  # reading the tasks reports it
            if (system := system_message(source)) is not None:
                update["agent"] = config.agent.model_copy(update={"system": system})
    config = config.model_copy(update=update)
    rl = config.rl
    if rl.total_epochs is None:
        return config
    if source is not None and source.path.startswith("hf:"):
        raise ConfigError(
            f"rl.total_epochs={rl.total_epochs} needs the number of training tasks, which is not known before the hub data set "
            f"{source.path} is loaded. Set rl.steps to epochs x problems / rl.prompts_per_step, and rl.total_epochs=null."
        )
    steps = rl.total_epochs * max(1, len(ConfigTasks(config).training()) // rl.prompts_per_step)
    return config.model_copy(update={"rl": rl.model_copy(update={"steps": steps, "total_epochs": None})})


def with_algorithm_defaults(section: RLConfig) -> RLConfig:
    """The section with the values that its algorithm brings (`BuiltIn.defaults`), where it states nothing itself.

    Of a loss it may state some options: the others are the algorithm's, where that means the same loss. Options without a type are of
    the algorithm's loss.
    """
    name = section.algorithm["type"]
    brought = _brought(name)
    if not brought:
        return section
    rl, stated = section.model_copy(deep=True), section.model_fields_set
    known = type(rl).model_fields
    for key, value in brought.items():
        if key not in known:
            raise ConfigError(
                f"The algorithm {name!r} sets a default for rl.{key}, which is not a setting.{did_you_mean(key, known)}"
            )
        own = getattr(rl, key)
        if key in stated:
            # Options of the loss that it means stay its own where the config states others of them.
            if not (isinstance(own, dict) and isinstance(value, dict)):
                continue
            if own["type"] != value["type"] and not isinstance(own["type"], ImpliedType):
                continue
            value = value | own | {"type": value["type"]}
        _set(rl, key, value, ConfigError, f"The algorithm {name!r} sets the invalid default rl.{key}")
    return rl


def _set(section: BaseModel, name: str, value: Any, kind: type[SkillTTRLError], what: str) -> None:
    """Set a default; one that the section does not take is an error of this `kind`, which begins with `what`."""
    try:
        setattr(section, name, value)
    except ValidationError as error:
        said = " ".join(explain_problem(error.errors()[0], type(section), shows_value=False))
        raise kind(f"{what}={value!r}: {said}") from None


def superseded(source: str | Path | Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Keys of `rl` that a source states just as its algorithm has them, where the overrides name another algorithm that has others.

    The config of a run states every key: what its algorithm brought, or left as it is, was no choice.
    """
    paths = [parse_override(each)[0] for each in overrides]
    if not any(path[:2] == ["rl", "algorithm"] for path in paths):
        return []
    rl = read_source(source)[0].get("rl")
    if not isinstance(rl, dict):
        return []
    changed: dict[str, Any] = {"rl": {"algorithm": rl.get("algorithm", "grpo")}}
    before = RLConfig.model_validate(changed["rl"]).algorithm["type"]
    for path, override in zip(paths, overrides, strict=True):
        if path[:2] == ["rl", "algorithm"]:
            apply_override(changed, override)
    now = RLConfig.model_validate(changed["rl"]).algorithm["type"]
    try:
        keys = {**_brought(before), **_brought(now)}
        old, new = (with_algorithm_defaults(RLConfig(algorithm={"type": name})) for name in (before, now))
    except SkillTTRLError:  # an unknown name is found by its lookup
        return []
    found = []
    for key in keys:
        if key in rl and ["rl", key] not in paths:
            value = getattr(RLConfig.model_validate({key: rl[key]}), key)
            if value == getattr(old, key) != getattr(new, key):
                found.append(key)
    return found


def _brought(name: str) -> Mapping[str, Any]:
    if name == "grpo":  # brings none; without torch, which what only asks a remote model never loads
        return {}
    from skill_ttrl.rl.algorithms import ALGORITHMS

    found: Mapping[str, Any] = getattr(ALGORITHMS.get(name), "defaults", {})
    return found


def load_checked(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    notice: Callable[[str], object] = lambda text: None,
) -> SkillTTRLConfig:
    """`load_config`, where another algorithm than the source's has its own defaults.

    Args:
        source: see `load_config`.
        overrides: as for `--set`.
        notice: called with the keys of the source that give way to another algorithm (`superseded`).

    Raises:
        ConfigError, TrustError: see `load_config`.
    """
    config = load_config(source, overrides)
    if not (keys := superseded(source, overrides)):  # after the source is known to be trusted: it may name code
        return config
    names = ", ".join(f"rl.{key}" for key in keys)
    notice(
        f"rl.algorithm={config.rl.algorithm['type']} replaces the config's algorithm, so its defaults replace the values set for the old one: {names}. To override them, use --set."
    )
    return load_config(source, overrides, without=keys)
