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
            f"scale.engine={config.scale.engine} shares out the phases collect, {', '.join(ROLLING)}, and the commands collect, evaluate and "
            f"vote; phases is {config.phases}, which runs on this machine. Leave it out. For several GPUs here: --nproc."
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
            f"scale.training=rollouts has workers that sample with hf; rollout.backend is {rollout.backend}. Set "
            "scale.training=environments: then this process samples, and workers hold the environments. vLLM has servers of its own "
            "(vllm.servers)."
        )
    count = config.rl.prompts_per_step
    if rollout.prompts_per_batch is None or (
        1 < count <= rollout.prompts_per_batch and {"rl", "vote_sft"} & {*config.phases}
    ):
        raise ConfigError(
            f"scale.engine={config.scale.engine} gives each worker a batch of prompts, and with rollout.prompts_per_batch="
            f"{rollout.prompts_per_batch or 'null'} all {count} of a step are one batch, for one worker. Set it lower, for example to "
            f"{max(1, count // 8)}: it decides which samples a seed gives, so a run keeps it wherever it runs. Or share "
            "out the environments alone: scale.training=environments."
        )


def check_shared_policy(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where workers on other machines would send requests that no ledger here records and no budget bounds."""
    remote = backend_facts(config).remote
    if remote or (config.skills is not None and config.skills.embedder == OPENAI):
        what = f"rollout.backend={config.rollout.backend}" if remote else f"skills.embedder={OPENAI}"
        raise ConfigError(
            f"scale.engine={config.scale.engine} shares out policies that workers load. {what} asks a model elsewhere, whose cost is recorded "
            "and bounded by one process: leave out scale.engine."
        )
