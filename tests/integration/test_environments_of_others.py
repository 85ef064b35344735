"""The wheel beside verifiers and OpenEnv, in an environment of their own: verifiers pins packages below what this project has."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from tests.integration.test_wheel import ROOT, built, run

__all__ = ["built"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("extra", "more", "files"),
    [("openenv", "", ["test_openenv.py"]), ("verifiers", "[openenv]", ["test_openenv.py", "test_verifiers.py"])],
)
def test_an_extra_works_beside_the_wheel(built: Path, tmp_path: Path, extra: str, more: str, files: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wheel = next((built / "wheel").glob("*.whl"))
    uv, venv = [sys.executable, "-m", "uv"], tmp_path / "venv"
    run(*uv, "venv", "--quiet", "--python", sys.executable, str(venv), cwd=tmp_path)
    pip = [*uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python")]
    run(*pip, *(each.replace(">=", f"{more}>=") for each in extras[extra]), cwd=tmp_path)
    run(*pip, "--no-deps", str(wheel), cwd=tmp_path)
    site = next((venv / "lib").glob("python*")) / "site-packages"
    site.joinpath("the-rest.pth").write_text("\n".join(each for each in sys.path if each.endswith("site-packages")))
    tests = tmp_path / "tests" / "unit" / "envs"
    tests.mkdir(parents=True)
    for name in files:
        shutil.copy(ROOT / "tests" / "unit" / "envs" / name, tests)
    python = [str(venv / "bin" / "python"), "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    said = run(*python, "-p", "no:cacheprovider", str(tests), cwd=tmp_path)
    assert "passed" in said and "skipped" not in said, said
