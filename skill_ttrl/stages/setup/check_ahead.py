"""Rules of rollouts that run ahead of the learner (`rl.max_staleness`)."""

from __future__ import annotations

from collections.abc import Iterator

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.context import runs_ahead
from skill_ttrl.stages.setup.ranks import planned_ranks

TURNS = "set rl.max_staleness=0"


def check_ahead(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where rollouts are to run ahead, and the sampler or another setting cannot; all reasons are in the message."""
    if runs_ahead(config) and (problems := list(_problems(config))):
        raise ConfigError("\n".join(f"rl.max_staleness={config.rl.max_staleness}: {problem}" for problem in problems))


def uncorrected_staleness(config: SkillTTRLConfig) -> str | None:
    """Return the warning of a run that takes the log-probs of older weights for those of the present ones; None where it does not."""
    settings = config.rl.rollout_correction
    if not runs_ahead(config) or settings.type != "none" or settings.reject is not None or not settings.rescore:
        return None
    return (
        f"rl.max_staleness={config.rl.max_staleness} with rl.rollout_correction.type=none: the log-probs of older weights are taken for those of "
        "the learner, nothing weighs what they differ by, and no effective sample size is logged. rl.rollout_correction.type=auto corrects."
    )


def _problems(config: SkillTTRLConfig) -> Iterator[str]:
    """A line for each reason, with what to change."""
    facts, backend, skills = backend_facts(config), config.rollout.backend, config.skills
    if facts.engine:
        yield (
            "vllm.mode=colocate runs the engine in the learner's process, where they take turns. Take servers (vllm.mode=server, "
            f"docs/models.md) or rollout.backend=hf, or {TURNS}."
        )
    if facts.is_learner:
        yield (
            f"rollout.backend={backend} samples with the learner's own model (is_learner), which changes while rollouts run ahead. Take hf, which "
            f"then has a copy, or vLLM servers, or {TURNS}."
        )
    if backend == "vllm" and config.vllm.enable_sleep_mode:
        yield f"vllm.enable_sleep_mode lets servers sleep while the learner computes. Set it to false, or {TURNS}."
    if backend != "hf" and config.rollout.kv_cache_on_update == "keep":
        yield f"rollout.kv_cache_on_update=keep is for hf; rollout.backend={backend} decides that itself. Set it to drop."
    if (ranks := planned_ranks(config)) > 1:
        yield f"rollouts run ahead of one process, and {ranks} ranks are to learn. Set runtime.nproc=1, or {TURNS}."
    if config.rl.dynamic_sampling is not None:
        yield (
            "with rl.dynamic_sampling the tasks of a step depend on the rewards of the steps before it. Set it to null (prompts of one reward "
            f"then count as any other), or {TURNS}."
        )
    if skills is not None and skills.gate is not None:
        yield f"skills.gate tests a bank with the sampler that is busy with later steps. Set it to null, or {TURNS}."
    if skills is not None and skills.versions_per_group > 1:
        yield f"skills.versions_per_group={skills.versions_per_group} looks versions up as rollouts start. Set it to 1, or {TURNS}."
