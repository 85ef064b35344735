"""Where the learner computes and how precisely: `auto` made explicit, the `Accelerator` that carries both, and memory of devices."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import patch_environment

from skill_ttrl.config import RuntimeConfig
from skill_ttrl.errors import ModelError

_MIXED_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def resolve_device(name: str) -> torch.device:
    """The device that `runtime.device` means on this machine: `auto` is a GPU where there is one.

    Raises:
        ModelError: the name is none torch knows, or there is no such device here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"Unknown device {name!r}. Set runtime.device to cpu, cuda, cuda:1, mps or auto.") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = device.index or 0
        if index >= count:
            raise ModelError(
                f"runtime.device is {name!r}, but torch {torch.__version__} finds {count} CUDA devices. "
                "Use runtime.device=cpu or auto, or install a CUDA build of torch."
            )
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError("runtime.device is 'mps', but there is no Metal device. Use runtime.device=cpu or auto.")
    return device


def resolve_precision(name: str, device: torch.device) -> str:
    """`fp32`, `bf16` or `fp16`: `auto` is bf16 on a GPU that has it and fp32 elsewhere.

    Raises:
        ModelError: fp16 on a CPU, or bf16 on a GPU that has no support for it.
    """
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if name == "auto":
        return "bf16" if has_bf16 else "fp32"
    if name == "fp16" and device.type == "cpu":
        raise ModelError("runtime.precision is fp16, which needs a GPU. Use fp32 or bf16 on a CPU.")
    if name == "bf16" and device.type == "cuda" and not has_bf16:
        raise ModelError("runtime.precision is bf16, which this GPU does not have. Use fp16 or fp32.")
    return name


def make_accelerator(runtime: RuntimeConfig) -> Accelerator:
    """One `Accelerator` for a run; also sets torch's CPU threads where the config names a number.

    accelerate keeps one state a process, so an earlier accelerator with other settings is void after this call.

    Raises:
        ModelError: the device or precision is not to be had here.
    """
    device = resolve_device(runtime.device)
    mixed_precision = _MIXED_PRECISION[resolve_precision(runtime.precision, device)]
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
    shared = AcceleratorState._shared_state
    if shared and (shared["device"] != device or shared["_mixed_precision"] != mixed_precision):
        AcceleratorState._reset_state(reset_partial_state=True)
    with patch_environment(ACCELERATE_TORCH_DEVICE=device):
        return Accelerator(cpu=device.type == "cpu", mixed_precision=mixed_precision)


def autocast_dtype(accelerator: Accelerator) -> torch.dtype | None:
    """Dtype of the forward pass where it differs from float32."""
    return {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[accelerator.mixed_precision]


def weight_dtype(accelerator: Accelerator, *, frozen: bool) -> torch.dtype:
    """Dtype to keep weights in: float32 for weights that learn, that of the forward pass for `frozen` ones (LoRA)."""
    return (autocast_dtype(accelerator) if frozen else None) or torch.float32


def gpu_count() -> int:
    """Number of GPUs that torch can use. Takes no memory of them."""
    return torch.cuda.device_count()


def gpus() -> list[str]:
    """Name and size of each GPU that torch can use."""
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB" for gpu in found]


class GpuMemoryMonitor:
    """Memory of the learner's GPU from the moment this is made; on other devices it has no metrics."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._used = 0
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # the allocator knows no device before
            torch.cuda.reset_peak_memory_stats(device)

    def sample(self) -> None:
        """Sample the memory in use on the whole device: the learner's, an engine's, other processes'."""
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            self._used = max(self._used, total - free)

    def metrics(self) -> dict[str, float]:
        """`gpu_peak_bytes`: peak of what torch handed out in this process. `gpu_used_bytes`: most that was in use on the whole
        device when it was sampled. Empty without a GPU.
        """
        if self._device.type != "cuda":
            return {}
        peak = torch.cuda.max_memory_allocated(self._device)
        return {"gpu_peak_bytes": float(peak), "gpu_used_bytes": float(self._used)}


# Allocations that failed, and which phase of a step they were for.


_WORDS = ("can't allocate memory", "not enough memory", "out of memory")
_PLACES = (("/llm/", "sample"), ("/rl/", "update"))
"""Part of a file's path, and the phase that its code computes; the innermost frame that is in one of them decides."""


def out_of_memory(error: BaseException) -> str | None:
    """The phase (`sample`, `update`, `sft`) in which an allocation failed: on a GPU, in torch's memory of the CPU, or in Python's.

    None: the error is of another kind.
    """
    allocators = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    if not allocators and not (type(error) is RuntimeError and any(words in str(error) for words in _WORDS)):
        return None
    files = [frame.f_code.co_filename.replace("\\", "/") for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any("/sft_learner.py" in file for file in files):
        return "sft"
    if any(frame.f_code.co_name == "sample_share" for frame, _ in traceback.walk_tb(error.__traceback__)):
        return "sample"  # it gathers sharded weights first
    found = (phase for file in reversed(files) for part, phase in _PLACES if part in file)
    return next(found, "update")


# Rates of an update: tokens a second, and the share of the GPU's peak that it reached (MFU).


PEAK_FLOPS = {
    "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12, "B200": 2250e12,
}  # fmt: skip
"""Dense bf16 operations a second by NVIDIA's data sheets (SXM and HGX where there are several forms). The first name that is in the GPU's
name counts."""


def peak_flops(name: str) -> float | None:
    """Peak of a GPU by its name; None if it is not in the table."""
    return next((flops for known, flops in PEAK_FLOPS.items() if known in name), None)


def update_rates(
    metrics: Mapping[str, float], seconds: float, device: torch.device, ranks: int = 1
) -> dict[str, float]:
    """Rates of an update that took so many seconds, scores included.

    Args:
        metrics: Of `LocalLearner.update`: `all_tokens` and `operations`.
        seconds: Wall time.
        device: Where a rank computes.
        ranks: Processes that computed it, each with a device of its own.

    Returns:
        `update_tokens_per_second`, of all tokens, prompts included; and `mfu`, the operations as a share of what the devices do at best in
        bf16, only for a GPU in `PEAK_FLOPS`.
    """
    rates = {"update_tokens_per_second": metrics["all_tokens"] / max(seconds, 1e-9)}
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if peak is not None:
        rates["mfu"] = metrics["operations"] / max(seconds, 1e-9) / (peak * ranks)
    return rates
