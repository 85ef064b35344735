"""Defaults that an environment gives a silent config (`TextEnv.config_defaults`): prompts, action parser, turns, reward."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from skill_ttrl.agents.scripted.scripted_agent import make_scripted_agent, scripted_agent_names
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.config.section import explain_problem
from skill_ttrl.envs import SHORT_NAMES, env_defaults, resolve_env
from skill_ttrl.errors import ConfigError, EnvError, did_you_mean
from skill_ttrl.progress import Progress
from skill_ttrl.prompts.templates import Templates

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
            `agent.max_turns`, an episode has more than one turn: the environment's number, or `MAX_TURNS`. The config of a policy
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
            _check_served(key, value, str(config.env.kwargs.get("url")))
        if not isinstance(target, BaseModel) or name not in type(target).model_fields:
            known = [f"agent.{each}" for each in type(config.agent).model_fields]
            raise EnvError(
                f"{config.env.id} sets a default for {key!r}, which is no setting.{did_you_mean(key, known)}"
            )
        if is_stated or (own_prompt and section == "agent" and name in OF_A_PROMPT):
            continue
        try:
            setattr(target, name, value)
        except ValidationError as error:
            said = " ".join(explain_problem(error.errors()[0], type(target), shows_value=False))
            raise EnvError(f"{config.env.id} sets the invalid default {key}={value!r}: {said}") from None
    is_given = any(each.startswith("agent.max_turns=") for each in playing or ())
    if playing is not None and found.agent.max_turns == 1 and not is_given:
        found.agent.max_turns = int(defaults.get("agent.max_turns", MAX_TURNS))
    return found


def _check_served(key: str, value: object, url: str) -> None:
    """Refuse a default by which a server would get power over this machine, or that is not what our own environments set."""
    with suppress(ValidationError, TypeError):
        if key in _SERVED and _SERVED[key](value) is not False:
            return
    raise EnvError(
        f"The server {url} wants to set {key[:80]!r} to {value!r:.80}, which only your own config may. A server may set {', '.join(_SERVED)}, "
        "to values that come with this package. State the key in your config, or play on another server."
    )


def warn_unlisted(config: SkillTTRLConfig, lists: bool, progress: Progress) -> None:
    """Say that the environment lists what can be done (`lists`) and the prompts will not show it, where nobody chose that."""
    if lists and config.agent.context_mode not in ("window", "episode"):
        progress.notice(
            (
                f"{config.env.id} lists possible actions, but prompts do not show them: agent.context_mode={config.agent.context_mode}, "
                f"agent.template={config.agent.template}. Set agent.context_mode=window and agent.template=episode (or the "
                "environment's own)."
            ),
            warning=True,
        )


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
    foreign = [
        *(["sft.data"] if shown else []),
        *(["skills.bank"] if bank else []),
    ]
    if foreign:
        raise ConfigError(
            f"{source} was written for {own.env.id}, and its {' and '.join(foreign)} {'is' if len(foreign) == 1 else 'are'} of that "
            f"environment: in {config.env.id} they teach nothing. Give others with --set {foreign[0]}=..., leave the phase out "
            "(--set 'phases=[rl]'), or take a recipe of this environment: skillttrl configs."
        )
    if "collect" in config.phases and config.collect.agent in scripted_agent_names():
        make_scripted_agent(config.collect.agent, resolve_env(config.env.id))
