from __future__ import annotations

import os

import pytest
import torch

from skill_ttrl.config import RuntimeConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.rl.device import make_accelerator, resolve_device, resolve_precision
from skill_ttrl.rl.learner import GpuMemoryMonitor


def test_auto_on_a_cpu_is_fp32() -> None:
    device = resolve_device("cpu")
    assert resolve_precision("auto", device) == "fp32"
    accelerator = make_accelerator(RuntimeConfig(device="cpu"))
    assert accelerator.device == device and accelerator.scaler is None


def test_precision_can_change_between_runs_of_one_process() -> None:
    for precision, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        accelerator = make_accelerator(RuntimeConfig.model_validate({"device": "cpu", "precision": precision}))
        with accelerator.autocast():
            assert torch.nn.functional.linear(torch.ones(1, 2), torch.ones(1, 2)).dtype == dtype
    assert "ACCELERATE_TORCH_DEVICE" not in os.environ


def test_what_is_not_there_is_refused_with_advice() -> None:
    with pytest.raises(ModelError, match=r"finds \d+ CUDA devices"):
        resolve_device("cuda:99")
    with pytest.raises(ModelError, match="Unknown device 'gpu'"):
        resolve_device("gpu")
    with pytest.raises(ModelError, match="needs a GPU"):
        resolve_precision("fp16", torch.device("cpu"))


@pytest.mark.gpu
def test_on_a_gpu_an_allocation_is_seen() -> None:
    device = torch.device("cuda", 0)
    monitor = GpuMemoryMonitor(device)
    block = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    monitor.sample()
    assert monitor.metrics()["gpu_peak_bytes"] >= block.numel() and monitor.metrics()["gpu_used_bytes"] >= block.numel()
