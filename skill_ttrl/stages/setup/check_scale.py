"""Rules on what a Ray cluster works on."""

from __future__ import annotations

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.config.scale import LOCAL
from skill_ttrl.envs.lookup import resolve_env
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.skills.querying import OPENAI
from skill_ttrl.stages.collecting.watch import find_scripted_agent


def check_scale(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where a run names a cluster that no phase of it would use."""
    if config.scale.engine == LOCAL:
        return
    if "collect" not in config.phases:
        raise ConfigError(
            f"scale.engine={config.scale.engine} shares out the phase collect, and the commands collect, evaluate and vote; phases is "
            f"{config.phases}, which runs on this machine. Leave it out. For several GPUs here: --nproc."
        )
    if find_scripted_agent(config.collect.agent, resolve_env(config.env.id)) is None:
        check_shared_policy(config)


def check_shared_policy(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where workers on other machines would send requests that no ledger here records and no budget bounds."""
    remote = backend_facts(config).remote
    if remote or (config.skills is not None and config.skills.embedder == OPENAI):
        what = f"rollout.backend={config.rollout.backend}" if remote else f"skills.embedder={OPENAI}"
        raise ConfigError(
            f"scale.engine={config.scale.engine} shares out policies that workers load. {what} asks a model elsewhere, whose cost is recorded "
            "and bounded by one process: leave out scale.engine."
        )
