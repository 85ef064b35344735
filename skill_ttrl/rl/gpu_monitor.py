"""How much of a GPU a step took: the learner's own peak, and all that is used on the device."""

from __future__ import annotations

import torch


class GpuMemoryMonitor:
    """Memory of one GPU from the moment this is made; on other devices it has no figures.

    Args:
        device: where the learner computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._used = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def look(self) -> None:
        """Look at what everything on the device uses now: the learner, an engine beside it, other processes."""
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            self._used = max(self._used, total - free)

    def figures(self) -> dict[str, float]:
        """`gpu_peak_bytes`: peak of what torch handed out in this process. `gpu_used_bytes`: most that was in use on the whole
        device when it was looked at. Empty without a GPU.
        """
        if self._device.type != "cuda":
            return {}
        peak = torch.cuda.max_memory_allocated(self._device)
        return {"gpu_peak_bytes": float(peak), "gpu_used_bytes": float(self._used)}
