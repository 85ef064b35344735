"""Docstrings begin with a verb or a noun; they, comments and pages do without some words (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("skill_ttrl", "agents", "envs", "cli", "configs")
FILES = sorted({path.resolve() for room in ROOMS for path in (ROOT / room).rglob("*.py")})
BEGINNINGS = re.compile(r"(What|Whether|Who|That)\b")
UNUSED = re.compile(r"\b(told|tries|beside|put down|given up|gone on with|behind an address)\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`")
GENERATED = ("settings.md", "cli.md")
PAGES = [
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
    if path.name not in (*GENERATED, "CHANGELOG.md")
]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of the docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for each in node.body:
                if (
                    isinstance(each, ast.Expr)
                    and isinstance(each.value, ast.Constant)
                    and isinstance(each.value.value, str)
                ):
                    yield each.lineno, each.value.value


def comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the comments."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def broken(path: Path) -> list[str]:
    """Each place of a file where a rule is broken."""
    text = path.read_text(encoding="utf-8")
    prose = list(docstrings(ast.parse(text)))
    where = path.relative_to(ROOT)
    found = [
        f"{where}:{line} begins with {said.split()[0]!r}" for line, said in prose if BEGINNINGS.match(said.strip())
    ]
    for line, said in (*prose, *comments(text)):
        found += [f"{where}:{line} says {word!r}" for word in UNUSED.findall(CODE.sub("", said))]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_and_comments_keep_the_rules(room: str) -> None:
    inside = [path for path in FILES if path.is_relative_to(ROOT / room)]
    assert [place for path in inside for place in broken(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_do_without_these_words(page: Path) -> None:
    prose = CODE.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))
    assert UNUSED.findall(prose) == []
