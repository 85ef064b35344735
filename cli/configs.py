"""`skillttrl configs`: list the shipped configs; print, copy or convert one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from skill_ttrl.cli.display import print_json, say, show, text_table, write_text
from skill_ttrl.cli.options import CONFIG_HELP, AsJson, Overrides, refuse


def configs(
    config: Annotated[str | None, typer.Argument(metavar="CONFIG", help=CONFIG_HELP)] = None,
    overrides: Overrides = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print every setting, with the defaults of its environment and algorithm.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the config to a new file.")
    ] = None,
    convert: Annotated[
        bool,
        typer.Option(
            "--convert", help="Convert the first Skill-TTRL's YAML or SkillRL's JSON, and name what has no counterpart."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the shipped configs; print, copy or convert one.

    A config is printed as written, or with `--full` or `--set` as resolved.

    Example: `skillttrl configs quickstart -o mine.yaml`
    """
    if config is None:
        given = {"--set": overrides or None, "--full": full, "--output": output, "--convert": convert}
        refuse(given, "needs a config: skillttrl configs CONFIG")
        _list(as_json)
        return
    if convert:
        refuse({"--set": overrides or None, "--full": full}, "has no effect with --convert")
        _convert(Path(config), output, as_json)
        return
    from skill_ttrl.config import read_config_text
    from skill_ttrl.config.section import read_mapping
    from skill_ttrl.storage.files import write_new

    text, where = read_config_text(config)
    if full or overrides:
        from skill_ttrl.train.defaults import load_checked, with_defaults

        checked = load_checked(config, overrides or [], lambda note: print(note, file=sys.stderr))
        text = with_defaults(checked).to_yaml()  # with what its environment and its algorithm bring
    if output is not None:
        written = str(write_new(output, text))
        show({"output": written}, as_json, lines=[written])
    elif as_json:
        print_json({"source": where, "config": read_mapping(text, where)})
    else:
        write_text(text)


def _convert(file: Path, output: Path | None, as_json: bool) -> None:
    from skill_ttrl.compat.convert import convert as run

    found, written = run(file, output), None if output is None else str(output)
    if as_json:
        notes = {"without_counterpart": found.without_counterpart, "different": found.different}
        print_json({"system": found.system, "output": written, "config": found.config.stated(), **notes})
    elif written is None:
        write_text(found.text())
    else:
        say(*found.notes(), f"Wrote {written}. All settings: skillttrl configs {written} --full")


def _list(as_json: bool) -> None:
    """Print the shipped configs, and on what each was verified."""
    from skill_ttrl.config import load_config, recipe_names, verified_note

    loaded = {name: load_config(name) for name in recipe_names()}
    rows = [
        {"name": name, "model": each.model.path, "verified": verified_note(each), "requires": each.requires}
        for name, each in loaded.items()
    ]
    cells = [
        (row["name"], row["model"], _verified_on(str(row["verified"])), row["requires"] or "nothing") for row in rows
    ]
    show(rows, as_json, lambda _: text_table("Configs", ("name", "model", "verified", "requires"), cells))


def _verified_on(note: str) -> str:
    """The date in a `verified:` note; `--json` has the whole note."""
    return note.partition("date: ")[2].partition(";")[0] or note
