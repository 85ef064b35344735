"""`skillttrl`: one function per command. Each loads a config, calls `skill_ttrl.commands` and renders the result.

Heavy packages are imported inside the functions, so that `--help` answers at once.
"""

from __future__ import annotations

import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import typer
from rich.console import Console

from skill_ttrl.cli.ask import ask, export
from skill_ttrl.cli.collect import collect
from skill_ttrl.cli.configs import configs
from skill_ttrl.cli.display import say
from skill_ttrl.cli.doctor import doctor, init
from skill_ttrl.cli.envs import envs_app
from skill_ttrl.cli.evaluate import evaluate
from skill_ttrl.cli.inspect import inspect
from skill_ttrl.cli.learn import distill, merge
from skill_ttrl.cli.optimize import optimize
from skill_ttrl.cli.replay import replay
from skill_ttrl.cli.report import report
from skill_ttrl.cli.serve import serve
from skill_ttrl.cli.skills import skills_app
from skill_ttrl.cli.train import rl, sft, train
from skill_ttrl.cli.vote import vote
from skill_ttrl.errors import EXIT_CODES, ConfigError, RunFolderError, SkillTTRLError, naming_extra
from skill_ttrl.signals import RESUME, Interrupted
from skill_ttrl.trust import trusting

EXIT_LINE = (
    f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}; "
    "128+n stopped by signal n with everything saved."
)

app = typer.Typer(
    rich_markup_mode="markdown",
    name="skillttrl",
    help="Make a language model agent better without labels: sample, vote, reward agreement, update with GRPO.",
    epilog=EXIT_LINE,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(envs_app, name="envs")
app.add_typer(skills_app, name="skills")


def _print_version(wanted: bool) -> None:
    if wanted:
        import skill_ttrl

        print(skill_ttrl.__version__)
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Trust the config of a run that another user made, even if it runs code or sends keys."
        ),
    ] = False,
) -> None:
    """Options of every command; `--debug` and `--trust` can be given anywhere: `main` removes them before anything is parsed."""
    if trust:
        context.with_resource(trusting())


COMMANDS: list[Callable[..., None]] = [train, sft, rl, collect, evaluate, ask, inspect, report, replay, export]
COMMANDS += [merge, distill, optimize, vote, serve, init, doctor, configs]
for command in COMMANDS:
    app.command()(command)


@cache
def command_tree() -> Any:
    """All commands as Click has them. Reading their signatures takes a tenth of a second: once in a process."""
    return typer.main.get_command(app)


def main() -> None:
    """Entry point: a user's mistake gives one message on stderr and an exit code; a traceback only with `--debug`."""
    given = sys.argv[1:]
    debug, trust = "--debug" in given, "--trust" in given
    arguments = [*(["--trust"] if trust else []), *(word for word in given if word not in ("--debug", "--trust"))]
    # What peft calls of transformers will be renamed one day: no concern of those who run a command.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    try:
        if (named := [word for word in arguments if not word.startswith("-")])[:1] == ["compare"]:
            asked = shlex.join(["skillttrl", "inspect", *(named[1:] or ("A", "B"))])
            raise ConfigError(f"There is no command compare. Runs are compared by inspect: {asked}")
        with naming_extra(f"`{shlex.join(['skillttrl', *given])}`"):
            command_tree()(arguments, prog_name="skillttrl")
    except (SkillTTRLError, Interrupted, OSError) as error:
        if debug:
            traceback.print_exception(error)
        screen = Console(stderr=True)
        if isinstance(error, Interrupted):
            say(str(error).replace(RESUME, f"Resume: {_resume_command(given)}"), screen=screen)
        else:
            say(f"Error: {error}", screen=screen, style="red")
        sys.exit(RunFolderError.exit_code if isinstance(error, OSError) else error.exit_code)


def _resume_command(given: Sequence[str]) -> str:
    """The user's command with `--resume auto` in place of another `--resume`."""
    words = [word for word in given if not word.startswith("--resume=")]
    while "--resume" in words:
        at = words.index("--resume")
        del words[at : at + 2]
    return shlex.join(["skillttrl", *words, "--resume", "auto"])


if __name__ == "__main__":
    main()
