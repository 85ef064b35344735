"""The site that `make docs` builds: every page has its place, the packages are pinned, and it holds what users extend."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType

import pytest

import skill_ttrl

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOCTREE = re.compile(r"^```\{toctree\}\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
GENERATED = ("settings", "cli", "metrics")
OPTIONAL = ("vllm", "ray", "alfworld", "textworld", "chromadb", "bm25s", "sentence_transformers", "openai", "gepa")
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
