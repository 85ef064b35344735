"""`skillttrl doctor` and `init`: what this machine can do, and problems or an environment of one's own to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skill_ttrl.cli.display import diagnosis_view, show
from skill_ttrl.cli.options import AsJson, config_option, set_option
from skill_ttrl.errors import ConfigError


def doctor(
    config: Annotated[str | None, config_option("Checks its memory, data and model too.")] = None,
    overrides: Annotated[
        list[str] | None, set_option("With --config: override one key, e.g. model.path=FOLDER.")
    ] = None,
    lockfile: Annotated[
        str | None,
        typer.Option(metavar="cpu|gpu", help="Only print the path of the lockfile of the packages with vLLM."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check what is installed, what this machine can do, and what will not work, with the remedy for each problem.

    Exits with 5 if a check fails.

    Example: `skillttrl doctor --config quickstart`
    """
    if lockfile is not None:
        from skill_ttrl.commands.doctor import lock_path

        path = str(lock_path(lockfile))
        show({"lockfile": path}, as_json, lines=[path])
        return
    from skill_ttrl.commands.doctor import diagnose
    from skill_ttrl.train.defaults import load_checked

    if overrides and not config:
        raise ConfigError("--set changes a config. Name one: --config CONFIG.")
    found = diagnose(load_checked(config, overrides or []) if config else None)
    show(found, as_json, diagnosis_view)
    if found.failed:
        raise typer.Exit(5)


def init(
    name: Annotated[
        str,
        typer.Argument(help="`problems`: a data set to replace. Else the name of an environment, a Python identifier."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the files.")] = Path(),
    turns: Annotated[
        bool,
        typer.Option("--turns", help="Make a multi-turn environment, with a scripted agent instead of demonstrations."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a project: `problems` of your own with a config that trains on them, or a new environment with config, demonstrations and test.

    Example: `skillttrl init problems -o my_project`
    """
    from skill_ttrl.envs.scaffold import PROBLEMS, init_problems, init_project

    if turns and name == PROBLEMS:
        raise ConfigError("--turns makes an environment: give it another name than `problems`, which is a data set.")
    made = init_problems(output) if name == PROBLEMS else init_project(name, output, turns=turns)
    files = [str(path) for path in made]
    config = f"{name}.yaml"
    advice = f"Train in it, in the folder {output.resolve()}: skillttrl train {config}"
    show({"files": files, "config": config}, as_json, lines=[*files, "", advice])
