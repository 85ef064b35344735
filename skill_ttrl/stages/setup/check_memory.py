"""Rules of `agent.context_mode: episode`, whose prompts grow token by token."""

from __future__ import annotations

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Backend
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.types import Message


def check_memory(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where episodes are to be sequences of tokens and the backend knows texts alone."""
    if config.agent.context_mode == "episode" and backend_facts(config).remote:
        raise ConfigError(
            f"agent.context_mode=episode needs a backend that takes tokens; rollout.backend={config.rollout.backend} takes texts. "
            "Use hf or vllm, or set agent.context_mode=conversation."
        )


def check_grows(config: SkillTTRLConfig, backend: Backend) -> None:
    """Raise `ConfigError` where episodes are to be sequences of tokens, and the backend or its chat template cannot continue them."""
    if config.agent.context_mode != "episode":
        return
    check_memory(config)
    if not hasattr(backend, "encode_next") or backend.encode_next(Message("user", "next")) is None:
        raise ConfigError(
            "agent.context_mode=episode needs a backend with encode_next (skill_ttrl.llm.backend.Backend); "
            f"rollout.backend={config.rollout.backend} has none. Add it, or set agent.context_mode=conversation."
        )
