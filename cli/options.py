"""Options that several commands share, and how a command refuses one that would change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from skill_ttrl.errors import ConfigError


def set_option(text: str) -> Any:
    """`--set KEY=VALUE` with its help."""
    return typer.Option("--set", metavar="KEY=VALUE", help=text)


def recipe_option(text: str) -> Any:
    """`--config RECIPE` with its help."""
    return typer.Option("--config", metavar="RECIPE", help=text)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
GameData = Annotated[
    str | None,
    typer.Option(
        help="Where its games or products are: a folder (ALFWorld: with `json_2.1.1/`; WebShop: of the official files), "
        "`generated`, or the address of a WebShop server. Short for env.kwargs.data."
    ),
]
MOCKED = "generated"
"""Value of `--data` that `--mock` stands for."""
Mock = Annotated[
    bool,
    typer.Option(
        "--mock",
        help="This package's own generated games or products: the same as --data generated (alfworld, webshop).",
    ),
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Processes that play. Default: one for each core; the lines are the same.")
]


def mocked(data: str | None, mock: bool) -> str | None:
    """Return the data that `--data` or `--mock` names.

    Raises:
        ConfigError: both are given.
    """
    if mock and data is not None:
        raise ConfigError(f"--mock means --data {MOCKED}, and --data {data} was given too. Give one of them.")
    return MOCKED if mock else data


def words(given: Sequence[str] | None) -> list[str]:
    """Split names that were given with commas between, or one after another."""
    return [word.strip() for each in given or () for word in each.split(",") if word.strip()]


def refuse(given: Mapping[str, object], why: str) -> None:
    """Refuse options that would change nothing: those in `given` that are neither None nor False.

    Raises:
        ConfigError: one of them is given in vain.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise ConfigError(f"{name} {why}.")
