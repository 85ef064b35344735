"""Rules on who plays in the phases collect and dagger."""

from __future__ import annotations

from skill_ttrl.agents.scripted.scripted_agent import check_adviser
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs.lookup import resolve_env
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Backend
from skill_ttrl.stages.collecting.collection import training_selection
from skill_ttrl.stages.collecting.watch import find_scripted_agent


def check_collected(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` or `EnvError` where the phase collect cannot play the tasks that the run trains on."""
    if "collect" in config.phases:
        training_selection(config)


def check_dagger(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where no expert can advise in the phase dagger."""
    if "dagger" not in config.phases:
        return
    expert = find_scripted_agent(config.collect.agent, resolve_env(config.env.id))
    if expert is None:
        raise ConfigError(
            f"The phase dagger asks an expert in every state, but collect.agent={config.collect.agent} is a policy. Name a scripted "
            "agent, such as expert."
        )
    check_adviser(expert)


def check_dagger_backend(config: SkillTTRLConfig, backend: Backend) -> None:
    """Raise `ConfigError` where the policy is to be constrained in the phase dagger, and its backend cannot."""
    if config.dagger.structured_actions and not backend.supports_structured_outputs:
        raise ConfigError(
            "dagger.structured_actions needs a backend that can restrict a completion to given texts; "
            f"rollout.backend={config.rollout.backend} cannot. Leave it out."
        )
