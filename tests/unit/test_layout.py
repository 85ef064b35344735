"""One import name over folders at the root: the packaging list, the map, the links and the tree say the same."""

from __future__ import annotations

import re
import stat
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
MAPPED = ("agents", "cli", "configs", "envs")


def real_files(folder: str, pattern: str = "*.py") -> list[Path]:
    """Files below a folder of the root, the links left out."""
    links = [ROOT / "skill_ttrl" / name for name in MAPPED]
    found = (ROOT / folder).rglob(pattern)
    return sorted(path for path in found if not any(path.is_relative_to(link) for link in links))


def packages_in_the_tree() -> set[str]:
    own = {".".join(path.parent.relative_to(ROOT).parts) for path in real_files("skill_ttrl", "__init__.py")}
    mapped = {
        ".".join(("skill_ttrl", *path.parent.relative_to(ROOT).parts))
        for name in MAPPED
        for path in real_files(name, "__init__.py")
    }
    return own | mapped


def test_every_package_is_listed_and_every_listed_one_is_there() -> None:
    assert set(SETUPTOOLS["packages"]) == packages_in_the_tree()


def test_no_module_lies_in_a_folder_that_is_no_package() -> None:
    for folder in ("skill_ttrl", *MAPPED):
        for path in real_files(folder):
            assert (path.parent / "__init__.py").is_file(), f"{path.parent} has modules and no __init__.py"


def test_links_and_map_lead_to_the_same_folders() -> None:
    expected = {"skill_ttrl": "skill_ttrl"} | {f"skill_ttrl.{name}": name for name in MAPPED}
    assert SETUPTOOLS["package-dir"] == expected
    for name in MAPPED:
        link = ROOT / "skill_ttrl" / name
        if not stat.S_ISLNK(link.lstat().st_mode):
            pytest.skip("this checkout has no symbolic links (core.symlinks=false)")
        assert link.readlink() == Path("..", name)


def test_every_data_file_of_a_package_is_shipped() -> None:
    shipped = SETUPTOOLS["package-data"]
    for package in SETUPTOOLS["packages"]:
        folder = ROOT.joinpath(*package.split("."))
        patterns = [
            (ROOT.joinpath(*owner.split(".")) / pattern) for owner, names in shipped.items() for pattern in names
        ]
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix not in {".py", ".pyc"} and path.parent.name != "__pycache__":
                assert any(fnmatch(str(path), str(pattern)) for pattern in patterns), f"{path} is in no package-data"


def test_contributing_names_files_that_are_there() -> None:
    named = re.findall(
        r"`((?:skill_ttrl|agents|envs|cli|examples|tests|docs)/[\w./]*)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    )
    assert len(named) > 40 and not [path for path in named if not (ROOT / path).exists()]


def test_pins_are_within_the_ranges() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    tested = [
        *project["dependencies"],
        *(
            each
            for name in ("dev", "test", "train", "skills", "math", "openai", "mcp", "docs", "alfworld")
            for each in extras[name]
        ),
    ]
    for text in (text for text in tested if not text.startswith("skill-ttrl[")):  # our own extras
        requirement = Requirement(text)
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{text} and the pin {version}"
    assert not any("+" in version for version in pinned.values()), "a pin with a local version needs a special index"
