"""`skillttrl envs`: list the environments, generate their data, play in one, serve one over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import print_json, show
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.options import ENV_RULE, AsJson, words
from skill_ttrl.cli.play import play
from skill_ttrl.cli.serve_env import serve
from skill_ttrl.errors import ConfigError, EnvError, did_you_mean

envs_app = typer.Typer(rich_markup_mode="markdown")


@envs_app.callback(invoke_without_command=True)
def envs(context: typer.Context, as_json: AsJson = False) -> None:
    """List the environments that `--env` and `env.id` can name, play in one, or generate data for one.

    Example: `skillttrl envs`
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise ConfigError(
                f"--json comes after the command: skillttrl envs {context.invoked_subcommand} ... --json."
            )
        return
    from skill_ttrl.envs import list_envs

    found = list_envs()
    if as_json:
        print_json(found)
        return
    rows = [(info.short_name, info.id, info.description) for info in found]
    Console().print(FittedTable("Environments", ("short name", "id", "description"), rows))
    Console().print(
        f"Name one by {ENV_RULE}. Play in it: skillttrl envs play math. Write one of your own: skillttrl init my_env",
        markup=False,
    )


envs_app.command()(play)


@envs_app.command()
def generate(
    env: Annotated[str, typer.Argument(metavar="ENV", help="Environment: `alfworld` or `webshop`.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder to write, for `--env-data`. Splits of alfworld can share one.",
        ),
    ],
    split: Annotated[
        str | None,
        typer.Option(
            help="alfworld: `train`, `valid_seen` (same rooms, other tasks) or `valid_unseen` (other rooms). Default: `train`."
        ),
    ] = None,
    games: Annotated[
        int | None,
        typer.Option(min=1, help="alfworld: total number of games; task types alternate. Default: 240."),
    ] = None,
    products: Annotated[
        int | None,
        typer.Option(min=1, help="webshop: total number of products; about 10,000 a second. Default: 1000."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of every random choice; gives the same data on every machine.")
    ] = 0,
    types: Annotated[
        list[str] | None,
        typer.Option(help="alfworld: task types, separated by commas or repeated. Default: all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Generate games or products for an environment, where no official data are installed.

    alfworld: household games, each a furnished room with a task and a walkthrough that was checked by playing it. The same command
    continues an interrupted generation, and a larger --games adds games.

    webshop: a catalogue in the schema of the official files, with instructions for two products in five. It is written completely or
    not at all; a smaller catalogue is a prefix of a larger one.

    Example: `skillttrl envs generate alfworld --games 240 -o games`
    """
    alfworld: dict[str, object] = {"--split": split, "--games": games, "--types": types or None}
    foreign: dict[str, dict[str, object]] = {"alfworld": {"--products": products}, "webshop": alfworld}
    if env not in foreign:
        raise EnvError(f"Nothing can be generated for an environment {env!r:.60}.{did_you_mean(env, tuple(foreign))}")
    given = [name for name, value in foreign[env].items() if value is not None]
    if given:
        raise ConfigError(f"{' and '.join(given)} cannot be set for {env}. See: skillttrl envs generate --help")
    with RunView(Console(stderr=True), f"generate {env}") as view:
        if env == "webshop":
            from skill_ttrl.envs.webshop.maker.generate import run as make_products
            from skill_ttrl.envs.webshop.maker.maker import DEFAULT_PRODUCTS

            made: Any = make_products(output, products or DEFAULT_PRODUCTS, seed=seed, progress=view)
            count, where = f"{made.products} products", ""
        else:
            from skill_ttrl.envs.alfworld.maker.generate import run as make_games

            split = split or "train"
            made = make_games(output, split, games or 240, seed=seed, types=words(types) or None, progress=view)
            count, where = f"{made.games} games", f" --split {split}"
    written = f"{count} in {made.folder}, {made.written or 'none'} of them new ({made.seconds} s)."
    show(made, as_json, lines=(written, f"Play there: skillttrl envs play {env}{where} --env-data {made.folder}"))


envs_app.command()(serve)
