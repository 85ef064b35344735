"""Rules on how many processes train, and how they hold the policy. Loads no torch where no GPU is asked about."""

from __future__ import annotations

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.rl.parallel.environment import launched, local_world_size, world_size
from skill_ttrl.rl.parallel.strategy import strategy


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
            f"runtime.device is {device!r}, which names one device, but there are {ranks} ranks. Set it to cuda, cpu or auto: each "
            "rank takes the GPU of its number."
        )
    backend = config.rollout.backend
    if how == "fsdp" and backend not in ("hf", "vllm"):
        raise ConfigError(
            f"rollout.backend={backend} samples with one process's weights, but runtime.parallel=fsdp spreads them over {ranks}. "
            "Set runtime.parallel=ddp, or take hf or vllm."
        )


def check_gpus(config: SkillTTRLConfig) -> None:
    """Raise `ModelError` where this machine has GPUs, but fewer than ranks; called where a run starts, not where one is planned."""
    ranks = local_world_size() if launched() else config.runtime.nproc or 1
    if ranks == 1 or not _on_gpu(config.runtime.device):
        return
    from skill_ttrl.rl.device import gpus

    if (found := len(gpus())) < ranks:
        raise ModelError(
            f"There are {ranks} ranks, but torch finds {found} GPUs: each rank takes one. Start fewer (--nproc), "
            "or set runtime.device=cpu."
        )


def _on_gpu(device: str) -> bool:
    if device in ("cpu", "mps"):
        return False
    from skill_ttrl.rl.device import gpus

    return bool(gpus())
