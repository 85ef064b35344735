"""Section of a config: vLLM engines and servers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from skill_ttrl.config.endpoints import plain_address
from skill_ttrl.config.section import Section


class VLLMConfig(Section):
    """How vLLM samples and follows the learner, for `rollout.backend: vllm`."""

    mode: Literal["colocate", "server"] = "colocate"
    """`colocate`: inside this process, on the learner's device. `server`: running servers (`skillttrl serve`)."""
    servers: list[str] = Field(default_factory=list)
    """Addresses of the servers, e.g. `http://127.0.0.1:8000`; requests are spread over them."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the engine's weights; `auto`: that of the learner's forward pass (float32 on a CPU)."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Longest prompt and completion together, in tokens; None: the sum of the config's limits."""
    max_num_seqs: int = Field(default=256, ge=1)
    """Most sequences decoded at once."""
    gpu_memory_utilization: float = Field(default=0.45, gt=0, le=1)
    """Share of the GPU's memory for the engine; the learner needs the rest."""
    cpu_kv_cache_gb: int = Field(default=1, ge=1)
    """GiB for the KV cache if there is no GPU."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    weight_sync: Literal["full", "lora"] = "full"
    """Weights sent to the engine after each step: all of them (adapters merged), or only the adapters."""
    enable_sleep_mode: bool = False
    """If engine and learner share a GPU: the engine releases its memory while the learner computes."""
    max_logprob_diff: float | None = Field(default=None, gt=0)
    """Largest mean difference (nats per token) between the log-probs of engine and learner on a probe after each update; a larger one ends
    the run. None: 0.001 for float32, otherwise 0.1."""
    weight_transfer_dir: str | None = None
    """Folder for handing weights to a server, which must see the same folder. None: shared memory, otherwise the temporary folder."""
    start_timeout: float = Field(default=600, gt=0)
    """Seconds to wait for a server to be ready, at the start and after it has been restarted."""

    @field_validator("servers")
    @classmethod
    def _are_addresses(cls, servers: list[str]) -> list[str]:
        return [plain_address(address) for address in servers]

    @model_validator(mode="after")
    def _servers_are_named(self) -> VLLMConfig:
        if self.servers and self.mode != "server":
            raise ValueError("servers need vllm.mode=server; set it, or remove them")
        return self
