"""The wheel inside TRL and verl, each in an environment of its own: verl takes no transformers from 5.11 on."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.test_wheel import ROOT, built, run

__all__ = ["built"]

VERL = "verl==0.9.1 tensordict==0.10.0 pyvers ray msgpack jsonschema torchdata codetiming hydra-core omegaconf antlr4-python3-runtime==4.9.3"
"""What its reward loop imports, without what it asks for besides: another torch, CUDA, wandb."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "packages", "tests"), [("trl", "trl==1.16.*", 4), ("verl", VERL, 5)])
def test_a_trainer_uses_the_wheel(built: Path, tmp_path: Path, name: str, packages: str, tests: int) -> None:
    uv, venv = [sys.executable, "-m", "uv"], tmp_path / "venv"
    run(*uv, "venv", "--quiet", "--python", sys.executable, str(venv), cwd=tmp_path)
    pip = [*uv, "pip", "install", "--quiet", "--no-deps", "--python", str(venv / "bin" / "python")]
    run(*pip, *packages.split(), str(next((built / "wheel").glob("*.whl"))), cwd=tmp_path)
    site = next((venv / "lib").glob("python*")) / "site-packages"
    site.joinpath("the-rest.pth").write_text("\n".join(each for each in sys.path if each.endswith("site-packages")))
    shutil.copy(ROOT / "tests" / "unit" / "integrations" / f"test_{name}.py", tmp_path)
    python = [str(venv / "bin" / "python"), "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    said = run(*python, "-p", "no:cacheprovider", f"test_{name}.py", cwd=tmp_path)
    assert f"{tests} passed" in said, said
