"""Section of a config: the machine, and how many processes train on it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from skill_ttrl.config.section import Section


class RuntimeConfig(Section):
    """The machine."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`: a GPU where there is one. With several ranks each has a GPU of its own."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of the training forward; `auto` is bf16 on a GPU that has it and fp32 elsewhere."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of torch in each rank. None: torch decides. The same number gives the same bits."""
    nproc: int | None = Field(default=None, ge=1, le=1024)
    """Processes (ranks) that `skillttrl train`, `sft` and `rl` start on this machine, one a GPU; None: one. Under `torchrun`,
    which says itself how many there are, it is not read. `--nproc` sets it."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several ranks hold the policy. `ddp`: each has all of it, and gradients are added up. `fsdp`: each has a share of weights,
    gradients and optimizer state (torch's `fully_shard`). `auto`: `fsdp` on GPUs, `ddp` on a CPU."""
    reshard_after_forward: bool = True
    """With `fsdp`: free a layer's gathered weights after its forward pass and gather them again for the backward pass. False takes
    more memory and half of the communication."""
    param_offload: bool = False
    """With `fsdp`: weights, gradients and optimizer state lie in the CPU's memory, and the optimizer computes there."""
    optimizer_offload: bool = False
    """The optimizer's state lies in the CPU's memory while the policy samples and while gradients are computed."""

    @model_validator(mode="after")
    def _offload_needs_shards(self) -> RuntimeConfig:
        if self.param_offload and self.parallel == "ddp":
            raise ValueError("param_offload needs parallel=fsdp: with ddp each rank computes with weights of its own")
        return self
