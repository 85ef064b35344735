"""`skillttrl envs generate`: games of our own for an environment, into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

Env = Annotated[str, typer.Argument(metavar="ENV", help="`alfworld`.")]
Split = Annotated[
    str,
    typer.Option(help="`train`, `valid_seen` (the same rooms, other tasks) or `valid_unseen` (other rooms)."),
]
Games = Annotated[int, typer.Option(min=1, help="How many there are to be; the types of task take turns.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where; the splits may share it. `--data` takes it.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn: the same games on every machine.")]
Types = Annotated[
    list[str] | None, typer.Option(help="Only these types of task; several with commas, or given again. Default: all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]


def generate(
    env: Env,
    output: Output,
    split: Split = "train",
    games: Games = 240,
    seed: Seed = 0,
    types: Types = None,
    as_json: AsJson = False,
) -> None:
    """Make household games: a furnished room, a task in it, and a walkthrough that was played until it won.

    The same command goes on where it was stopped, and a larger number adds games to those that are there.
    """
    from skill_ttrl.cli.output import print_json
    from skill_ttrl.cli.views import RunView
    from skill_ttrl.stages.generate_games import run

    chosen = [name.strip() for each in types or () for name in each.split(",") if name.strip()]
    with RunView(Console(stderr=True), f"generate {env} {split}", loop=False) as view:
        made = run(env, split, games, output, seed=seed, types=chosen or None, progress=view)
    if as_json:
        print_json(made)
        return
    console = Console()
    console.print(
        f"{made.games} games in {made.folder}, {made.written} of them new ({made.seconds} s).",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"Play one: skillttrl envs play {env} --split {split} --data {made.folder}", markup=False, soft_wrap=True
    )
