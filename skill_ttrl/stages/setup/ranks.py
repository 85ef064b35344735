"""Rules on how many processes train, and how they hold the policy. Loads no torch where no GPU is asked about."""

from __future__ import annotations

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.cores import cores, free_memory
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.rl.parallel.environment import launched, local_world_size, strategy, world_size

PROCESS_BYTES = 450_000_000
"""Resident memory of a CPU process that has imported torch, transformers, accelerate and peft and computed a little."""


def planned_ranks(config: SkillTTRLConfig) -> int:
    """Number of ranks of a run: those that were started, else those that `skillttrl train` would start."""
    return world_size() if launched() else config.runtime.nproc or 1


def check_ranks(config: SkillTTRLConfig) -> None:
    """Check that the ranks of a run have devices, weights and a sampler.

    Raises:
        ConfigError: settings that do not fit together, or not with this number of ranks.
        ModelError: there are fewer GPUs than ranks.
    """
    ranks, device = planned_ranks(config), config.runtime.device
    how = strategy(config.runtime, ranks, on_gpu=_on_gpu(device))
    if ranks == 1:
        return
    if ":" in device or device == "mps":
        raise ConfigError(
            f"runtime.device is {device!r}, a single device, but there are {ranks} ranks. Set it to cuda, cpu or auto: each rank "
            "uses the GPU of its number."
        )
    backend = config.rollout.backend
    if how == "fsdp" and backend not in ("hf", "vllm"):
        raise ConfigError(
            f"rollout.backend={backend} samples with one process's weights, but runtime.parallel=fsdp spreads them over {ranks}. "
            "Set runtime.parallel=ddp, or use hf or vllm."
        )


def check_started(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where a run is to have several ranks and this process is alone: in Python nothing starts the others."""
    if (asked := config.runtime.nproc or 1) > 1 and not launched():
        raise ConfigError(
            f"runtime.nproc is {asked}, but this process runs alone. Start the run with skillttrl train or torchrun, or set "
            "runtime.nproc=1."
        )


def check_gpus(config: SkillTTRLConfig, *, asked: bool = False) -> None:
    """Check that this machine has a GPU for each rank; called where a run starts, not where one is planned.

    Args:
        config: The whole config.
        asked: The command line says how many ranks; without any GPU they then share the CPU. Ranks that were started are asked for.

    Raises:
        ModelError: there are fewer GPUs than ranks, or the ranks alone take more memory than the CPU has.
    """
    ranks, device = local_world_size() if launched() else config.runtime.nproc or 1, config.runtime.device
    if ranks == 1:
        return
    if device == "cpu":
        check_processes(ranks)
        return
    from skill_ttrl.rl.device import gpu_count

    found = gpu_count()
    if found >= ranks or device == "mps":
        return
    if not found and device == "auto" and (asked or launched()):
        check_processes(ranks)
        return
    here = {0: "no CUDA device", 1: "one GPU"}.get(found, f"{found} GPUs")
    fewer = f"--nproc {found}" if found > 1 else "--nproc 1 --set runtime.parallel=auto"
    raise ModelError(
        f"{ranks} ranks (runtime.nproc) need one GPU each, and torch finds {here} on this machine. Start fewer: {fewer}; or "
        "choose a smaller config (skillttrl configs). Ranks of a small model can share the CPU: --set runtime.device=cpu."
    )


def check_processes(ranks: int) -> None:
    """Raise `ModelError` where the CPU's memory does not hold so many processes, whatever their model is."""
    if launched():  # they are here
        return
    needed, available = ranks * PROCESS_BYTES, free_memory()
    if needed > available:
        raise ModelError(
            f"{ranks} ranks on the CPU (runtime.nproc) need {needed / 1000000000.0:.1f} GB of memory even without a model; "
            f"{available / 1000000000.0:.1f} GB are free. Start fewer: --nproc {_fitting(available)}."
        )


def _fitting(available: int) -> int:
    """Ranks on a CPU that are worth trying: not above its cores, nor above what half of its memory holds."""
    return max(1, min(cores(), available // PROCESS_BYTES // 2))


def _on_gpu(device: str) -> bool:
    if device in ("cpu", "mps"):
        return False
    from skill_ttrl.rl.device import gpu_count

    return bool(gpu_count())
