"""Sections of a config: the machine, how many processes train on it, and the cluster on which episodes run."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from skill_ttrl.config.section import Section

LOCAL: Literal["local"] = "local"
AUTO: Literal["auto"] = "auto"
_ADDRESS = re.compile(r"(ray://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")


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
    """Tensors held in CPU memory. `optimizer`: the optimizer state, while the policy samples and while gradients are computed. `all`: weights,
    gradients and optimizer state, and the optimizer runs there; needs `fsdp`."""

    @model_validator(mode="after")
    def _offload_needs_shards(self) -> RuntimeConfig:
        if self.offload == "all" and self.parallel == "ddp":
            raise ValueError("offload all needs parallel=fsdp: with ddp each rank computes with weights of its own")
        return self


class ScaleConfig(Section):
    """Where `collect`, `evaluate`, `vote` and the rollouts of training run their episodes. It does not change what is sampled, but for rollouts that run
    ahead with weights handed over in flight.
    """

    address: str | None = None
    """A Ray cluster (extra `ray`) whose nodes get workers. `auto`: the one that this machine belongs to (`ray start`), or the one in
    `RAY_ADDRESS`. `local`: a temporary one on this machine. Or `HOST:PORT` of a cluster's head, or `ray://HOST:PORT` of its client server.
    None: this process, without Ray."""
    workers: int | Literal["auto"] = AUTO
    """Most workers. `auto`: as many as fit on the nodes, also when nodes join or leave."""
    cpus_per_worker: float = Field(default=1.0, gt=0, le=1024)
    """CPUs that Ray reserves for a worker. They are also its policy's number of threads (at least 1) if `runtime.threads` is null."""
    gpus_per_worker: float = Field(default=0.0, ge=0, le=64)
    """GPUs that Ray reserves for a worker, which sees no others; 0.5: two workers share one."""

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address not in (None, AUTO, LOCAL) and not _ADDRESS.fullmatch(str(address)):
            raise ValueError("must be auto, local, HOST:PORT or ray://HOST:PORT")
        return address

    @field_validator("workers")
    @classmethod
    def _at_least_one(cls, workers: int | str) -> int | str:
        if isinstance(workers, int) and workers < 1:
            raise ValueError("must be at least 1, or auto")
        return workers
