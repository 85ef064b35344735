"""Look up everything a config calls by name (loss, reward, strategy, template, player, …) before anything slow begins.

To add a kind of name, add how it is looked up to `looks`: a run, `--dry-run` and `doctor` then all look at it. What needs torch is
imported where it is looked up: `doctor` says of each name whether it can be had, also where torch is broken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from skill_ttrl.agents.players.scripted_agent import make_player
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.config import InvalidConfigError, SkillTTRLConfig
from skill_ttrl.data.tasks import find_family
from skill_ttrl.envs.lookup import refuse_unknown, resolve_env
from skill_ttrl.errors import ConfigError, SkillTTRLError
from skill_ttrl.llm.backends import BACKENDS
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import Registry
from skill_ttrl.runs.stop_rules import find_rule
from skill_ttrl.skills.merge.extractor import EXTRACTORS
from skill_ttrl.skills.merge.merger import MERGERS
from skill_ttrl.skills.retrieval.embedders import EMBEDDERS
from skill_ttrl.skills.teachers.teacher import TEACHERS
from skill_ttrl.stages.collecting.watch import find_player
from skill_ttrl.stages.setup.env_defaults import with_env_defaults
from skill_ttrl.stages.training.votes import check_vote
from skill_ttrl.voting.rewards import MODEL_REWARD, build_reward

Look = Callable[[], str]
"""Looks a name up: raises `SkillTTRLError` where nothing has it, else gives what may be said of it."""


def looks(config: SkillTTRLConfig, *, env: bool = True) -> dict[str, Look]:
    """Lookups for everything the config calls by name, keyed by what it is.

    Args:
        config: parts that no phase of it uses are left out.
        env: whether there is such an environment (`look_at_env`); else its players are left out.
    """
    rl, skills = config.rl, config.skills
    found: dict[str, Look] = {
        "prompt template": partial(_template, config),
        "backend": lambda: f"{config.rollout.backend} is {BACKENDS.get(config.rollout.backend).__module__}",
    }
    for name in config.eval.controls if env else ():
        found[f"control {name}"] = partial(_control, name, config)
    if env and "collect" in config.phases:
        found["player"] = partial(_player, config)
    if "distill" in config.phases:
        found["teacher of distill"] = partial(_known, TEACHERS, config.distill.teacher)
    if skills is not None and skills.embeds:
        found["embedder"] = partial(_known, EMBEDDERS, skills.embedder)
    if "rl" not in config.phases:
        return found
    found |= {
        "vote": partial(check_vote, config),
        "reward": partial(_reward, rl.reward),
        "loss": partial(_loss, rl.loss),
        "advantage": partial(_advantage, config),
    }
    if rl.stop_rule is not None:
        found["stop rule"] = partial(_stop_rule, rl.stop_rule, rl.stop_options)
    if skills is not None and skills.update == "merge":
        found["merger"] = partial(_known, MERGERS, skills.merger)
        if skills.extract:
            found["extractor"] = partial(_known, EXTRACTORS, skills.extractor)
    if config.evolve is not None:
        found["teacher of evolve"] = partial(_known, TEACHERS, config.evolve.teacher)
    return found


def check_names(config: SkillTTRLConfig) -> None:
    """Refuse a config that calls something by a name that nothing has; all such names are in the message.

    Raises:
        SkillTTRLError: the error itself where there is one, a `ConfigError` with a line for each where there are several.
    """
    wrong = list(wrong_names(config))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        lines = "\n".join(f"  {error}" for error in wrong)
        raise ConfigError(f"The config has {len(wrong)} problems:\n{lines}")


def wrong_names(config: SkillTTRLConfig, skipping: Collection[str] = ()) -> Iterator[SkillTTRLError]:
    """One error for each name that nothing has; those that `looks` calls `skipping` are not looked up."""
    env = True
    try:
        look_at_env(config)
        config = with_env_defaults(config)
    except SkillTTRLError as error:
        yield error
        env, skipping = False, (*skipping, "prompt template")  # it may be one that the environment brings
    data, shown = config.data, config.sft.data if "sft" in config.phases else None
    every: list[Callable[[], object]] = [look for name, look in looks(config, env=env).items() if name not in skipping]
    every += [partial(find_family, source) for source in (data.train, data.eval, shown) if source is not None]
    said = set[str]()
    for look in every:
        try:
            look()
        except SkillTTRLError as error:
            if str(error) not in said:
                yield error
            said.add(str(error))


def with_wrong_names(error: InvalidConfigError) -> InvalidConfigError:
    """The same error with the names that nothing has, as far as what is wrong elsewhere lets them be seen."""
    if error.rest is None:
        return error
    # A template is one of a turn or of a question by `agent.memory`, and is looked for in `agent.prompts`.
    skipping = ("prompt template",) if {*error.removed} & {"memory", "prompts"} else ()
    further = [str(each) for each in wrong_names(error.rest, skipping)]
    hidden = [rf"\b{re.escape(name)}\b" for name in error.removed]
    return error.also([each for each in further if not any(re.search(name, each) for name in hidden)])


def look_at_env(config: SkillTTRLConfig) -> str:
    """Look the environment and its arguments up; gives what its name means.

    Raises:
        EnvError: there is none, or it has no such argument.
    """
    env_id = resolve_env(config.env.id)
    refuse_unknown(config.env.id, config.env.kwargs)
    return f"{config.env.id} is {env_id}"


def _known(registry: Registry[Any], name: str) -> str:
    registry.get(name)
    return name


def _loss(name: str) -> str:
    from skill_ttrl.rl.losses import LOSSES

    return _known(LOSSES, name)


def _advantage(config: SkillTTRLConfig) -> str:
    from skill_ttrl.rl.algorithms import check_advantage

    check_advantage(config.rl, vote_strategy=config.vote.strategy, projection=config.agent.projection)
    return config.rl.advantage


def _stop_rule(name: str, options: Mapping[str, Any]) -> str:
    find_rule(name, options)
    return name


def _player(config: SkillTTRLConfig) -> str:
    find_player(config.collect.agent, resolve_env(config.env.id))
    return config.collect.agent


def _control(name: str, config: SkillTTRLConfig) -> str:
    make_player(name, resolve_env(config.env.id), config.agent)
    return name


def _template(config: SkillTTRLConfig) -> str:
    if config.agent.memory == "window":
        Templates(config.agent.prompts).get(config.agent.template, of_a_turn=True)
    else:
        PromptFormatter.from_config(config.agent)
    return config.agent.template


def _reward(name: str) -> str:
    if name != "label" and not name.startswith(MODEL_REWARD):  # these need answers or a model; a run looks at them
        build_reward(name, {})
    return name
