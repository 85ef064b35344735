"""The light install: what is promised without torch and its family, and the line of what needs them."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from skill_ttrl.errors import TRAIN_PACKAGES, MissingDependencyError, naming_extra
from tests.alfworld_kitchen import data_file
from tests.integration.test_wheel import answers, built, run  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "tests" / "smoke.py"
BLOCKED = (*TRAIN_PACKAGES, "chromadb", "sentence_transformers", "openai", "huggingface_hub", "sklearn")
CLEAN = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA"}  # alfworld sets it on import
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_light_surface_works_with_the_trainer_blocked(tmp_path: Path) -> None:
    data_file("alfred.pddl")  # skips without the package
    code = f"import sys, runpy; sys.modules.update(dict.fromkeys({BLOCKED!r})); runpy.run_path({str(SMOKE)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=CLEAN, capture_output=True, text=True)
    assert done.stdout.endswith("ok\n"), done.stderr


def test_each_package_of_the_trainer_has_its_line_and_no_other() -> None:
    asked = [Requirement(text).name for text in PROJECT["optional-dependencies"]["train"]]
    assert {canonicalize_name(name) for name in TRAIN_PACKAGES} == {*asked} - {"skill-ttrl"}
    for package in sorted(TRAIN_PACKAGES):
        line = rf"^This needs {package}, .*'\.\[train\]'$"
        with pytest.raises(MissingDependencyError, match=line), naming_extra("This"):
            raise ModuleNotFoundError("", name=package)
    with pytest.raises(ModuleNotFoundError), naming_extra("This"):
        import one_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.slow  # asks an index of packages
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("python", ["python3.11", "python3.12", "python3.13"])
def test_wheel_installs_alone_and_light(built: Path, python: str, tmp_path: Path) -> None:  # noqa: F811
    if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"there is no {python}")
    if not answers("packaging==26.3"):
        pytest.skip("no index of packages answers")
    wheel = next((built / "wheel").glob("*.whl"))
    found = runpy.run_path(str(ROOT / "benchmarks" / "install.py"))["install"](tmp_path / "venv", wheel, "", python)
    print(found)
    assert found["packages"] <= 40
    assert found["megabytes"] < 400
    own = [str(tmp_path / "venv" / "bin" / "python"), "-I"]
    pip = [*own, "-m", "pip", "install", "--quiet", "--no-deps"]
    alfworld = next(text for text in PROJECT["optional-dependencies"]["alfworld"] if text.startswith("alfworld"))
    run(*pip, alfworld, cwd=tmp_path)
    assert run(*own, str(SMOKE), cwd=tmp_path, env=CLEAN | {"HOME": str(tmp_path)}).endswith("ok\n")
    build = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", "sdist"]
    run(*build, str(built / "source"), cwd=tmp_path)
    run(*pip, "--force-reinstall", str(next((tmp_path / "sdist").iterdir())), cwd=tmp_path)
    assert run(*own, str(SMOKE), cwd=tmp_path, env=CLEAN | {"HOME": str(tmp_path)}).endswith("ok\n")
