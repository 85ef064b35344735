"""Options and forms of commands that were renamed: each is answered by an error that names the new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from skill_ttrl.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

BATCH, WORKERS, NO_SKILLS, POLICY, ENV_DATA = "--batch-size", "--num-workers", "--no-skills", "--policy", "--env-data"
TRACKER = {"--tracker": "--report-to"}
GATE = {"--gate-with": POLICY}
WHEN = {"--when": "--when-to-apply"}
EXTRA = "TARGET"
"""Stands for a second positional argument in the table."""

RENAMED: Mapping[str, Mapping[str, str]] = {
    "train": TRACKER,
    "sft": TRACKER,
    "rl": {**TRACKER, "--model": POLICY},
    "collect": {
        "--agent": POLICY,
        "--episodes": "--limit",
        "--tries": "--rollouts-per-task",
        "--explore": "--epsilon",
        "--explore-moves": "--epsilon-moves",
        "--data": ENV_DATA,
        "--no-bank": NO_SKILLS,
        "--chunk": BATCH,
        "--jobs": WORKERS,
    },
    "evaluate": {
        "--agent": "the argument POLICY: skillttrl evaluate POLICY",
        "--chunk": BATCH,
        "--jobs": WORKERS,
        "--no-bank": NO_SKILLS,
    },
    "ask": {"--no-bank": NO_SKILLS},
    "inspect": {"--limit": "--rows", "-n": "--rows"},
    "export": {"--merged": "--merge-lora", "--no-merged": "--no-merge-lora"},
    "merge": {**GATE, "--by": "--granularity"},
    "distill": {**GATE, "--merge": "--append"},
    "vote": {
        "--option": "--strategy-arg",
        "--threshold": "--false-consensus-threshold",
        "--splits": "--num-resamples",
        "--chunk": BATCH,
        "--no-bank": NO_SKILLS,
    },
    "serve": {
        "--gpu-memory": "--gpu-memory-utilization",
        "--lora": "--max-lora-rank",
        "--sleep": "--enable-sleep-mode",
        "--transfer-folder": "--weight-transfer-dir",
    },
    "init": {"--folder": "--output"},
    "doctor": {"--lock": "a command: skillttrl doctor lockfile cpu|gpu"},
    "configs copy": {EXTRA: "--output FILE"},
    "envs play": {
        "--agent": POLICY,
        "--expert": "--walkthrough",
        "--constrain": "--structured-outputs",
        "--no-bank": NO_SKILLS,
        "--data": ENV_DATA,
    },
    "envs serve": {"--data": ENV_DATA},
    "skills add": WHEN,
    "skills edit": WHEN,
}
"""Command → option of before 0.1.0 → option that replaces it, or the form."""

POSITIONAL: Mapping[str, Mapping[str, str]] = {
    **{command: {POLICY: "POLICY"} for command in ("ask", "evaluate", "export", "serve")},
    **{command: {"--config": "CONFIG"} for command in ("train", "sft", "rl", "optimize")},
    **{command: {"--bank": "BANK"} for command in ("skills list", "skills show", "skills search", "skills history")},
}
"""Command → option of other commands → the argument that it is here."""


def explain_renamed(command: str, option: str) -> str | None:
    """Return the error for an option that `command` does not have (any more); None where nothing is known about it."""
    if new := RENAMED.get(command, {}).get(option):
        old = "The second argument" if option == EXTRA else option
        return f"{old} is now {new}. All options: skillttrl {command} --help"
    if argument := POSITIONAL.get(command, {}).get(option):
        return (
            f"{option} is an argument here: skillttrl {command} {argument} ... All options: skillttrl {command} --help"
        )
    return None


def _parse(parse: Callable[[Any, list[str]], list[str]], context: Any, arguments: list[str]) -> list[str]:
    """Parse arguments; an unknown option that was renamed is explained.

    Raises:
        ConfigError: an option of before 0.1.0 was given.
    """
    try:
        return parse(context, arguments)
    except Exception as error:  # click's errors; typer brings its own copy of click or uses the installed one
        option = getattr(error, "option_name", None)
        if option is None and "extra argument" in str(getattr(error, "message", "")):
            option = EXTRA
        command = context.command_path.partition(" ")[2]
        explained = explain_renamed(command, option) if option else None
        if explained is None:
            raise
        raise ConfigError(explained) from None


class Command(TyperCommand):
    """Command that explains renamed options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`."""
        return _parse(super().parse_args, ctx, args)


class Group(TyperGroup):
    """Group of commands that explains renamed options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`."""
        return _parse(super().parse_args, ctx, args)


class App(typer.Typer):
    """Typer application whose commands explain renamed options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Group, rich_markup_mode="markdown", **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """See `typer.Typer.command`."""
        decorate: Callable[[F], F] = super().command(name, cls=Command, **settings)
        return decorate
