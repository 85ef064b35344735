"""Writes docs/cli.md from the command line itself, for the site (`make docs`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from skill_ttrl.cli.main import app

OPENING = """\
# Commands

`skillttrl COMMAND --help` prints the same. `--debug` (show the traceback of an error) and `--trust` (follow the config of a run that somebody else made,
[security](security.md)) may stand anywhere. `--json` prints one JSON value on stdout; the live view and warnings then go to stderr:

```console
$ skillttrl --version
$ skillttrl evaluate runs/quickstart --json | python -c 'import json, sys; print(json.load(sys.stdin)["accuracy"])'
```

`--env` takes a short name (`math`), a Gymnasium id (`SkillTTRL/Math-v0`) or `module:EnvId-v0` ([environments](environments.md)). `--set`:
[configuration](configuration.md). `--resume`, signals and details of exit codes: [operations](operations.md).

**Exit codes.** 0 done; 1 an unexpected error: a bug; 2 config or command line; 3 data or environment; 4 run folder, checkpoint or
skill bank; 5 model, device or missing package; 6 a language model's server refuses or does not answer; 7 the budget for such
models is spent; 8 nothing can be learned: no update is finite, or too few groups differ in reward; 9 one of several processes of a run
has died, or a cluster cannot be used; 128+n stopped by signal n with everything saved.

## All commands

"""
CLOSING = """\
## If a command fails

A mistake of yours gives one message on stderr and an exit code, no traceback. A traceback is a bug, unless it comes from a file of yours.

- `command not found`: use the environment of the installation, `.venv/bin/skillttrl` after `make quickstart`.
- No live view: the output is not a terminal, so a line is printed now and then instead.
"""


def commands(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command and its click object, those of groups by both words."""
    command = typer.main.get_command(app) if command is None else command
    inner = getattr(command, "commands", None)
    if not inner or command.invoke_without_command:
        yield name, command
    for word, child in (inner or {}).items():
        yield from commands(child, f"{name} {word}".strip())


def cli_page() -> str:
    """The page's text."""
    return OPENING + "\n".join(_entry(name, command) for name, command in commands()) + "\n" + CLOSING


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
