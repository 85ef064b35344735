"""Settings that lower the memory of a run, and the error of one that has run out of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ModelError, RankError, SkillTTRLError
from skill_ttrl.llm.models.model_config import load_model_config
from skill_ttrl.rl.device import device_memory, resolve_device
from skill_ttrl.rl.out_of_memory import out_of_memory
from skill_ttrl.runs.checkpoint import what_is_saved
from skill_ttrl.stages.doctor.memory import MemoryEstimate, estimate_memory


def memory_advice(config: SkillTTRLConfig, estimate: MemoryEstimate, phase: str, available: int) -> str:
    """The setting to change first where `phase` does not fit into `available` bytes."""
    parts = estimate.parts
    fixed = sum(parts[name] for name in ("weights", "gradients", "optimizer", "sampler", "reference", "runtime"))
    if parts["sampler"] and fixed - parts["sampler"] <= available < fixed:
        return "The copy of the model that samples does not fit: --set rl.max_staleness=0."
    if fixed > available:
        if config.model.lora is None:
            return (
                "Weights, gradients and optimizer alone do not fit. Train adapters (--set model.lora.r=16), spread them over more GPUs "
                "(runtime.parallel=fsdp and --nproc), or take a smaller model."
            )
        return "The weights alone do not fit. Take a smaller model."
    if parts["engine"] and estimate.device == "cuda":
        if phase == "sample":
            return "Leave the learner more: a lower vllm.gpu_memory_utilization."
        if not config.vllm.enable_sleep_mode:
            return "Let the engine give its memory back while the learner computes: --set vllm.enable_sleep_mode=true."
    if phase == "sample" and not parts["engine"]:
        fewer = max(1, config.rollout.max_batch_size // 2)
        return f"Sample fewer rows at once: --set rollout.max_batch_size={fewer}."
    if phase == "step":
        return "The optimizer's state does not fit: spread it over more GPUs (runtime.parallel=fsdp and --nproc)."
    if not config.model.gradient_checkpointing:
        return "Recompute activations: --set model.gradient_checkpointing=true."
    if phase != "sft" and config.rl.micro_batch_tokens is not None:
        fewer = max(1, config.rl.micro_batch_tokens // 2)
        return f"Take fewer tokens at once: --set rl.micro_batch_tokens={fewer}; the result stays the same."
    section = "sft" if phase == "sft" else "rl"
    return f"Take fewer sequences at once: --set {section}.micro_batch_size=1; the result stays the same."


def gigabytes(size: int) -> str:
    """A size in words."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"


@contextmanager
def explaining_memory(config: SkillTTRLConfig, run: Path) -> Iterator[None]:
    """Turn an allocation that failed, here or on another rank, into an error that names the setting to change.

    Args:
        config: The run's.
        run: Its folder.

    Raises:
        ModelError: in its place, with the estimate of the phase it happened in.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RankError):
            phase, where = error.out_of_memory, f" on rank {error.rank}"
        else:
            phase, where = out_of_memory(error), ""
        if phase is None:
            raise
        first_line = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"Out of memory{where} ({NAMES[phase]}): {first_line.rstrip('.')}. {_estimated(config, phase)} "
            f"{what_is_saved(run)}"
        ) from error


NAMES = {"sample": "sampling", "update": "update", "sft": "cold start"}


def _estimated(config: SkillTTRLConfig, phase: str) -> str:
    """The estimate of this phase, its largest parts, and what to change."""
    try:
        estimate = estimate_memory(config, load_model_config(config.model))
    except SkillTTRLError as error:
        return f"There is no estimate of what it takes: {error}"
    available = device_memory(str(resolve_device(config.runtime.device)))
    largest = sorted(estimate.parts.items(), key=lambda part: -part[1])[:4]
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in largest)
    size = estimate.phases.get(phase, estimate.peak)
    return (
        f"By the estimate it takes {gigabytes(size)} at most (largest parts of a run: {parts}). "
        f"{memory_advice(config, estimate, phase, available)}"
    )
