"""The wheel beside OpenEnv, verifiers and Inspect AI, each in an environment of its own: some pin packages below what this project has."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from tests.integration.test_wheel import ROOT, built, run

__all__ = ["built"]

ENVIRONMENTS = ("envs/test_others.py", "integrations/test_games.py")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("extra", "more", "tests", "passed"),
    [
        ("openenv", "", ENVIRONMENTS, 5),
        ("verifiers", "[openenv]", ENVIRONMENTS, 12),
        ("inspect", "", ("commands/test_export.py",), 4),
    ],
)
def test_an_extra_works_beside_the_wheel(
    built: Path, tmp_path: Path, extra: str, more: str, tests: tuple[str, ...], passed: int
) -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    uv, venv = [sys.executable, "-m", "uv"], tmp_path / "venv"
    run(*uv, "venv", "--quiet", "--python", sys.executable, str(venv), cwd=tmp_path)
    pip = [*uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python")]
    run(*pip, *(each.replace(">=", f"{more}>=") for each in wanted), cwd=tmp_path)
    run(*pip, "--no-deps", str(next((built / "wheel").glob("*.whl"))), cwd=tmp_path)
    site = next((venv / "lib").glob("python*")) / "site-packages"
    site.joinpath("the-rest.pth").write_text("\n".join(each for each in sys.path if each.endswith("site-packages")))
    for path in tests:
        shutil.copy(ROOT / "tests" / "unit" / path, tmp_path)
    python = [str(venv / "bin" / "python"), "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    said = run(*python, "-p", "no:cacheprovider", *(Path(path).name for path in tests), cwd=tmp_path)
    assert f"{passed} passed" in said, said
