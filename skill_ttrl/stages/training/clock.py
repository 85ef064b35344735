"""Wall time of the parts of a training step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from skill_ttrl.progress import Progress
from skill_ttrl.rl.device import GpuMemoryMonitor

if TYPE_CHECKING:
    from accelerate import Accelerator


class StepTimer:
    """Wall time of the parts of one step, and on a GPU the memory that it took."""

    def __init__(self, progress: Progress, phase: str, accelerator: Accelerator) -> None:
        self._progress, self._phase = progress, phase
        self._memory = GpuMemoryMonitor(accelerator.device)
        self._began = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Time a part, and show it as what the phase is at."""
        self._memory.sample()
        self._progress.enter(self._phase, part)
        began = time.perf_counter()
        yield
        self._seconds[f"{part}_seconds"] = time.perf_counter() - began

    def stop(self) -> dict[str, float]:
        """Seconds of each part, `seconds` of the whole step, and GPU memory."""
        self._memory.sample()
        return {**self._seconds, "seconds": time.perf_counter() - self._began, **self._memory.metrics()}
