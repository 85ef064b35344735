"""Rules on what a Ray cluster works on."""

from __future__ import annotations

from skill_ttrl.config import Phase, SkillTTRLConfig
from skill_ttrl.config.scale import AUTO, LOCAL
from skill_ttrl.envs.lookup import resolve_env
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.skills.querying import OPENAI
from skill_ttrl.stages.collecting.watch import find_scripted_agent

ROLLING: tuple[Phase, ...] = ("rl", "vote_sft", "dagger")
"""Phases of training that roll out."""


def rolls_out_on_workers(config: SkillTTRLConfig) -> bool:
    """True if a phase of training rolls out, so that workers can."""
    return any(phase in config.phases for phase in ROLLING)


def shares_rollouts(config: SkillTTRLConfig) -> bool:
    """True if workers sample the rollouts of training, and not only hold its environments."""
    return config.scale.training == "rollouts" or (config.scale.training == AUTO and config.rollout.backend == "hf")


def check_scale(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where a run names a cluster that no phase of it would use, or could not use."""
    if config.scale.engine == LOCAL:
        return
    if "collect" not in config.phases and not rolls_out_on_workers(config):
        raise ConfigError(
            f"scale.engine={config.scale.engine} distributes the phases collect, {', '.join(ROLLING)}, and the commands collect, "
            f"evaluate and vote, but phases is {config.phases}. Leave it out. For several GPUs here: --nproc."
        )
    # False where nobody is asked, None where a policy is.
    asks_agent = "collect" in config.phases and find_scripted_agent(config.collect.agent, resolve_env(config.env.id))
    if asks_agent is None or (rolls_out_on_workers(config) and shares_rollouts(config)):
        check_shared_policy(config)
    if rolls_out_on_workers(config) and shares_rollouts(config):
        _check_shared_rollouts(config)


def _check_shared_rollouts(config: SkillTTRLConfig) -> None:
    rollout = config.rollout
    if rollout.backend != "hf":
        raise ConfigError(
            f"scale.training=rollouts samples with hf on the workers, but rollout.backend is {rollout.backend}. Set "
            "scale.training=environments, so that this process samples and workers hold the environments. vLLM has its own servers "
            "(vllm.servers)."
        )
    count = config.rl.prompts_per_step
    if rollout.prompts_per_batch is None or (
        1 < count <= rollout.prompts_per_batch and {"rl", "vote_sft"} & {*config.phases}
    ):
        raise ConfigError(
            f"scale.engine={config.scale.engine} gives each worker one batch of prompts, but with "
            f"rollout.prompts_per_batch={rollout.prompts_per_batch or 'null'} all {count} prompts of a step are one batch. Lower "
            f"it, for example to {max(1, count // 8)} (it changes which samples a seed gives), or set scale.training=environments."
        )


def check_shared_policy(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where workers on other machines would send requests that no ledger here records and no budget bounds."""
    remote = backend_facts(config).remote
    if remote or (config.skills is not None and config.skills.embedder == OPENAI):
        what = f"rollout.backend={config.rollout.backend}" if remote else f"skills.embedder={OPENAI}"
        raise ConfigError(
            f"scale.engine={config.scale.engine} distributes policies that workers load. {what} calls a remote model, whose cost "
            "one process must count: leave out scale.engine."
        )
