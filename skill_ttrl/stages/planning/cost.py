"""Seconds of the parts of a step, in closed form. Each formula names its source; what is taken without a measurement says so."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.rl.memory import DecoderShape
from skill_ttrl.rl.speed import DECODE_SHARE, PREFILL_SHARE, Device
from skill_ttrl.stages.planning.machine import CPURates, Machine
from skill_ttrl.stages.planning.simulate import Decoding
from skill_ttrl.stages.planning.workload import Workload

BF16, FP32 = 2, 4
MEASURED_MFU = ((0.494e9, 0.114), (1.544e9, 0.245))
"""(parameters, 6 N tokens a second as a share of the peak) of updates on an H100: 38,300 tokens a second at 0.5B, 26,200 at 1.5B
(benchmarks/results/learner-speed.md). Between them by the logarithm; outside the nearer one, as nothing larger was measured. The learner is
faster since: 0.20 at 0.5B on an H200, so plans of small models take their updates for too long."""
HF_LAUNCH_SECONDS = 3.0e-3
"""A layer's decoding round with `rollout.backend: hf` on an H100, which starts every kernel from Python: 18.6 s for 256 rounds of 24 layers
(docs/speed-results.md, "On a GPU")."""
ADAM_BYTES = 28
"""Of a trainable number in an optimizer's step: weight, gradient and two moments are read, all but the gradient written, 4 bytes each."""
RECORD_SECONDS = 1.0e-4
"""Votes, rewards and files of a rollout's turn, on the driver's CPU: 0.1 s for the 1,024 rollouts of a step of `quickstart`."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Measured over computed seconds, by part; 1: nothing was measured."""

    generation: float = 1.0
    update: float = 1.0
    transfer: float = 1.0
    records: float = 1.0


AS_COMPUTED = Factors()


def training_share(parameters: int) -> float:
    """Share of the device's peak that an update reaches: `MEASURED_MFU`."""
    sizes, shares = zip(*MEASURED_MFU, strict=True)
    return float(np.interp(math.log(max(parameters, 1)), np.log(sizes), shares))


def training_operations(shape: DecoderShape, length: float) -> float:
    """Operations to learn from a token: 6 a weight, 4 where adapters alone learn, and 6 layers x width x length for causal attention.

    Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; PaLM (2204.02311), appendix B, whose attention term is halved for the causal mask.
    """
    return (4 if shape.adapters else 6) * shape.parameters + 6.0 * shape.layers * shape.query * length


def decoding(config: SkillTTRLConfig, shape: DecoderShape, machine: Machine, work: Workload) -> Decoding:
    """Times of a decoding round on one replica.

    A round reads all weights once and each row's keys and values, and computes 2 operations a weight and row, whichever takes longer
    (Pope et al. 2022, arXiv 2211.05102, section 2); prompts are 2 operations a weight and token.
    """
    response = max(work.lengths.response, 1.0)
    if machine.device is None:
        rates, sharing = _cpu(machine.cpu), machine.per_node
        return Decoding(
            fixed=rates.round_fixed * sharing,
            row_compute=rates.round_row * sharing,
            row_prompt=work.read_per_turn / rates.reading / response * sharing,
        )
    device, width = machine.device, machine.tensor_parallel
    memory, operations = DECODE_SHARE * device.bandwidth * width, PREFILL_SHARE * device.flops * width
    weights, context = shape.parameters - shape.adapters, work.lengths.prompt + response / 2
    cached = 2 * shape.key_value * shape.layers * BF16
    return Decoding(
        fixed=HF_LAUNCH_SECONDS * shape.layers if config.rollout.backend == "hf" else 0.0,
        read=BF16 * weights / memory,
        row_read=cached * context / memory,
        row_compute=2 * weights / operations,
        row_prompt=2 * weights * work.read_per_turn / operations / response,
    )


def update_seconds(config: SkillTTRLConfig, shape: DecoderShape, machine: Machine, work: Workload) -> float:
    """Seconds of a step's update: operations or communication, whichever takes longer, and the optimizer's steps.

    A mini-batch is shared out in whole sequences, so the fullest rank counts. Communication: `communication_seconds`.
    """
    ranks = machine.learner_gpus
    each = math.ceil(work.trained * config.rl.ppo_epochs / work.updates / ranks)
    tokens = each * work.updates / config.rl.ppo_epochs * work.lengths.item * work.passes
    if machine.device is None:
        # A CPU gains by packing what it leaves out (docs/speed-results.md); the measured H100 did not, and its share counts all tokens.
        packed = 1.0 if config.model.packing == "off" else work.packed_tokens / work.trained_tokens
        return tokens * packed / _cpu(machine.cpu).training * machine.per_node
    again = 4 / 3 if config.model.gradient_checkpointing else 1.0  # one more forward pass
    operations = tokens * training_operations(shape, work.lengths.item) * again
    compute = operations / (machine.device.flops * training_share(shape.parameters))
    micro_batches = work.updates * math.ceil(each / config.rl.micro_batch_size)
    shards = ranks if _shards(config, ranks) else 1
    optimizer = work.updates * ADAM_BYTES * shape.trainable / shards / (DECODE_SHARE * machine.device.bandwidth)
    return max(compute, communication_seconds(config, shape, machine, micro_batches, work.updates)) + optimizer


def communication_seconds(
    config: SkillTTRLConfig, shape: DecoderShape, machine: Machine, micro_batches: int, updates: int
) -> float:
    """Seconds in which ranks exchange weights and gradients, of rings, (n - 1) / n of the bytes each way.

    `fsdp`: each micro-batch gathers the weights for the forward and again for the backward pass (once without
    `runtime.reshard_after_forward`), and scatters the gradients. `ddp`: each optimizer's step adds the gradients up, twice their size
    (ZeRO, arXiv 1910.02054, section 7).
    """
    ranks = machine.learner_gpus
    if ranks == 1:
        return 0.0
    if _shards(config, ranks):
        gathers = 2 if config.runtime.reshard_after_forward else 1
        sent = micro_batches * (gathers * BF16 * shape.parameters + FP32 * shape.trainable)
    else:
        sent = updates * 2 * FP32 * shape.trainable
    return sent * (ranks - 1) / ranks / machine.bandwidth(ranks)


def transfer_seconds(config: SkillTTRLConfig, shape: DecoderShape, machine: Machine) -> float:
    """Seconds in which generation gets the new weights: bytes over the slowest link on their way; replicas get them at the same time.

    The learner's own model samples: gathered where sharded. An engine on the learner's GPU copies them too. Others get them over the link,
    or the network where there are several machines; with `vllm.weight_sync: lora` the adapters alone.
    """
    if machine.device is None:
        return 0.0
    ranks, whole = machine.learner_gpus, BF16 * (shape.parameters - shape.adapters)
    gathered = whole * (ranks - 1) / ranks / machine.bandwidth(ranks) if _shards(config, ranks) else 0.0
    if machine.rollout_gpus:
        adapters_alone = config.vllm.weight_sync == "lora" and shape.adapters > 0
        sent = BF16 * shape.adapters if adapters_alone else whole
        return (0.0 if adapters_alone else gathered) + sent / machine.bandwidth(machine.gpus)
    if config.rollout.backend == "hf":
        return gathered
    return gathered + 2 * whole / (DECODE_SHARE * machine.device.bandwidth)


def _shards(config: SkillTTRLConfig, ranks: int) -> bool:
    """True if GPUs hold shares of the weights; see `rl.parallel.strategy`."""
    return ranks > 1 and config.runtime.parallel != "ddp"


def _cpu(rates: CPURates | None) -> CPURates:
    assert rates is not None, "a CPU's rates are measured before anything is computed from them"
    return rates


def device_name(device: Device | None) -> str:
    """The name of a GPU, or `cpu`."""
    return "cpu" if device is None else device.name
