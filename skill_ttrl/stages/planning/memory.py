"""Memory of each rank, part by part: learners by the estimate that `doctor` and `--dry-run` have, replicas by their engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skill_ttrl.cores import free_memory
from skill_ttrl.stages.doctor.memory import ASLEEP_BYTES, engine_on_gpu, estimate_memory, sequence_bytes
from skill_ttrl.stages.planning.cost import BF16
from skill_ttrl.stages.planning.problem import Problem


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of ranks that are alike, in bytes of one of them."""

    ranks: str
    """`0-3`, of all GPUs."""
    role: str
    """`learner`, `generation` or `learner and generation`."""
    parts: Mapping[str, int]
    peak: int
    """Of the fullest phase; not all parts are there at the same time."""
    available: int
    """Bytes of the device; of an engine that does not start, its share; of a CPU, what is free, shared by the ranks of one machine."""

    @property
    def fits(self) -> bool:
        """True if the device has as much."""
        return self.peak <= self.available


def memory_by_rank(problem: Problem) -> list[RankMemory]:
    """Memory of the learner's ranks, then of those that generate alone.

    Raises:
        ModelError: see `estimate_memory`.
    """
    machine, device = problem.machine, problem.machine.device
    config = problem.config.model_copy(deep=True)
    config.runtime.nproc = machine.learner_gpus
    found = estimate_memory(
        config,
        problem.model_config,
        device="cpu" if device is None else "cuda",
        precision="bf16" if device is not None and config.runtime.precision == "auto" else None,
        total=None if device is None else int(device.memory),
        shape=problem.shape,
    )
    parts = {name: size for name, size in found.parts.items() if size}
    role = "learner" if machine.rollout_gpus else "learner and generation"
    if device is None:
        own = found.peak * machine.per_node
        return [RankMemory(_span(0, machine.gpus), role, parts, own, free_memory())]
    ranks = [RankMemory(_span(0, machine.learner_gpus), role, parts, found.peak, int(device.memory))]
    if machine.rollout_gpus:
        share, weights, rows = engine_on_gpu(config, problem.shape, BF16, int(device.memory))
        least = weights + ASLEEP_BYTES + sequence_bytes(config, problem.shape, BF16) // machine.tensor_parallel
        engine = {"weights": weights, "kv_cache": max(0, share - weights - ASLEEP_BYTES), "engine": ASLEEP_BYTES}
        place = _span(machine.learner_gpus, machine.gpus)
        # The engine takes its share, and starts where that holds one sequence.
        taken = (share, int(device.memory)) if rows >= 1 else (least, share)
        ranks.append(RankMemory(place, "generation", engine, *taken))
    return ranks


def _span(first: int, end: int) -> str:
    return str(first) if end - first == 1 else f"{first}-{end - 1}"
