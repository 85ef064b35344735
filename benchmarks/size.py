"""Counts what the project consists of, by room, against the totals in size.toml: `make size`.

The totals only fall: `make size LOWER=1` writes today's where they are lower. A test fails where a count is above its total.
"""

from __future__ import annotations

import argparse
import ast
import gc
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

ROOT = Path(__file__).resolve().parent.parent
TOTALS = ROOT / "size.toml"
PRODUCT = ("skill_ttrl", "envs", "agents", "cli")
GENERATED = ("docs/settings.md", "docs/cli.md", "docs/metrics.md")


def files(*patterns: str) -> list[str]:
    """Files of the repository, new ones included, that git does not ignore."""
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(listed, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return sorted({name for name in names if (ROOT / name).is_file()})


def code_lines(source: str) -> int:
    """Lines that hold code: neither blank, nor a comment, nor part of a docstring."""
    held = {at for at, line in enumerate(source.split("\n"), 1) if line.strip() and not line.lstrip().startswith("#")}
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, False):
                documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # its blank lines count
            held.update(range(node.lineno + 1, (node.end_lineno or 0) + 1))
    return len(held - documented)


def settings(section: Any = None) -> int:
    """Keys of a config that hold a value. A mapping by names counts as one."""
    from skill_ttrl.config import Section, SkillTTRLConfig

    total = 0
    for field in (section or SkillTTRLConfig).model_fields.values():
        mapping = get_origin(field.annotation) is dict
        kinds = [] if mapping else [field.annotation, *get_args(field.annotation)]
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)
        total += settings(inner) if inner else 1
    return total


def commands(command: Any = None) -> Iterator[Any]:
    """Every command, those of groups among them."""
    from skill_ttrl.cli.main import command_tree

    command = command or command_tree()
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield command
    for child in inner.values():
        yield from commands(child)


def rooms() -> tuple[Counter[str], Counter[str]]:
    """(code lines, files) of the product by folder."""
    lines, count = Counter[str](), Counter[str]()
    gc.disable()  # which looks at every syntax tree again and again, half of the time
    for name in files(*(f"{folder}/*.py" for folder in PRODUCT)):
        room = name.rpartition("/")[0]
        lines[room] += code_lines((ROOT / name).read_text(encoding="utf-8"))
        count[room] += 1
    gc.enable()
    return lines, count


def totals(lines: Counter[str], count: Counter[str]) -> dict[str, int]:
    """What size.toml limits, as it is."""
    pages = [name for name in files("README.md", "docs/*.md") if name not in GENERATED]
    return {
        "code_lines": lines.total(),
        "files": count.total(),
        "settings": settings(),
        "commands": len(list(commands())),
        "test_lines": sum((ROOT / name).read_text(encoding="utf-8").count("\n") for name in files("tests/*.py")),
        "doc_words": sum(len((ROOT / name).read_text(encoding="utf-8").split()) for name in pages),
    }


def limits() -> dict[str, int]:
    """The totals of size.toml."""
    return tomllib.loads(TOTALS.read_text(encoding="utf-8"))


def lower(found: dict[str, int]) -> None:
    """Write the totals that are lower now into size.toml; its comments stay."""
    text = TOTALS.read_text(encoding="utf-8")
    for name, most in limits().items():
        text = re.sub(rf"(?m)^{name} = \d+", f"{name} = {min(most, found[name])}", text)
    TOTALS.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lower", action="store_true", help="write the totals that are lower now into size.toml")
    lowered = parser.parse_args().lower
    lines, count = rooms()
    found = totals(lines, count)
    print(f"{'code lines':>10} {'files':>6}  room")
    for room in sorted(lines):
        print(f"{lines[room]:10,} {count[room]:6}  {room}")
    print(f"\n{'now':>10} {'at most':>10}")
    for name, most in limits().items():
        print(f"{found[name]:10,} {most:10,}  {name.replace('_', ' ')}{'  TOO MUCH' if found[name] > most else ''}")
    if lowered:
        lower(found)


if __name__ == "__main__":
    main()
