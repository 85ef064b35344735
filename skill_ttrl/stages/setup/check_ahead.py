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
        f"rl.max_staleness={config.rl.max_staleness} with rl.rollout_correction.type=none treats the log-probs of older weights "
        "as the learner's: nothing corrects the difference, and no effective sample size is logged. Set "
        "rl.rollout_correction.type=auto."
    )


def _problems(config: SkillTTRLConfig) -> Iterator[str]:
    """A line for each reason, with what to change."""
    facts, backend, skills = backend_facts(config), config.rollout.backend, config.skills
    if facts.engine:
        yield (
            "vllm.mode=colocate shares the learner's process, so sampling and learning cannot overlap. Use servers "
            f"(vllm.mode=server, docs/models.md) or rollout.backend=hf, or {TURNS}."
        )
    if facts.is_learner:
        yield (
            f"rollout.backend={backend} samples with the learner's own weights (is_learner), which change while rollouts run ahead. Use hf, "
            f"which keeps a copy, or vLLM servers, or {TURNS}."
        )
    if backend == "vllm" and config.vllm.enable_sleep_mode:
        yield f"vllm.enable_sleep_mode stops servers while the learner computes. Set it to false, or {TURNS}."
    if backend != "hf" and config.rollout.kv_cache_on_update == "keep":
        yield f"rollout.kv_cache_on_update=keep works only with hf, not with rollout.backend={backend}. Set it to drop."
    if (ranks := planned_ranks(config)) > 1:
        yield f"rollouts can run ahead of one process only, not of {ranks} ranks. Set runtime.nproc=1, or {TURNS}."
    if config.rl.dynamic_sampling is not None:
        yield (
            "rl.dynamic_sampling chooses the tasks of a step by the rewards of earlier steps, which are not known yet. Set it to "
            f"null, or {TURNS}."
        )
    if skills is not None and skills.gate is not None:
        yield f"skills.gate needs the sampler, which is busy with later steps. Set it to null, or {TURNS}."
    if skills is not None and skills.versions_per_group > 1:
        yield (
            f"skills.versions_per_group={skills.versions_per_group} reads bank versions when rollouts start. Set it to 1, or "
            f"{TURNS}."
        )
