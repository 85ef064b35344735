"""`skillttrl envs generate`: games or a catalogue of our own for an environment, into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import print_json
from skill_ttrl.errors import ConfigError, EnvError, did_you_mean

Env = Annotated[str, typer.Argument(metavar="ENV", help="`alfworld` or `webshop`.")]
Split = Annotated[
    str | None,
    typer.Option(
        help="alfworld: `train`, `valid_seen` (the same rooms, other tasks) or `valid_unseen` (other rooms). Default: `train`."
    ),
]
Games = Annotated[
    int | None,
    typer.Option(min=1, help="alfworld: how many there are to be; the types of task take turns. Default: 240."),
]
Products = Annotated[
    int | None,
    typer.Option(min=1, help="webshop: how many there are to be; some 10,000 are made in a second. Default: 1000."),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="Where; the splits of alfworld may share it. `--data` takes it."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn: the same on every machine.")]
Types = Annotated[
    list[str] | None,
    typer.Option(help="alfworld: only these types of task; several with commas, or given again. Default: all."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]


def generate(
    env: Env,
    output: Output,
    split: Split = None,
    games: Games = None,
    products: Products = None,
    seed: Seed = 0,
    types: Types = None,
    as_json: AsJson = False,
) -> None:
    """Make what an environment is played with, where no official data are at hand.

    alfworld: household games, each a furnished room, a task in it, and a walkthrough that was played until it won. The same
    command goes on where it was stopped, and a larger number adds games to those that are there.

    webshop: a catalogue in the official files' schema, with instructions for two products in five. It is written whole or not
    at all, and a smaller one is the beginning of a larger one.
    """
    known = ("alfworld", "webshop")
    if env not in known:
        raise EnvError(f"Nothing can be generated for an environment {env!r:.60}.{did_you_mean(env, known)}")
    foreign = (
        {"--products": products}
        if env == "alfworld"
        else {"--split": split, "--games": games, "--types": types or None}
    )
    given = [name for name, value in foreign.items() if value is not None]
    if given:
        raise ConfigError(f"{' and '.join(given)} cannot be chosen for {env}. See: skillttrl envs generate --help")
    if env == "webshop":
        _catalogue(output, products, seed, as_json)
    else:
        _games(output, split or "train", games or 240, seed, types, as_json)


def _catalogue(output: Path, products: int | None, seed: int, as_json: bool) -> None:
    from skill_ttrl.cli.display.views import RunView
    from skill_ttrl.envs.webshop.maker.generate import run
    from skill_ttrl.envs.webshop.maker.maker import DEFAULT_PRODUCTS

    with RunView(Console(stderr=True), "generate webshop", loop=False) as view:
        made = run(output, products or DEFAULT_PRODUCTS, seed=seed, progress=view)
    if as_json:
        print_json(made)
        return
    new = "all new" if made.written else "there already"
    _say(f"{made.products} products in {made.folder}, {new} ({made.seconds} s).")
    _say(f"Shop there: skillttrl envs play webshop --data {made.folder}")


def _games(output: Path, split: str, games: int, seed: int, types: list[str] | None, as_json: bool) -> None:
    from skill_ttrl.cli.display.views import RunView
    from skill_ttrl.envs.alfworld.maker.generate import run

    chosen = [name.strip() for each in types or () for name in each.split(",") if name.strip()]
    with RunView(Console(stderr=True), f"generate alfworld {split}", loop=False) as view:
        made = run(output, split, games, seed=seed, types=chosen or None, progress=view)
    if as_json:
        print_json(made)
        return
    _say(f"{made.games} games in {made.folder}, {made.written} of them new ({made.seconds} s).")
    _say(f"Play one: skillttrl envs play alfworld --split {split} --data {made.folder}")


def _say(text: str) -> None:
    Console().print(text, markup=False, soft_wrap=True)
