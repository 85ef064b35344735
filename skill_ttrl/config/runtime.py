"""Section of a config: the machine, and how many processes train on it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from skill_ttrl.config.section import Section


class RuntimeConfig(Section):
    """The machine."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`: a GPU if there is one. Each of several ranks has its own GPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the training forward pass; `auto`: bf16 on a GPU that supports it, otherwise fp32."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of torch in each rank; the same number gives bit-identical results. None: torch decides."""
    nproc: int | None = Field(default=None, ge=1, le=1024)
    """Processes (ranks) that `skillttrl train`, `sft` and `rl` start on this machine, one per GPU; None: one. `--nproc` sets it. Ignored
    under `torchrun`, which sets the number itself."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several ranks hold the policy. `ddp`: each rank has a full copy, and gradients are summed. `fsdp`: weights, gradients and
    optimizer state are sharded (torch's `fully_shard`). `auto`: `fsdp` on GPUs, `ddp` on a CPU."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What lies in CPU memory. `optimizer`: the optimizer state, while the policy samples and while gradients are computed. `all`: weights,
    gradients and optimizer state, and the optimizer runs there; needs `fsdp`."""

    @model_validator(mode="after")
    def _offload_needs_shards(self) -> RuntimeConfig:
        if self.offload == "all" and self.parallel == "ddp":
            raise ValueError("offload all needs parallel=fsdp: with ddp each rank computes with weights of its own")
        return self
