"""Defaults that come from the parts that a config names: its environment, then its algorithm."""

from __future__ import annotations

from pydantic import ValidationError

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.config.section import explain_problem
from skill_ttrl.data.tasks import system_message
from skill_ttrl.errors import ConfigError, DataError, did_you_mean
from skill_ttrl.stages.inputs.env_defaults import with_env_defaults


def with_defaults(config: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config of a training run: with the defaults of its environment, its data and its algorithm, where it states nothing itself.

    Raises:
        EnvError, ConfigError: there is no such environment or algorithm, or a default of theirs is none that a config can have.
    """
    return with_algorithm_defaults(with_data_defaults(with_env_defaults(config)))


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

    Of a loss it may state some options: the others are the algorithm's, where that means the same loss.
    """
    name = config.rl.algorithm["type"]
    if name == "grpo":  # brings none; without torch, which what only asks a remote model never loads
        return config
    from skill_ttrl.rl.algorithms import ALGORITHMS

    brought = getattr(ALGORITHMS.get(name), "defaults", {})
    rl, stated = config.rl.model_copy(deep=True), config.rl.model_fields_set
    known = type(rl).model_fields
    for key, value in brought.items():
        if key not in known:
            raise ConfigError(
                f"The algorithm {name!r} has a default for rl.{key}, which no config has.{did_you_mean(key, known)}"
            )
        own = getattr(rl, key)
        if key in stated:
            # Options of the loss that it means stay its own where the config states others of them.
            if not (isinstance(own, dict) and isinstance(value, dict) and own.get("type") == value.get("type")):
                continue
            value = value | own
        try:
            setattr(rl, key, value)
        except ValidationError as error:
            said = " ".join(explain_problem(error.errors()[0], type(rl), shows_value=False))
            raise ConfigError(f"The algorithm {name!r} has the default rl.{key}={value!r}: {said}") from None
    return config.model_copy(update={"rl": rl})
