"""How many processor cores there are to share work out to. Alone, so that asking loads nothing else."""

from __future__ import annotations

import os


def cores() -> int:
    """Processor cores that this process may use: those of its affinity, where the system knows one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
