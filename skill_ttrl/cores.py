"""Processor cores and memory that there are to share work out to. Alone, so that asking loads nothing else."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """Processor cores that this process may use: those of its affinity, where the system knows one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Bytes of memory that this machine, or the container that it is, has available now."""
    import psutil

    available = int(psutil.virtual_memory().available)
    limit, used = (Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory.current"))
    try:
        return min(available, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return available
