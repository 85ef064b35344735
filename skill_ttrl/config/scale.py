"""Section of a config: where episodes run."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from skill_ttrl.config.section import Section

LOCAL: Literal["local"] = "local"
AUTO: Literal["auto"] = "auto"
_ADDRESS = re.compile(r"(ray://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")


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
    training: Literal["auto", "rollouts", "environments"] = AUTO
    """The work of Ray workers in the phases `rl`, `vote_sft` and `dagger`. `rollouts`: each samples whole batches (`rollout.prompts_per_batch`)
    with `hf`, using its own policy, bank and environments. `environments`: each runs environments, and this process samples, with any
    backend. `auto`: `rollouts` with `hf`, otherwise `environments`."""

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address not in (None, AUTO, LOCAL) and not _ADDRESS.fullmatch(str(address)):
            raise ValueError("must be auto, local, HOST:PORT or ray://HOST:PORT")
        return address

    @model_validator(mode="after")
    def _training_needs_a_cluster(self) -> ScaleConfig:
        if self.address is None and self.training != AUTO:
            raise ValueError(f"training {self.training} needs a Ray cluster; set scale.address, such as auto or local")
        return self

    @field_validator("workers")
    @classmethod
    def _at_least_one(cls, workers: int | str) -> int | str:
        if isinstance(workers, int) and workers < 1:
            raise ValueError("must be at least 1, or auto")
        return workers
