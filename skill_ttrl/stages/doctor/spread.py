"""Memory of one rank of several, from that of one process alone. Sizes are bytes.

With `ddp` each rank holds all weights and computes its share of the rows. With `fsdp` weights, gradients, optimizer and reference are
spread over the ranks, and each gathers what it computes with: a layer at a time, or everything to sample with.
"""

from __future__ import annotations

from collections.abc import Mapping

from skill_ttrl.config import RuntimeConfig
from skill_ttrl.rl.memory import FP32, ComputeSettings, DecoderShape
from skill_ttrl.rl.parallel.strategy import Strategy

SHARDED = ("weights", "gradients", "optimizer", "reference", "critic")
"""Parts that `fsdp` spreads, and that `runtime.param_offload` takes to the CPU's memory."""


def spread(
    parts: Mapping[str, int],
    shape: DecoderShape,
    how: ComputeSettings,
    runtime: RuntimeConfig,
    ranks: int,
    strategy: Strategy,
    *,
    samples_here: bool,
) -> dict[str, int]:
    """Parts of one rank; `gathered` is of weights while gradients are computed, `gathered_to_sample` while it samples, and
    `optimizer_in_step` the optimizer's state while it takes a step, where that is elsewhere at other times.

    Gathered while gradients are computed: what is in no layer (embedding, head), two layers, of which one is fetched ahead, and a
    layer's gradient, computed and summed up in float32.

    Args:
        parts: Of one process alone, its rows those of one rank.
        shape: The model.
        how: How it computes.
        runtime: Offloading.
        ranks: Number of ranks.
        strategy: How they hold the policy.
        samples_here: The learner's own model samples.
    """
    found = dict(parts)
    offloaded = not how.on_cpu
    if strategy == "fsdp":
        layer = shape.matrices // shape.layers
        outside = shape.parameters - shape.adapters - shape.matrices
        found |= {name: -(-parts[name] // ranks) for name in SHARDED}
        found["casts"] = 0  # weights are gathered as the forward pass takes them
        found["gathered"] = (outside + 2 * layer) * how.compute + layer * (how.compute + FP32)
        found["gathered_to_sample"] = shape.parameters * how.compute if samples_here else found["gathered"]
        if runtime.param_offload and offloaded:
            found |= dict.fromkeys(SHARDED, 0)
    if runtime.optimizer_offload and offloaded and found["optimizer"]:
        found |= {"optimizer": 0, "optimizer_in_step": found["optimizer"]}
    return found


def offloaded_bytes(parts: Mapping[str, int], runtime: RuntimeConfig, ranks: int, strategy: Strategy) -> int:
    """Bytes in the machine's own memory for each rank on a GPU, given the parts of one process alone."""
    divisor = ranks if strategy == "fsdp" else 1
    names: tuple[str, ...] = SHARDED if runtime.param_offload and strategy == "fsdp" else ()
    if runtime.optimizer_offload and not names:
        names = ("optimizer",)
    return sum(-(-parts[name] // divisor) for name in names)
