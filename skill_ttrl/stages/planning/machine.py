"""The GPUs that are planned for: facts of one, their number, and who has which."""

from __future__ import annotations

from dataclasses import dataclass

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.rl.speed import DEVICES, Device
from skill_ttrl.stages.doctor.missing import asks_servers

NETWORK = 50e9
"""Bytes a second in one direction from a GPU to another machine: an adapter of 400 Gb/s for each GPU (data sheet of the DGX H100)."""
LINK_SHARE = 0.5
"""Of links and network that a collective operation reaches. Taken, not measured here."""


@dataclass(frozen=True, slots=True)
class CPURates:
    """Speed of a small model on this CPU, measured by `rl.speed`."""

    training: float
    """Tokens a second through forward and backward."""
    reading: float
    """Prompt tokens a second."""
    round_fixed: float
    """Seconds of a decoding round without any rows."""
    round_row: float
    """Seconds that each row adds."""


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs, or ranks on a CPU."""

    device: Device | None
    """None: the CPU."""
    gpus: int
    """In all."""
    nodes: int = 1
    rollout_gpus: int = 0
    """For generation alone; 0: the learner's GPUs generate too."""
    tensor_parallel: int = 1
    """GPUs of one replica."""
    cpu: CPURates | None = None

    @property
    def per_node(self) -> int:
        """GPUs of one machine."""
        return self.gpus // self.nodes

    @property
    def learner_gpus(self) -> int:
        """GPUs that learn, one rank each."""
        return self.gpus - self.rollout_gpus

    @property
    def replicas(self) -> int:
        """Copies of the model that generate at the same time."""
        return max(1, (self.rollout_gpus or self.gpus) // self.tensor_parallel)

    def bandwidth(self, gpus: int) -> float:
        """Bytes a second from a GPU to the others of a group of so many: the network's where they are on several machines."""
        if self.device is None:
            return float("inf")  # in the CPU's memory
        link = self.device.link if gpus <= self.per_node else min(self.device.link, NETWORK)
        return LINK_SHARE * link


def find_gpu(name: str) -> Device | None:
    """Look up a GPU by what a user calls it (`h100`, `A100-80`, `4090`); None for `cpu`.

    Raises:
        ConfigError: it is not in the table.
    """
    asked = name.lower().replace(" ", "").replace("_", "-")
    if asked == "cpu":
        return None
    for device in DEVICES:
        known = device.name.lower().replace(" ", "")
        if known in asked or asked in (known, known.removeprefix("rtx")):
            return device
    names = ", ".join(device.name for device in DEVICES)
    raise ConfigError(f"--gpu {name!r} is not in the table: {names}, cpu. Take the one that is nearest to yours.")


def arrange(config: SkillTTRLConfig, device: Device | None, gpus: int, nodes: int, rollout_gpus: int | None) -> Machine:
    """Share the GPUs out between generation and learner, as `rollout_gpus` or the config says.

    A config with `vllm.servers` has as many replicas, each on `vllm.tensor_parallel_size` GPUs of its own; others generate on the learner's
    GPUs.

    Raises:
        ConfigError: there are not as many GPUs as that takes, or they are not spread evenly over machines or replicas.
    """
    if gpus < 1 or nodes < 1:
        raise ConfigError(f"--gpus {gpus} --nodes {nodes}: both must be at least 1.")
    if gpus % nodes:
        raise ConfigError(
            f"--gpus {gpus} is the number in all and --nodes {nodes} does not divide it. Give a multiple, e.g. --gpus {nodes * -(-gpus // nodes)}."
        )
    engine, width = config.rollout.backend == "vllm", config.vllm.tensor_parallel_size
    servers = len(config.vllm.servers) if asks_servers(config) else 0
    stated = rollout_gpus is None and servers > 0
    alone = servers * width if stated else rollout_gpus or 0
    tensor_parallel = width if engine or alone else 1
    if alone >= gpus or alone < 0:
        what = (
            f"vllm.servers names {servers} replicas of {width} GPUs (vllm.tensor_parallel_size)"
            if stated
            else f"--rollout-gpus {alone}"
        )
        raise ConfigError(
            f"{what} and the learner do not fit on --gpus {gpus}: generation may have at most {gpus - 1}, as the learner needs one. "
            "Give more GPUs, or fewer for generation."
        )
    if (alone or gpus) % tensor_parallel:
        raise ConfigError(
            f"{alone or gpus} GPUs generate, and a replica takes {tensor_parallel} (vllm.tensor_parallel_size): that does not come out even."
        )
    if device is None and (alone or tensor_parallel > 1):
        raise ConfigError(
            "On a CPU learner and generation share the cores: leave --rollout-gpus out, or name a GPU with --gpu."
        )
    return Machine(device, gpus, nodes, alone, tensor_parallel)


def check_fits(part: str, needed: int, available: int, parts: dict[str, int], advice: str) -> None:
    """Raise `ModelError` where a rank needs more memory than its device has."""
    if needed <= available:
        return
    largest = sorted(parts.items(), key=lambda item: -item[1])[:3]
    made_of = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in largest)
    raise ModelError(
        f"The model does not fit: a rank ({part}) needs {needed / 1e9:.1f} GB and its device has {available / 1e9:.1f} GB (largest parts in GB: "
        f"{made_of}). {advice}"
    )
