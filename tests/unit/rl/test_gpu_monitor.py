"""Memory of a GPU: measured where there is one, no figures where there is none."""

from __future__ import annotations

import pytest
import torch

from skill_ttrl.rl.device import GpuMemoryMonitor


def test_without_a_gpu_there_are_no_figures() -> None:
    gauge = GpuMemoryMonitor(torch.device("cpu"))
    gauge.look()
    assert gauge.figures() == {}


def test_the_most_that_was_used_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's answers are made up here; `test_on_a_gpu` takes real ones."""
    free = iter([(70, 100), (20, 100), (60, 100)])
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: next(free))
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: 30)
    gauge = GpuMemoryMonitor(torch.device("cuda", 0))
    for _ in range(3):
        gauge.look()
    assert gauge.figures() == {"gpu_peak_bytes": 30.0, "gpu_used_bytes": 80.0}


@pytest.mark.gpu
def test_on_a_gpu_an_allocation_is_seen() -> None:
    device = torch.device("cuda", 0)
    gauge = GpuMemoryMonitor(device)
    block = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    gauge.look()
    assert gauge.figures()["gpu_peak_bytes"] >= block.numel() and gauge.figures()["gpu_used_bytes"] >= block.numel()
