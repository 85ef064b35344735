"""How several ranks hold the policy, by `runtime.parallel`. Loads no torch: the rules on settings ask too."""

from __future__ import annotations

from typing import Literal

from skill_ttrl.config import RuntimeConfig
from skill_ttrl.errors import ConfigError

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
                "runtime.parallel is fsdp, but there is one process: weights are spread over several. Start it with --nproc 2 "
                "or more (or torchrun), or set runtime.parallel=auto."
            )
        if runtime.param_offload:
            raise ConfigError(
                "runtime.param_offload needs sharded weights (runtime.parallel=fsdp), and so several processes: --nproc 2 or more."
            )
        return "alone"
    chosen: Strategy = "fsdp" if on_gpu else "ddp"
    if runtime.parallel != "auto":
        chosen = runtime.parallel
    if runtime.param_offload:
        chosen = "fsdp"
    if chosen == "fsdp" and runtime.precision == "fp16":
        raise ConfigError(
            "runtime.precision=fp16 scales the loss, and the ranks of runtime.parallel=fsdp would not scale it alike. Use bf16."
        )
    return chosen
