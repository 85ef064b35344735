"""Defaults that come from the parts that a config names: its environment, then its algorithm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from skill_ttrl.config import RLConfig, Section, SkillTTRLConfig, parse_override
from skill_ttrl.config.load import apply_override, read_source
from skill_ttrl.config.rl import ImpliedType
from skill_ttrl.config.section import explain_problem
from skill_ttrl.data.tasks import system_message
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import ConfigError, DataError, SkillTTRLError, did_you_mean
from skill_ttrl.skills.settings import with_own_embedder
from skill_ttrl.stages.inputs.env_defaults import with_env_defaults
from skill_ttrl.stages.inputs.tasks import training_tasks


def with_defaults(config: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config of a training run: with the defaults of its environment, its skill bank, its data and its algorithm, where it states nothing itself.

    Raises:
        EnvError, ConfigError: there is no such environment or algorithm, or a default of theirs is none that a config can have.
    """
    config = with_env_defaults(config)
    if config.skills is not None:
        config = config.model_copy(update={"skills": with_own_embedder(config.skills)})
    return with_epochs(with_algorithm_defaults(with_data_defaults(config)))


def with_epochs(config: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config with the steps that `rl.total_epochs` passes over its training tasks take, before prompts are left out for their length.

    Raises:
        ConfigError: the tasks are of a hub's data set, whose number is not known before it is fetched.
        DataError, EnvError: there are none, or they cannot be read.
    """
    rl, source = config.rl, config.data.train
    if rl.total_epochs is None:
        return config
    if source is not None and source.path.startswith("hf:"):
        raise ConfigError(
            f"rl.total_epochs={rl.total_epochs} needs the number of training tasks, which is not known before the hub data set "
            f"{source.path} is loaded. Set rl.steps to epochs x problems / rl.prompts_per_step, and rl.total_epochs=null."
        )
    tasks = len(training_tasks(config, resolve_env(config.env.id), source))
    steps = rl.total_epochs * max(1, tasks // rl.prompts_per_step)
    return config.model_copy(update={"rl": rl.model_copy(update={"steps": steps, "total_epochs": None})})


def with_data_defaults(config: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config with the system message of its training conversations (verl's layout) as `agent.system`, where it states none."""
    source = config.data.train
    if source is None or source.path.startswith("hf:") or "system" in config.agent.model_fields_set:
        return config  # a plan fetches nothing: of a hub's data set `source_tasks` says what to set
    try:
        system = system_message(source)
    except DataError:
        return config  # whoever reads the tasks says what is wrong with them
    return (
        config
        if system is None
        else config.model_copy(update={"agent": config.agent.model_copy(update={"system": system})})
    )


def with_algorithm_defaults(config: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config with the values of `rl` that its algorithm brings (`AlgorithmType.defaults`), where it states nothing itself.

    Of a loss it may state some options: the others are the algorithm's, where that means the same loss. Options without a type are of
    the algorithm's loss.
    """
    name = config.rl.algorithm["type"]
    brought = _brought(name)
    if not brought:
        return config
    rl, stated = config.rl.model_copy(deep=True), config.rl.model_fields_set
    known = type(rl).model_fields
    for key, value in brought.items():
        if key not in known:
            raise ConfigError(
                f"The algorithm {name!r} sets a default for rl.{key}, which is no setting.{did_you_mean(key, known)}"
            )
        own = getattr(rl, key)
        if key in stated:
            # Options of the loss that it means stay its own where the config states others of them.
            if not (isinstance(own, dict) and isinstance(value, dict)):
                continue
            if own["type"] != value["type"] and not isinstance(own["type"], ImpliedType):
                continue
            value = value | own | {"type": value["type"]}
        try:
            setattr(rl, key, value)
        except ValidationError as error:
            said = " ".join(explain_problem(error.errors()[0], type(rl), shows_value=False))
            raise ConfigError(f"The algorithm {name!r} sets the invalid default rl.{key}={value!r}: {said}") from None
    return config.model_copy(update={"rl": rl})


def overruled(config: SkillTTRLConfig) -> list[str]:
    """A line on what the algorithm brings and the config states otherwise; none where there is nothing.

    Args:
        config: with the defaults of its algorithm.
    """
    name = config.rl.algorithm["type"]
    brought, stated = dict[str, str](), dict[str, str]()
    for key, value in _brought(name).items():
        own, default = getattr(config.rl, key), getattr(_alone(name), key)
        if isinstance(own, dict) and isinstance(default, dict) and own["type"] == default["type"]:
            pairs = {f"rl.{key}.{option}": (default[option], own[option], default[option]) for option in default}
        else:
            pairs = {f"rl.{key}": (default, own, value)}
        for path, (expected, found, shown) in pairs.items():
            if expected != found:
                brought[path], stated[path] = _written(shown), _written(found)
    if not brought:
        return []
    return [
        (
            f"rl.algorithm={name} comes with {_listed(brought)}, but the config sets {_listed(stated)}, which wins. To use the "
            "algorithm's values, leave these keys out or --set them."
        )
    ]


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
        old, new = _alone(before), _alone(now)
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


def _alone(name: str) -> RLConfig:
    """The section of a config that states its algorithm and no more."""
    return with_algorithm_defaults(SkillTTRLConfig(rl=RLConfig(algorithm={"type": name}))).rl


def _written(value: Any) -> str:
    return json.dumps(value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, Section) else value)


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
