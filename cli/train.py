"""`skillttrl train`, `sft` and `rl`: all phases of a recipe in one run, or one of them, with a bank and episodes that are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import print_json, say, show
from skill_ttrl.cli.display.tables import plan_view
from skill_ttrl.cli.display.views import RunView, closing_lines, summary_table
from skill_ttrl.cli.envs import ENV_RULE
from skill_ttrl.cli.options import MOCKED, AsJson, Mock, set_option
from skill_ttrl.cli.runs import EVERYTHING, seeds_of, train_seeds
from skill_ttrl.errors import ConfigError

if TYPE_CHECKING:
    from skill_ttrl.config import SkillTTRLConfig
    from skill_ttrl.runs.summary import Summary
    from skill_ttrl.stages.launch import Launch

Source = Annotated[str, typer.Argument(metavar="CONFIG", help="A recipe's name (`skillttrl configs list`) or a file.")]
MaybeSource = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="A recipe's name or a file. It can be left out with --bank: what then stands for it is said above.",
    ),
]
Overrides = Annotated[list[str] | None, set_option("Override one key, e.g. rl.learning_rate=1e-6.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Run folder. Default: runs/NAME, numbered if taken.")
]
OutputBeside = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Run folder. Default: runs/NAME, numbered if taken; with --bank, beside the bank."
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(help="`auto`: go on from the newest checkpoint, or start. `last-good`: pass over damaged ones."),
]
Env = Annotated[str | None, typer.Option(help=f"Play another environment with its own tasks: {ENV_RULE}.")]
Seed = Annotated[int | None, typer.Option(help="Seed of every random choice.")]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="0,1,2",
        help="One run a seed, in a folder of runs that `inspect` and `compare` take as a whole: mean, spread and interval over seeds.",
    ),
]
Nproc = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        min=1,
        help="Processes that train together on this machine, one a GPU. Default: runtime.nproc, else one.",
    ),
]
Tracker = Annotated[str | None, typer.Option(help="`none`, `tensorboard`, `wandb`, `trackio` or `mlflow`.")]
Bank = Annotated[
    Path | None,
    typer.Option(help="Begin with this skill bank: a bank's folder, a run that has one, or an exported file."),
]
Trajectories = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl",
        help="Episodes to imitate. Default with --bank: trajectories.jsonl beside it, or what its run has collected.",
    ),
]
Examples = Annotated[int | None, typer.Option(min=1, help="Most steps that are imitated.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say what the run would take (tokens, memory, hours, cost) and do nothing. What would be refused ends with its exit code.",
    ),
]


def train(
    source: Source,
    overrides: Overrides = None,
    output: Output = None,
    resume: Resume = None,
    env: Env = None,
    mock: Mock = False,
    seed: Seed = None,
    nproc: Nproc = None,
    seeds: Seeds = None,
    tracker: Tracker = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run all phases of a recipe: collect, distill, cold start, then sample → vote or play → reward → GRPO."""
    serve_other_ranks()
    from skill_ttrl.stages.launch import Options, launch

    if seeds is not None and seed is not None:
        raise ConfigError("--seed and --seeds each say which seeds: give one of them.")
    found = launch(source, Options(_overrides(overrides, mock), env, seed, nproc, tracker, output, resume, _notice))
    _run(found, as_json=as_json, dry_run=dry_run, seeds=None if seeds is None else seeds_of(seeds))


def sft(
    source: MaybeSource = None,
    bank: Bank = None,
    trajectories: Trajectories = None,
    examples: Examples = None,
    overrides: Overrides = None,
    output: OutputBeside = None,
    resume: Resume = None,
    env: Env = None,
    mock: Mock = False,
    seed: Seed = None,
    nproc: Nproc = None,
    tracker: Tracker = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Only the supervised cold start of a recipe.

    With `--bank` it imitates collected episodes with the bank's skills in their prompts. Without CONFIG it is then the quickstart
    recipe of the environment that the episodes are of, with their data; what is imitated without `--explore` is won episodes.
    """
    serve_other_ranks()
    from skill_ttrl.stages.launch import Options, launch_sft

    options = Options(_overrides(overrides, mock), env, seed, nproc, tracker, output, resume, _notice)
    found = launch_sft(source, options, bank=bank, trajectories=trajectories, examples=examples)
    _run(found, as_json=as_json, dry_run=dry_run)


def rl(
    source: MaybeSource = None,
    model: Annotated[Path | None, typer.Option(help="Start from this run, checkpoint or model folder.")] = None,
    bank: Bank = None,
    overrides: Overrides = None,
    output: OutputBeside = None,
    resume: Resume = None,
    env: Env = None,
    mock: Mock = False,
    seed: Seed = None,
    nproc: Nproc = None,
    tracker: Tracker = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Only the reinforcement phase of a recipe, from the recipe's model or from `--model`.

    With `--bank` the run begins with these skills; without it, where `--model` names a run with a bank, with that run's, unless
    `--set skills.bank=` names another. Without CONFIG, `--bank` continues from the run of `skillttrl sft` next to the
    bank (or the one that `--model` names) and follows its recipe.
    """
    serve_other_ranks()
    from skill_ttrl.stages.launch import Options, launch_rl

    found = launch_rl(
        source,
        Options(_overrides(overrides, mock), env, seed, nproc, tracker, output, resume, _notice),
        model=model,
        bank=bank,
    )
    _run(found, as_json=as_json, dry_run=dry_run)


def _overrides(given: Sequence[str] | None, mock: bool) -> list[str]:
    return [*(given or ()), *([f"env.kwargs.data={MOCKED}"] if mock else ())]


def serve_other_ranks() -> None:
    """On another rank than the driver: carry out its commands to the end, and leave."""
    from skill_ttrl.rl.parallel.environment import rank

    if rank() == 0:
        return
    from skill_ttrl.rl.parallel.commands import serve
    from skill_ttrl.rl.parallel.ranks import join

    serve(join())
    raise typer.Exit


@contextmanager
def driving_ranks() -> Iterator[None]:
    """While entered this process is the driver of the ranks that were started with it, if there are any; they end with it."""
    from skill_ttrl.rl.parallel.environment import launched

    if not launched():
        yield
        return
    from skill_ttrl.rl.parallel.commands import current_driver
    from skill_ttrl.rl.parallel.launch import following_launcher
    from skill_ttrl.rl.parallel.ranks import join

    join()
    with following_launcher():
        try:
            yield
        finally:
            current_driver().dismiss()


def _notice(text: str) -> None:
    say(text, screen=Console(stderr=True))


def _run(found: Launch, *, as_json: bool, dry_run: bool, seeds: list[int] | None = None) -> None:
    from skill_ttrl.config import read_config_text
    from skill_ttrl.rl.parallel.environment import launched

    config, resume = found.load(), found.options.resume
    text, where = read_config_text(found.source)
    if resume not in (None, "auto", "last-good"):
        raise ConfigError(f"--resume is 'auto' or 'last-good', found {resume!r}.")
    if dry_run:
        from skill_ttrl.stages.doctor.plan import plan

        planned = plan(config, asks_ranks=found.asks_ranks)
        show(planned, as_json, plan_view)
        if planned.exit_code:
            raise typer.Exit(planned.exit_code)
        return
    if (config.runtime.nproc or 1) > 1 and not launched():
        raise typer.Exit(_launch(found, config))
    if launched():  # before the other ranks are waited for
        from skill_ttrl.stages.train import check_runnable

        check_runnable(config, found.folder(config) if resume is None and seeds is None else None)
    with driving_ranks():
        _run_here(found, config, text, where, as_json=as_json, seeds=seeds)


def _launch(found: Launch, config: SkillTTRLConfig) -> int:
    """Start the ranks of a run once it is clear that this machine has a place for each; gives the exit code."""
    from skill_ttrl.rl.parallel.launch import launch, this_command
    from skill_ttrl.runs.checkpoint import what_is_saved
    from skill_ttrl.stages.setup.checks import check_ready
    from skill_ttrl.stages.setup.ranks import check_gpus, check_ranks

    check_ready(config)
    check_ranks(config)
    check_gpus(config, asked=found.asks_ranks)
    folder = found.folder(config)
    return launch(this_command(), config.runtime.nproc or 1, notice=_notice, saved=lambda: what_is_saved(folder))


def _run_here(
    found: Launch, config: SkillTTRLConfig, text: str, where: str, *, as_json: bool, seeds: list[int] | None
) -> None:
    """Run in this process, which may be the driver of several."""
    from skill_ttrl.config import verified_note

    screen, resume = Console(stderr=as_json), found.options.resume
    folder = found.folder(config)
    if (note := verified_note(config)).startswith("untested"):
        screen.print(
            f"{where} is verified: {note}. Nobody has recorded a run of these settings.", style="yellow", markup=False
        )
    if seeds is not None:
        train_seeds(config, seeds, folder, resume, text, as_json=as_json)
        return
    with RunView(screen, f"{config.name} → {folder}") as view:
        from skill_ttrl.stages.train import run

        summary = run(config, folder, resume=resume, progress=view, source=text)  # type: ignore[arg-type]  # checked above
    if as_json:
        print_json(summary)
        return
    show_outcome(screen, summary, folder)


def show_outcome(screen: Console, summary: Summary, folder: Path) -> None:
    """Print what a run at `folder` ends with: the table, what stands under it, and where everything is."""
    from skill_ttrl.stages.reports.baseline import baseline_lines

    screen.print(summary_table(summary))
    lines = closing_lines(summary, baseline_lines(folder))
    say(*lines, EVERYTHING.format(folder), screen=screen, soft_wrap=False)
