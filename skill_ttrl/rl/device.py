"""Where the learner computes and how precisely: `auto` made explicit, the `Accelerator` that carries both, and memory of devices."""

from __future__ import annotations

import traceback

from skill_ttrl.config import RuntimeConfig
from skill_ttrl.errors import ModelError, naming_extra

with naming_extra("Training"):
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import patch_environment

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
