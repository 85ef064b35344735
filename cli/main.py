"""`skillttrl`: one function a command. Each loads a config, calls a stage and renders what comes back.

Heavy packages are imported inside the functions, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.collect import collect
from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import print_json, say, show
from skill_ttrl.cli.display.tables import diagnosis_view, reply_view
from skill_ttrl.cli.envs import envs_app
from skill_ttrl.cli.evaluate import evaluate
from skill_ttrl.cli.inspect import inspect
from skill_ttrl.cli.learn import distill, merge
from skill_ttrl.cli.optimize import optimize
from skill_ttrl.cli.options import AsJson
from skill_ttrl.cli.runs import compare, runs_app
from skill_ttrl.cli.serve import serve
from skill_ttrl.cli.skills import skills_app
from skill_ttrl.cli.train import Overrides, Source, rl, sft, train
from skill_ttrl.cli.vote import vote
from skill_ttrl.errors import EXIT_CODES, RankError, RunFolderError, SkillTTRLError
from skill_ttrl.rl.parallel.launch import leave_word
from skill_ttrl.signals import Interrupted
from skill_ttrl.trust import trusting

EXIT_LINE = (
    f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}; "
    "128+n stopped by signal n with everything saved."
)

app = typer.Typer(
    name="skillttrl",
    help="Make a language model agent better without labels: sample, vote, reward agreement, update with GRPO.",
    epilog=EXIT_LINE,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
configs_app = typer.Typer(
    help="Shipped recipes: list them, show one, copy one to change it; convert a config of another system.",
    no_args_is_help=True,
)
app.add_typer(configs_app, name="configs")
app.add_typer(runs_app, name="runs")
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
        bool, typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True)
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Obey the config of a run that another user made, even where it runs code or sends keys."
        ),
    ] = False,
) -> None:
    """Options of every command; `--debug` and `--trust` may stand anywhere: `main` takes them out before anything is parsed."""
    if trust:
        context.with_resource(trusting())


app.command()(train)
app.command()(sft)
app.command()(rl)
app.command()(collect)
app.command()(evaluate)


@app.command()
def ask(
    path: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run folder, or one checkpoint of it; `openai` or `openai:MODEL` asks `endpoints.policy`, `command:PROGRAM` a program.",
        ),
    ],
    question: Annotated[str, typer.Argument(help="A task in the words of the training data, e.g. 'Compute 47+38.'")],
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Answers to draw; more than one vote.")] = 1,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Default: 0 for one answer, else 1.")] = None,
    overrides: Overrides = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="RECIPE", help="For `openai`: its endpoint, template and lengths.")
    ] = None,
    no_bank: Annotated[
        bool, typer.Option("--no-bank", help="Without the run's skill bank: what are the skills worth?")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put a question to a trained policy, or to a model on a server."""
    from skill_ttrl.stages.targets.resolve import find_asked
    from skill_ttrl.stages.targets.trained import ask as put

    asked = find_asked(path, overrides or (), config=config, use_bank=not no_bank)
    reply = put(asked, question, samples=samples, temperature=temperature, use_bank=not no_bank)
    show(reply, as_json, reply_view)


app.command()(inspect)


@app.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or one checkpoint of it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to make.")],
    merged: Annotated[bool, typer.Option(help="Fold LoRA adapters into the base model's weights.")] = False,
) -> None:
    """Write a trained policy as a plain Hugging Face folder."""
    from skill_ttrl.stages.targets.export import export as write
    from skill_ttrl.stages.targets.trained import find_trained

    print(write(find_trained(path), output, merged=merged))


app.command()(compare)
app.command()(merge)
app.command()(distill)
app.command()(optimize)
app.command()(vote)
app.command()(serve)


@configs_app.command("list")
def configs_list(as_json: AsJson = False) -> None:
    """The shipped recipes and on what each was verified."""
    from skill_ttrl.config import load_config, recipe_names, verified_note

    configs = {name: load_config(name) for name in recipe_names()}
    rows = [
        {"name": name, "model": each.model.path, "verified": verified_note(each), "requires": each.requires}
        for name, each in configs.items()
    ]
    show(rows, as_json, _recipes_table)


def _recipes_table(rows: Sequence[Mapping[str, str | None]]) -> FittedTable:
    cells = [
        (*map(row.get, ("name", "model")), _verified_on(str(row["verified"])), row["requires"] or "nothing")
        for row in rows
    ]
    return FittedTable("Recipes", ("name", "model", "verified", "waits for"), cells)


def _verified_on(note: str) -> str:
    """The date in a `verified:` note; the whole note is in `configs show` and `--json`."""
    return note.partition("date: ")[2].partition(";")[0] or note


@configs_app.command("show")
def configs_show(
    source: Source,
    overrides: Overrides = None,
    full: Annotated[
        bool,
        typer.Option(
            help="What runs, in place of the file's text: with all defaults, those of its environment and algorithm too."
        ),
    ] = False,
) -> None:
    """Print a recipe as it is written, or resolved with `--full` or `--set`."""
    from skill_ttrl.config import read_config_text

    text, _ = read_config_text(source)
    sys.stdout.write(_resolved(source, overrides or []) if full or overrides else text)


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
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
    target: Annotated[Path | None, typer.Argument(help="File to write. Default: NAME.yaml here.")] = None,
) -> None:
    """Copy a recipe to a file of your own."""
    from skill_ttrl.config import read_config_text
    from skill_ttrl.storage.files import write_new

    text, _ = read_config_text(name)
    print(write_new(target or Path(f"{name}.yaml"), text))


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

    Example: `skillttrl configs convert default.yaml -o mine.yaml`.
    """
    from skill_ttrl.stages.setup.convert import run

    found, written = run(file, output), None if output is None else str(output)
    if as_json:
        parts = {"without_counterpart": found.without_counterpart, "different": found.different}
        keys = {name: [asdict(each) for each in part] for name, part in parts.items()}
        print_json({"system": found.system, "output": written, "config": found.config.stated(), **keys})
    elif written is None:
        sys.stdout.write(found.text())
    else:
        say(*found.notes(), f"Written: {written}. Look at all of it: skillttrl configs show {written} --full")


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Name of the environment, a Python identifier.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where the files go.")] = Path(),
    turns: Annotated[
        bool, typer.Option("--turns", help="An environment of several turns, with a scripted agent in place of a file.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Write an environment of your own to start from: the environment, a recipe, demonstrations and a test."""
    from skill_ttrl.envs.scaffold import init_project

    for path in init_project(name, folder, turns=turns, force=force):
        print(path)
    print(f"\nTrain in it, in the folder {folder.resolve()}: skillttrl train {name}.yaml")


@app.command()
def doctor(
    config: Annotated[
        str | None, typer.Option("--config", help="A recipe or file: adds its memory, data, model.")
    ] = None,
    overrides: Overrides = None,
    lock: Annotated[
        str | None, typer.Option("--lock", help="cpu or gpu: print the file that lists that set with vLLM, no more.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is installed, what this machine can do, what will not work and what to do about it."""
    if lock is not None:
        from skill_ttrl.stages.doctor.version_sets import lock_path

        print(lock_path(lock))
        return
    from skill_ttrl.stages.doctor.diagnose import diagnose
    from skill_ttrl.stages.setup.checks import load_checked

    found = diagnose(load_checked(config, overrides or []) if config else None)
    show(found, as_json, diagnosis_view)
    if found.failed:
        raise typer.Exit(5)


def main() -> None:
    """Entry point: a user's mistake is one message on stderr and an exit code, never a traceback (unless `--debug`)."""
    given = sys.argv[1:]
    debug, trust = "--debug" in given, "--trust" in given
    arguments = [*(["--trust"] if trust else []), *(word for word in given if word not in ("--debug", "--trust"))]
    # What peft calls of transformers will be renamed one day: no concern of those who run a command.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    try:
        app(arguments, prog_name="skillttrl")
    except (SkillTTRLError, Interrupted, OSError) as error:
        if debug:
            traceback.print_exception(error)
        if not (isinstance(error, RankError) and leave_word(error)):
            say(f"Error: {error}", screen=Console(stderr=True), style="red")
        sys.exit(RunFolderError.exit_code if isinstance(error, OSError) else error.exit_code)


if __name__ == "__main__":
    main()
