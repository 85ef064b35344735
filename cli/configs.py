"""`skillttrl configs`: list, show, copy and convert configs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import print_json, say, show, write_text
from skill_ttrl.cli.options import CONFIG_HELP, AsJson, set_option

configs_app = typer.Typer(
    rich_markup_mode="markdown",
    help="Configs: list the shipped ones, show or copy one, convert one of another system.",
    no_args_is_help=True,
)

Overrides = Annotated[list[str] | None, set_option("Override one config key, e.g. rl.learning_rate=1e-6.")]


@configs_app.command("list")
def configs_list(as_json: AsJson = False) -> None:
    """List the shipped configs, and on what each was verified.

    Example: `skillttrl configs list`
    """
    from skill_ttrl.config import load_config, recipe_names, verified_note

    configs = {name: load_config(name) for name in recipe_names()}
    rows = [
        {"name": name, "model": each.model.path, "verified": verified_note(each), "requires": each.requires}
        for name, each in configs.items()
    ]
    show(rows, as_json, _configs_table)


def _configs_table(rows: Sequence[Mapping[str, str | None]]) -> FittedTable:
    cells = [
        (*map(row.get, ("name", "model")), _verified_on(str(row["verified"])), row["requires"] or "nothing")
        for row in rows
    ]
    return FittedTable("Configs", ("name", "model", "verified", "requires"), cells)


def _verified_on(note: str) -> str:
    """The date in a `verified:` note; the whole note is in `configs show` and `--json`."""
    return note.partition("date: ")[2].partition(";")[0] or note


@configs_app.command("show")
def configs_show(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help=CONFIG_HELP)],
    overrides: Overrides = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Show the resolved config: with all defaults, also those of its environment and algorithm."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a config as it is written; with `--full` or `--set`, as it is resolved.

    Example: `skillttrl configs show quickstart --full`
    """
    from skill_ttrl.config import read_config_text
    from skill_ttrl.config.yaml_text import read_mapping

    text, where = read_config_text(config)
    if full or overrides:
        text = _resolved(config, overrides or [])
    if as_json:
        print_json({"source": where, "config": read_mapping(text, where)})
    else:
        write_text(text)


def _resolved(source: str, overrides: Sequence[str]) -> str:
    """The config that runs, with what its environment and its algorithm bring; of a run of another user, as it is saved."""
    from skill_ttrl.config import load_config
    from skill_ttrl.errors import TrustError
    from skill_ttrl.stages.setup.checks import load_checked
    from skill_ttrl.stages.setup.defaults import with_defaults

    try:
        return with_defaults(load_checked(source, overrides, lambda text: print(text, file=sys.stderr))).to_yaml()
    except TrustError:  # its names may be code: nothing is looked up
        return load_config(source, overrides, trust=True).to_yaml()


@configs_app.command("copy")
def configs_copy(
    name: Annotated[str, typer.Argument(metavar="CONFIG", help="Name of a shipped config.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write. Default: NAME.yaml here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a shipped config to a file of your own.

    Example: `skillttrl configs copy quickstart -o mine.yaml`
    """
    from skill_ttrl.config import read_config_text
    from skill_ttrl.storage.files import write_new

    text, _ = read_config_text(name)
    written: Any = write_new(output or Path(f"{name}.yaml"), text)
    show({"output": str(written)}, as_json, lines=[str(written)])


@configs_app.command("convert")
def configs_convert(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The first Skill-TTRL's YAML, or the JSON of SkillRL in Rust.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.yaml", help="File to write. Default: print the config."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a config of a published system to one of this project, and name each of its keys that has no counterpart.

    Example: `skillttrl configs convert default.yaml -o mine.yaml`
    """
    from skill_ttrl.compat.convert import convert

    found, written = convert(file, output), None if output is None else str(output)
    if as_json:
        parts = {"without_counterpart": found.without_counterpart, "different": found.different}
        keys = {name: [asdict(each) for each in part] for name, part in parts.items()}
        print_json({"system": found.system, "output": written, "config": found.config.stated(), **keys})
    elif written is None:
        write_text(found.text())
    else:
        say(*found.notes(), f"Written: {written}. Show all of it: skillttrl configs show {written} --full")
