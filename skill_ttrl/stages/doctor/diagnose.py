"""Diagnose what this machine can run, without changing anything, with a fix for whatever will not work.

`check_machine` looks at the installation and the devices. Of a config `diagnose` adds what `--dry-run` finds (`doctor.dry_run`) and
the hosts that it names (`doctor.hosts`).
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.cores import cores
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.stages.doctor import version_sets
from skill_ttrl.stages.doctor.hosts import Check, host_checks, tried

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "skill-ttrl"
INSTALL = "pip install -c constraints.txt -e . (or make quickstart)"
TESTED_PYTHON = ((3, 11), (3, 12))
SHOWN_PACKAGES = ("torch", "transformers", "accelerate", "peft", "gymnasium", "datasets")
LITTLE_DISK = 5e9
"""Free bytes that are too few for the checkpoints of real models."""
TIGHT = 0.9
"""Share of the available memory above which an estimate is called tight."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, and the memory estimate where a config was given."""

    checks: list[Check]
    memory_parts: dict[str, int] = field(default_factory=dict)
    """Bytes of each part (see `doctor.memory`); empty without a config."""
    memory_peak: int = 0
    """Bytes on one device; 0 without a config."""

    @property
    def failed(self) -> bool:
        """True if something will not work."""
        return any(check.status == "fail" for check in self.checks)


def diagnose(config: SkillTTRLConfig | None = None) -> Diagnosis:
    """Check this installation and machine, and what `config` needs of it. Problems are returned, never raised."""
    checks = check_machine()
    if config is None:
        return Diagnosis(checks)
    checks += tried("hosts", lambda: host_checks(config))
    if backend_facts(config).remote:
        from skill_ttrl.stages.setup.checks import wrong_names

        checks += tried("config", lambda: [Check("config", "fail", str(error)) for error in wrong_names(config)])
        found = f"rollout.backend={config.rollout.backend}: no weights are loaded, and none can be trained"
        return Diagnosis([*checks, Check("model", "ok", found)])
    memory: dict[str, int] = {}
    checks += tried("device", lambda: _device(config))
    checks += tried("config", lambda: _run_checks(config, memory))
    peak = memory.pop("peak", 0)
    return Diagnosis(checks, memory, peak)


def _device(config: SkillTTRLConfig) -> str:
    from skill_ttrl.rl.device import resolve_device, resolve_precision

    device = resolve_device(config.runtime.device)
    return f"{device}, {resolve_precision(config.runtime.precision, device)}"


def _run_checks(config: SkillTTRLConfig, memory: dict[str, int]) -> list[Check]:
    """What a dry run finds; its memory estimate is put into `memory`."""
    from skill_ttrl.stages.doctor.dry_run import examine
    from skill_ttrl.stages.doctor.memory import gigabytes

    found = examine(config)
    memory.update(found.memory, peak=found.peak)
    sizes = [f"{gigabytes(found.peak)} at the peak, {gigabytes(found.available)} available"]
    sizes += [f"{name} {gigabytes(size)}" for name, size in found.memory.items() if size]
    tight = TIGHT * found.available < found.peak <= found.available
    counts = ("?" if count is None else f"{count:,}" for count in (found.train_tasks, found.evaluated_tasks))
    return [
        Check("model", "ok", f"{found.model}: {found.parameters:,} parameters, {found.trainable:,} of them trainable"),
        Check("tasks", "ok", "{} to train on, {} to evaluate on".format(*counts)),
        Check("memory", "warn" if tight else "ok", "; ".join(sizes)),
        *(Check("note", "warn", text) for text in found.notes),
        *(Check("config", "fail", text) for text in found.obstacles),
    ]


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] in TESTED_PYTHON:
        return Check("python", "ok", found)
    return Check("python", "warn", found, "Tested on 3.11 and 3.12: use one of these if something fails.")


def _requirements(extra: str = "") -> list[Requirement]:
    """Requirements of the installed distribution, or those that one extra adds."""
    from packaging.requirements import Requirement

    found = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or []]
    if not extra:
        return [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [
        each for each in found if each.marker and "extra" in str(each.marker) and each.marker.evaluate({"extra": extra})
    ]


def installed_version(package: str) -> str | None:
    """Version of an installed distribution; None where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> Check:
    own = installed_version(DISTRIBUTION)
    if own is None:
        return Check("packages", "warn", f"{DISTRIBUTION} is not installed; this is a source tree", "pip install -e .")
    wrong = []
    for requirement in _requirements():
        version = installed_version(requirement.name)
        if version is None:
            wrong.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is outside {requirement.specifier}")
    if wrong:
        engines = version_sets.this_environment().engines
        command = version_sets.install_command(engines[0]) if engines else INSTALL
        return Check("packages", "fail", "; ".join(wrong), command)
    shown = ", ".join(f"{name} {installed_version(name)}" for name in SHOWN_PACKAGES)
    return Check("packages", "ok", f"{DISTRIBUTION} {own}; {shown}")


def _versions() -> list[Check]:
    """Which of the sets this is; one failed check for each thing that does not fit."""
    found = version_sets.this_environment()
    name = version_sets.which_set(found)
    if name == "none":
        return [Check("versions", "fail", each.problem, each.command) for each in version_sets.misfits(found)]
    if name == "core":
        advice = f"With vLLM, into an environment of its own: {version_sets.install_command('gpu')} (docs/models.md)"
        return [Check("versions", "ok", "set core: no vLLM", advice)]
    engine = version_sets.ENGINES[name]
    return [Check("versions", "ok", f"set {name}: {engine} {found.versions[engine]}")]


def _extras() -> Check:
    if installed_version(DISTRIBUTION) is None:
        return Check("extras", "ok", "unknown in a source tree")
    names = importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    have = {name: all(installed_version(each.name) for each in _requirements(name)) for name in names}
    there = ", ".join(name for name in names if have[name]) or "none"
    absent = ", ".join(name for name in names if not have[name])
    advice = "Needed only for what they name: pip install 'skill-ttrl[NAME]'" if absent else ""
    return Check("extras", "ok", f"installed: {there}" + (f"; not installed: {absent}" if absent else ""), advice)


def _gpu() -> Check:
    version = installed_version("torch")
    if version is None:
        return Check("gpu", "fail", "torch is not installed", INSTALL)
    from skill_ttrl.rl.device import gpus

    usable = gpus()
    if usable:
        return Check("gpu", "ok", f"{'; '.join(usable)} (torch {version})")
    present = _nvidia_smi()
    if present:
        advice = "Install a CUDA build of torch from the index that pytorch.org names, or update the driver."
        return Check("gpu", "warn", f"{present} is there, but torch {version} cannot use it", advice)
    return Check(
        "gpu", "ok", f"none (torch {version}): the CPU is used", "Enough for quickstart; real models need one."
    )


def _nvidia_smi() -> str:
    """Names of the GPUs that the driver reports; empty where there is no driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    query = [command, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "; ".join(done.stdout.split("\n")).strip("; ")


def _cpu() -> Check:
    from skill_ttrl.rl.device import device_memory

    return Check("cpu", "ok", f"{cores()} cores, {device_memory('cpu') / 1e9:.1f} GB of memory available")


def _disk() -> Check:
    place = (Path("runs") if Path("runs").is_dir() else Path.cwd()).resolve()
    free = shutil.disk_usage(place).free
    found = f"{free / 1e9:.1f} GB free at {place}"
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        advice = "Run from another folder, or name one: --output FOLDER."
        return Check("disk", "fail", f"{place} is not writable ({error.strerror})", advice)
    if free < LITTLE_DISK:
        return Check("disk", "warn", found, "Checkpoints of real models take several GB: free some, or use --output.")
    return Check("disk", "ok", found)


def check_machine() -> list[Check]:
    """Checks of the installation and the machine."""
    looks: dict[str, Callable[[], Check | Sequence[Check]]] = {
        "python": _python,
        "packages": _packages,
        "versions": _versions,
        "extras": _extras,
        "gpu": _gpu,
        "cpu": _cpu,
        "disk": _disk,
    }
    return [check for name, look in looks.items() for check in tried(name, look)]
