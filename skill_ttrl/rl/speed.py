"""Throughput of learning and sampling: measured here for the built-in policy, else estimated from the device's data sheet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AutoModelForCausalLM


@dataclass(frozen=True, slots=True)
class Device:
    """Peak performance of a device, by its data sheet."""

    name: str
    flops: float
    """Dense bf16 operations a second."""
    bandwidth: float
    """Bytes of its memory a second."""
    memory: float
    """Bytes."""
    link: float
    """Bytes a second in one direction to the other GPUs of its machine."""


DEVICES = (
    Device("H200", 989e12, 4.8e12, 141e9, 450e9),
    Device("H100", 989e12, 3.35e12, 80e9, 450e9),
    Device("A100", 312e12, 2.0e12, 80e9, 300e9),
    Device("L40S", 362e12, 0.86e12, 48e9, 32e9),
    Device("RTX 4090", 165e12, 1.0e12, 24e9, 32e9),
    Device("B200", 2250e12, 8.0e12, 180e9, 900e9),
)
"""NVIDIA's data sheets (SXM and HGX where there are several forms), dense figures without sparsity; a link is half of NVLink's two
directions, or PCIe 4.0 with 16 lanes. The first whose name is in the GPU's name counts."""
PLANNED = DEVICES[1]
"""Reckoned with where there is no GPU: an H100 of 80 GB."""
TRAINING_SHARE = 0.35
"""Of the operations at best that a training step reaches; 0.3 to 0.45 is usual for dense models."""
PREFILL_SHARE = 0.5
DECODE_SHARE = 0.5
"""Of the memory's bandwidth that decoding reaches."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one device."""

    device: str
    training: float
    """Tokens a second through forward, backward and optimizer."""
    reading: float
    """Prompt tokens a second."""
    rounds: float
    """Decoding steps a second: each gives one token to every sequence of the batch."""
    measured: bool
    gpus: int = 0
    """0: a CPU."""
    cached: float | None = None
    """Tokens a second whose keys and values decoding reads from the cache, over all sequences; None: not counted."""


def update_rates(
    metrics: Mapping[str, float], seconds: float, device: torch.device, ranks: int = 1
) -> dict[str, float]:
    """Speed of an update that took so many seconds, scores included.

    Args:
        metrics: Of `Learner.update`: `all_tokens` and `operations`.
        seconds: Wall time.
        device: Where a rank computes.
        ranks: Processes that computed it, each with a device of its own.

    Returns:
        `update_tokens_per_second`: tokens of prompts and answers learned from. `mfu`: floating-point operations as a share of
        what the devices do at best in bf16; only for a GPU in `DEVICES`.
    """
    rates = {"update_tokens_per_second": metrics["all_tokens"] / max(seconds, 1e-9)}
    known = device_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if known is not None:
        rates["mfu"] = metrics["operations"] / max(seconds, 1e-9) / (known.flops * ranks)
    return rates


def device_of(name: str) -> Device | None:
    """Look a GPU up by its name; None where it is not in `DEVICES`."""
    return next((device for device in DEVICES if device.name in name), None)


def reckoned(
    parameters: int, device: Device, gpus: int = 1, *, trainable: int | None = None, cache_bytes: int | None = None
) -> Speed:
    """From the data sheet: 6 operations a parameter and token in training (4 where almost nothing learns, as under adapters), 2 in
    reading; decoding reads all weights once a step (2 bytes a parameter), on each of several GPUs, and the cache.

    Args:
        parameters: Of the model.
        device: Each GPU.
        gpus: Number of them.
        trainable: Parameters that learn; None: all.
        cache_bytes: Keys and values of one token; None: the cache is not counted.
    """
    few = trainable is not None and trainable < parameters // 2
    return Speed(
        device.name,
        training=TRAINING_SHARE * device.flops * gpus / ((4 if few else 6) * parameters),
        reading=PREFILL_SHARE * device.flops * gpus / (2 * parameters),
        rounds=DECODE_SHARE * device.bandwidth / (2 * parameters),
        measured=False,
        gpus=gpus,
        cached=None if cache_bytes is None else DECODE_SHARE * device.bandwidth * gpus / cache_bytes,
    )


def measured(model_config: Any, *, tokens: int, rows: int, threads: int | None = None, seconds: float = 1.0) -> Speed:
    """Measured with a small model of this transformers config and random weights, on the CPU.

    A micro-batch has `rows` sequences of `tokens` each; each of the three figures is measured for at least so many `seconds`.
    `threads` are torch's; None: as many as it has now.
    """
    model, batch_N_T = _random_model(model_config, rows, tokens)

    def learn() -> None:
        model(input_ids=batch_N_T, labels=batch_N_T, use_cache=False).loss.backward()

    @torch.no_grad()
    def read() -> None:
        model.model(input_ids=batch_N_T, use_cache=False)

    with _threads(threads):
        decode = _decoding(model, batch_N_T)
        training, reading, rounds = (_rate(work, seconds) for work in (learn, read, decode))
    return Speed("cpu", training * rows * tokens, reading * rows * tokens, rounds, measured=True)


def measured_rounds(
    model_config: Any, *, tokens: int, rows: int, threads: int | None = None, seconds: float = 1.0
) -> float:
    """Decoding steps a second as `measured` has them, for another number of rows."""
    model, batch_N_T = _random_model(model_config, rows, tokens)
    with _threads(threads):
        return _rate(_decoding(model, batch_N_T), seconds)


def _random_model(model_config: Any, rows: int, tokens: int) -> tuple[Any, Int[Tensor, "N T"]]:
    """A model with random weights, and random tokens; the global generators stay as they are."""
    with torch.random.fork_rng(devices=[]):
        make: Any = AutoModelForCausalLM.from_config  # it has no types
        return make(model_config), torch.randint(0, model_config.vocab_size, (rows, tokens))


def _decoding(model: Any, batch_N_T: Int[Tensor, "N T"]) -> Callable[[], None]:
    """A decoding step after these tokens."""
    with torch.no_grad():
        cache = model(input_ids=batch_N_T, use_cache=True).past_key_values

    @torch.no_grad()
    def decode() -> None:
        model(input_ids=batch_N_T[:, :1], past_key_values=cache, use_cache=True)
        cache.crop(-1)

    return decode


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """While entered torch has so many threads; None: as many as it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rate(work: Any, seconds: float) -> float:
    work()  # the first time makes what the others use
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or count < 2:
        work()
        count += 1
    return count / (time.perf_counter() - began)
