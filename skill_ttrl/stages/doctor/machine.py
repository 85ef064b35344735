"""Checks of the installation and the machine for `doctor`: each is a function that looks and gives one `Check`."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from skill_ttrl.cores import cores
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.stages.doctor import version_sets

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Status = Literal["ok", "warn", "fail"]
DISTRIBUTION = "skill-ttrl"
TESTED_PYTHON = ((3, 11), (3, 12))
SHOWN_PACKAGES = ("torch", "transformers", "accelerate", "peft", "gymnasium", "datasets")
MOST_SHOWN = 5
"""Packages named where many differ."""
LITTLE_DISK = 5e9
"""Free bytes below which checkpoints of real models will not go far."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    """`ok`, `warn`: works with a limit, `fail`: will not work."""
    found: str
    advice: str = ""
    """Remedy; empty where none is needed."""


def tried(name: str, look: Callable[[], str | Check | Sequence[Check] | None]) -> list[Check]:
    """Run one check; an error in it becomes a failed `Check`, so that the others still run.

    Args:
        name: of the check, where `look` gives a text or fails.
        look: gives what was found, or whole checks, or None where nothing is worth a line.
    """
    try:
        found = look()
    except SkillTTRLError as error:
        return [Check(name, "fail", "not usable", str(error))]
    except Exception as error:  # a broken package can raise anything where it is imported
        text = f"looking at it failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return [
            Check(
                name,
                "fail",
                text,
                "First fix `versions` and `packages`. If both are ok, this is a bug of skill-ttrl: report it.",
            )
        ]
    if isinstance(found, str):
        return [Check(name, "ok", found)]
    return [found] if isinstance(found, Check) else list(found or ())


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] in TESTED_PYTHON:
        return Check("python", "ok", found)
    return Check(
        "python", "warn", found, "The checks have been run on 3.11 and 3.12; use one of them where something is odd."
    )


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
        command = "pip install -c constraints.txt -e . (or make quickstart)"
        return Check(
            "packages", "fail", "; ".join(wrong), version_sets.install_command(engines[0]) if engines else command
        )
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
    differ = version_sets.not_as_locked(found, name)
    engine = version_sets.ENGINES[name]
    text = f"set {name}: {engine} {found.versions[engine]}" + version_sets.lock_python_note()
    if not differ:
        return [Check("versions", "ok", f"{text}; every package as locked")]
    shown = ", ".join(differ[:MOST_SHOWN]) + (", …" if len(differ) > MOST_SHOWN else "")
    advice = f"They fit, but were not tested together: {version_sets.install_command(name)}"
    return [Check("versions", "ok", f"{text}; {len(differ)} packages are not as locked: {shown}", advice)]


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
        return Check("gpu", "fail", "torch is not installed", "pip install -c constraints.txt -e .")
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
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / 1e9:.1f} GB free at {Path.cwd()}"
    if free < LITTLE_DISK:
        return Check("disk", "warn", found, "Checkpoints of real models take several GB: free some, or use --output.")
    return Check("disk", "ok", found)


def _output() -> Check:
    place = Path("runs") if Path("runs").is_dir() else Path.cwd()
    try:
        with tempfile.TemporaryFile(dir=place):
            return Check("output", "ok", f"{place.resolve()} can be written")
    except OSError as error:
        advice = "Run from another folder, or name one: --output FOLDER."
        return Check("output", "fail", f"{place.resolve()} cannot be written ({error.strerror})", advice)


def _hub() -> Check:
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    cached = len(list(Path(HF_HUB_CACHE).glob("models--*")))
    mode = "offline (HF_HUB_OFFLINE is set)" if HF_HUB_OFFLINE else "downloads allowed"
    return Check("hugging face", "ok", f"{cached} models in {HF_HUB_CACHE}; {mode}")


def check_machine() -> list[Check]:
    """Every check of this module, in the order a reader asks."""
    looks: dict[str, Callable[[], Check | Sequence[Check]]] = {
        "python": _python,
        "packages": _packages,
        "versions": _versions,
        "extras": _extras,
        "gpu": _gpu,
        "cpu": _cpu,
        "disk": _disk,
        "output": _output,
        "hugging face": _hub,
    }
    return [check for name, look in looks.items() for check in tried(name, look)]
