"""Write the list of commands in docs/cli.md from the command line itself. `tests/integration/test_docs.py` holds them together.

Run it after a change of a command: python docs/generate_cli.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from skill_ttrl.cli.main import app

TARGET = Path(__file__).with_name("cli.md")
BEGIN, END = "<!-- commands: made by docs/generate_cli.py -->\n", "<!-- /commands -->"


def commands(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command and its click object, those of groups by both words."""
    command = typer.main.get_command(app) if command is None else command
    inner = getattr(command, "commands", None)
    if not inner or command.invoke_without_command:
        yield name, command
    for word, child in (inner or {}).items():
        yield from commands(child, f"{name} {word}".strip())


def with_commands(page: str) -> str:
    """The page with its list of commands written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join(_entry(name, command) for name, command in commands()) + "\n" + END + after


def _entry(name: str, command: Any) -> str:
    places = [_placeholder(each) for each in command.params if each.param_type_name == "argument"]
    lines = [f"### `skillttrl {' '.join([name, *places])}`", "", " ".join(command.help.split()), ""]
    rows = [(" ".join(f"`{word}`" for word in _words(each)), _help(each)) for each in command.params]
    return "\n".join([*lines, "| | |", "|---|---|", *(f"| {words} | {text} |" for words, text in rows), ""])


def _words(parameter: Any) -> list[str]:
    if parameter.param_type_name == "argument":
        return [_placeholder(parameter)]
    return [*parameter.opts, *parameter.secondary_opts]


def _placeholder(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required else f"[{name}]"


def _help(parameter: Any) -> str:
    return " ".join((parameter.help or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(with_commands(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
    print(TARGET)
