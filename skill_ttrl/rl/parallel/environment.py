"""The environment by which `torchrun` and `launch` say how many ranks there are. Alone, so that asking loads nothing else."""

from __future__ import annotations

import os
from typing import Literal

from skill_ttrl.config import RuntimeConfig
from skill_ttrl.errors import ConfigError

LAUNCH_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
_taken: dict[str, str] = {}


def launched() -> bool:
    """True if this process is one of several ranks."""
    return world_size() > 1


def world_size() -> int:
    """Number of ranks; 1 without a launcher."""
    return int(_value("WORLD_SIZE") or 1)


def local_world_size() -> int:
    """Number of ranks on this machine."""
    return int(_value("LOCAL_WORLD_SIZE") or world_size())


def rank() -> int:
    """Number of this rank; 0 without a launcher."""
    return int(_value("RANK") or 0)


def local_rank() -> int:
    """Number of this rank among those of this machine; 0 without a launcher."""
    return int(_value("LOCAL_RANK") or _value("RANK") or 0)


def take_variables() -> None:
    """Take the variables out of the environment: an engine or an environment that this process starts is no rank."""
    for name in LAUNCH_VARIABLES:
        if name in os.environ:
            _taken[name] = os.environ.pop(name)


def _value(name: str) -> str | None:
    return _taken.get(name) or os.environ.get(name)


# How several ranks hold the policy, by `runtime.parallel`. Loads no torch: the rules on settings ask too.


Strategy = Literal["alone", "ddp", "fsdp"]


def strategy(runtime: RuntimeConfig, ranks: int, *, on_gpu: bool) -> Strategy:
    """`alone` for one rank; else `ddp` or `fsdp`.

    Args:
        runtime: The settings.
        ranks: Number of ranks.
        on_gpu: True if the ranks compute on GPUs.

    Raises:
        ConfigError: the settings and the number of ranks do not fit together.
    """
    if ranks == 1:
        if runtime.parallel == "fsdp":
            raise ConfigError(
                "runtime.parallel is fsdp, but there is only one process to shard weights over. Start it with --nproc 2 "
                "or more (or torchrun), or set runtime.parallel=auto."
            )
        if runtime.offload == "all":
            raise ConfigError(
                "runtime.offload=all needs sharded weights (runtime.parallel=fsdp), and so several processes: --nproc 2 or more."
            )
        return "alone"
    chosen: Strategy = "fsdp" if on_gpu else "ddp"
    if runtime.parallel != "auto":
        chosen = runtime.parallel
    if runtime.offload == "all":
        chosen = "fsdp"
    if chosen == "fsdp" and runtime.precision == "fp16":
        raise ConfigError(
            "runtime.precision=fp16 scales the loss, and the ranks of runtime.parallel=fsdp would not scale it alike. Use bf16."
        )
    return chosen
