"""`skillttrl envs`: which environments there are, and a game of one in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import print_json
from skill_ttrl.cli.games.play import play
from skill_ttrl.cli.games.serve_shop import serve
from skill_ttrl.cli.generate import generate
from skill_ttrl.errors import ConfigError

ENV_RULE = "short name (`math`), Gymnasium id (`SkillTTRL/Math-v0`), or `module:EnvId-v0` of your own"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]

envs_app = typer.Typer(rich_markup_mode="markdown")


@envs_app.callback(invoke_without_command=True)
def envs(context: typer.Context, as_json: AsJson = False) -> None:
    """List the environments that `--env` and `env.id` can name; play a game of one."""
    if context.invoked_subcommand is None:
        envs_list(as_json)
    elif as_json:
        raise ConfigError(f"--json stands after the command: skillttrl envs {context.invoked_subcommand} ... --json.")


@envs_app.command("list")
def envs_list(as_json: AsJson = False) -> None:
    """List the environments, as `skillttrl envs` alone does."""
    from skill_ttrl.envs import list_envs

    found = list_envs()
    if as_json:
        print_json(found)
        return
    from skill_ttrl.cli.display.views import rows_table

    rows = [(info.short_name, info.id, info.description) for info in found]
    Console().print(rows_table("Environments", ("short name", "id", "what it is"), rows))
    Console().print(
        f"Name one by {ENV_RULE}. Play it: skillttrl envs play math. Start one of your own: skillttrl init my_env",
        markup=False,
    )


envs_app.command()(play)
envs_app.command()(generate)
envs_app.command()(serve)
