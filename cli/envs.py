"""`skillttrl envs`: list the environments, play in one, serve one over HTTP."""

from __future__ import annotations

import typer
from rich.console import Console

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import print_json
from skill_ttrl.cli.options import ENV_RULE, AsJson
from skill_ttrl.cli.play import play
from skill_ttrl.cli.serve_env import serve
from skill_ttrl.errors import ConfigError

envs_app = typer.Typer(rich_markup_mode="markdown")


@envs_app.callback(invoke_without_command=True)
def envs(context: typer.Context, as_json: AsJson = False) -> None:
    """List the environments that `--env` and `env.id` can name, or play in one.

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


envs_app.command()(serve)
