"""The rule of `agent.structured_actions`: who samples under limits, and who may be trained on what came of it."""

from __future__ import annotations

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Backend
from skill_ttrl.llm.backends import backend_facts


def check_constrained(config: SkillTTRLConfig, backend: Backend, trains: bool) -> None:
    """Raise `ConfigError` where actions are to be constrained, and the backend cannot, or cannot name what training has to know."""
    if config.agent.structured_by == "actions":
        _check_whole(config, backend, trains)
    if not config.agent.structured_actions:
        return
    if not backend.supports_structured_outputs:
        raise ConfigError(
            "agent.structured_actions needs a backend that can restrict a completion to given texts; "
            f"rollout.backend={config.rollout.backend} cannot. Use hf or vllm, or --set agent.structured_actions=false."
        )
    facts = backend_facts(config)
    if trains and not (facts.is_learner or facts.is_copy):
        raise ConfigError(
            f"agent.structured_actions with rollout.backend={config.rollout.backend} works for evaluation only: the backend does "
            "not report which tokens were allowed, so the learner cannot score them. Train with rollout.backend=hf, or with "
            "agent.structured_actions=false."
        )


def _check_whole(config: SkillTTRLConfig, backend: Backend, trains: bool) -> None:
    if not getattr(backend, "weighs_choices", False):
        raise ConfigError(
            f"agent.structured_by=actions needs a backend that scores whole actions; rollout.backend={config.rollout.backend} "
            "cannot. Use hf, or --set agent.structured_by=tokens."
        )
    if trains and "rl" in config.phases:
        raise ConfigError(
            "agent.structured_by=actions works without RL only: the learner scores tokens, not whole actions. Train with "
            "agent.structured_by=tokens, and evaluate with --set agent.structured_by=actions."
        )
