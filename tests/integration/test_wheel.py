"""What is built is what works: wheel and sdist, used from outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("skill_ttrl", "agents", "cli", "configs", "envs", "pyproject.toml", "README.md", "LICENSE")


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `wheel/`, built from a copy: setuptools leaves files behind where it builds."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    source.mkdir()
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, source / name)
    build = [sys.executable, "-m", "build", "--no-isolation"]
    run(*build, "--wheel", "--outdir", str(folder / "wheel"), str(source), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def site(built: Path) -> Path:
    """The wheel, installed alone into an empty folder."""
    target = built / "site"
    wheel = next((built / "wheel").glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    run(*pip, "--target", str(target), str(wheel), cwd=built)
    return target


def installed(site: Path, statement: str, cwd: Path) -> str:
    """Run a statement with the installed wheel before everything else on the path, the repository nowhere."""
    path = [str(site), *(each for each in sys.path if each and Path(each).resolve() != ROOT)]
    code = f"import sys; sys.path[:0] = {path!r}; sys.path_importer_cache.clear(); sys.meta_path = [f for f in sys.meta_path if '__editable__' not in getattr(f, '__module__', '')]\n"
    return run(sys.executable, "-I", "-c", code + statement, cwd=cwd, env=dict(os.environ))


def names_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_wheel_has_one_top_level_package(built: Path) -> None:
    names = names_in(next((built / "wheel").glob("*.whl")))
    assert {name.partition("/")[0] for name in names} == {"skill_ttrl"}
    shipped = {"py.typed", "prompts/boxed.md", "configs/quickstart.yaml", "locks/cpu.txt", "locks/gpu.txt"}
    shipped |= {"envs/webshop/maker/words.toml", "commands/reports/templates/run.html.j2"}
    assert {f"skill_ttrl/{name}" for name in shipped} <= names
    assert {f"skill_ttrl/{name}/__init__.py" for name in ("agents", "cli", "configs", "envs")} <= names
    assert not any("test" in name.partition("/")[2].split("/")[0] for name in names)


@pytest.mark.slow
def test_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    sdist = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(built / "sdist")]
    run(*sdist, str(built / "source"), cwd=built)
    with tarfile.open(next((built / "sdist").glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = next(tmp_path.iterdir())
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path / "again")),
        str(unpacked),
        cwd=tmp_path,
    )
    assert names_in(next((tmp_path / "again").glob("*.whl"))) == names_in(next((built / "wheel").glob("*.whl")))


@pytest.mark.slow
def test_installed_wheel_is_what_is_imported(site: Path, tmp_path: Path) -> None:
    statement = (
        "import skill_ttrl, skill_ttrl.envs, skill_ttrl.agents.agent, skill_ttrl.cli.main, skill_ttrl.configs\n"
        "import skill_ttrl.commands.train, skill_ttrl.commands.doctor\n"
        "print(*sorted({m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'skill_ttrl'}), sep='\\n')"
    )
    files = installed(site, statement, tmp_path).split()
    assert len(files) > 20
    assert all(Path(file).is_relative_to(site) for file in files)


@pytest.mark.slow
def test_installed_command_lists_its_recipes_and_prompts(site: Path, tmp_path: Path) -> None:
    statement = "from skill_ttrl.cli.main import main; sys.argv = ['skillttrl', 'configs']; main()"
    assert "quickstart" in installed(site, statement, tmp_path)
    statement = "from skill_ttrl.cli.main import main; sys.argv = ['skillttrl', 'init', 'my_env']; main()"
    installed(site, statement, tmp_path)
    assert (tmp_path / "my_env.py").is_file()


def test_metadata_names_the_command_and_the_license(built: Path) -> None:
    with zipfile.ZipFile(next((built / "wheel").glob("*.whl"))) as wheel:
        texts = {
            name.partition("/")[2]: wheel.read(name).decode() for name in wheel.namelist() if ".dist-info/" in name
        }
    assert "skillttrl = skill_ttrl.cli.entry:main" in texts["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in texts["METADATA"]
    assert "licenses/LICENSE" in texts
