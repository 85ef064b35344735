"""`skillttrl train`, `sft` and `rl`: all phases of a recipe in one run, or one of them, with a bank and episodes that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import print_json
from skill_ttrl.cli.envs import ENV_RULE
from skill_ttrl.errors import ConfigError
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.runs.summary import Summary

Source = Annotated[str, typer.Argument(metavar="CONFIG", help="A recipe's name (`skillttrl configs list`) or a file.")]
MaybeSource = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="A recipe's name or a file. It can be left out with --bank: what then stands for it is said above.",
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. rl.learning_rate=1e-6.")
]
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
Tracker = Annotated[str | None, typer.Option(help="`none`, `tensorboard`, `wandb`, `trackio` or `mlflow`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
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

BESIDE = "trajectories.jsonl"
"""What `skillttrl collect` is told to write in the documentation, beside the bank that comes of it."""


def train(
    source: Source,
    overrides: Overrides = None,
    output: Output = None,
    resume: Resume = None,
    env: Env = None,
    seed: Seed = None,
    seeds: Seeds = None,
    tracker: Tracker = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run all phases of a recipe: collect, distill, cold start, then sample → vote or play → reward → GRPO."""
    from skill_ttrl.cli.runs import seeds_of

    if seeds is not None and seed is not None:
        raise ConfigError("--seed and --seeds each say which seeds: give one of them.")
    _run(
        source,
        changes(source, overrides, env, seed, tracker, None),
        output,
        resume,
        as_json,
        dry_run,
        another_env=env is not None,
        seeds=None if seeds is None else seeds_of(seeds),
    )


def sft(
    source: MaybeSource = None,
    bank: Bank = None,
    trajectories: Trajectories = None,
    examples: Examples = None,
    overrides: Overrides = None,
    output: OutputBeside = None,
    resume: Resume = None,
    env: Env = None,
    seed: Seed = None,
    tracker: Tracker = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Only the supervised cold start of a recipe.

    With `--bank` it imitates collected episodes with the bank's skills in their prompts. Without CONFIG it is then the quickstart
    recipe of the environment that the episodes are of, with their data; what is imitated without `--explore` is won episodes.
    """
    given = list(overrides or [])
    if bank is not None or trajectories is not None:
        episodes = _episodes(bank, trajectories)
        if source is None:
            source = _quickstart_of(episodes)
            given = [*_as_collected(episodes), *given]
        given += [_setting("demonstrations.trajectories", episodes), "sft.data=null"]
    if bank is not None:
        given.append(_setting("skills.bank", bank))
        output = output or _beside(bank, "sft", resume)
    if examples is not None:
        given.append(f"demonstrations.examples={examples}")
    if source is None:
        raise ConfigError(
            "Say which recipe (skillttrl configs list), or which skills and episodes: --bank, --trajectories."
        )
    _run(
        source,
        changes(source, given, env, seed, tracker, "sft"),
        output,
        resume,
        as_json,
        dry_run,
        another_env=env is not None,
    )


def rl(
    source: MaybeSource = None,
    model: Annotated[Path | None, typer.Option(help="Start from this run, checkpoint or model folder.")] = None,
    bank: Bank = None,
    overrides: Overrides = None,
    output: OutputBeside = None,
    resume: Resume = None,
    env: Env = None,
    seed: Seed = None,
    tracker: Tracker = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Only the reinforcement phase of a recipe, from the recipe's model or from `--model`.

    With `--bank` the run begins with these skills; without it, where `--model` names a run with a bank, with that run's, unless
    `--set skills.bank=` names another. Without CONFIG, `--bank` goes on from the run of `skillttrl sft` beside the bank (or
    the one that `--model` names) and does what its recipe says.
    """
    from skill_ttrl.runs.folder import RunFolder
    from skill_ttrl.stages.targets.trained import find_trained

    given = list(overrides or [])
    if bank is not None:
        given.append(_setting("skills.bank", bank))
        output = output or _beside(bank, "rl", resume)
        if source is None and model is None:
            model = _sft_beside(bank)
    if source is None:
        if model is not None and not RunFolder.exists(model):
            raise ConfigError(
                f"There is no run at {model}, and without a recipe the run that --model names says what to do. Name a run of "
                "skillttrl sft, or a recipe (skillttrl configs list)."
            )
        if model is None:
            raise ConfigError(
                "Say which recipe (skillttrl configs list), or --model with a run of skillttrl sft, whose recipe it then is."
            )
        source = str(model / "config.yaml")
    if model is not None:
        weights = find_trained(model).weights if RunFolder.exists(model) else model
        given.append(_setting("model.path", weights.resolve()))
        given += _bank_that_comes_with(model, source, given)
    _run(
        source,
        changes(source, given, env, seed, tracker, "rl"),
        output,
        resume,
        as_json,
        dry_run,
        another_env=env is not None,
    )


def _bank_that_comes_with(model: Path, source: str, given: list[str]) -> list[str]:
    """The setting that begins with the bank of the run that the weights are of; none where another is named, or nothing asks it."""
    from skill_ttrl.config import load_config
    from skill_ttrl.runs.folder import RunFolder
    from skill_ttrl.skills.bank.folder import is_bank

    runs = (model, model.resolve().parent.parent)
    bank = next((run / "bank" for run in runs if RunFolder.exists(run) and is_bank(run / "bank")), None)
    named = any(each.partition("=")[0].strip() in ("skills", "skills.bank") for each in given)
    if bank is None or named:
        return []
    screen = Console(stderr=True)
    config = load_config(source, given)
    if config.skills is None:
        said = f"{bank} stays out: the config has no skills section. --bank {bank} begins with it."
    else:
        said = (
            f"Begins with the skill bank of the run that --model names: {bank}. Another: --bank, or --set skills.bank=."
        )
    screen.print(escape_terminal(said), markup=False, highlight=False, soft_wrap=True)
    return [] if config.skills is None else [_setting("skills.bank", bank)]


def changes(
    source: str, overrides: list[str] | None, env: str | None, seed: int | None, tracker: str | None, phase: str | None
) -> list[str]:
    """Options that stand for a key, after those of `--set`, as overrides.

    Raises:
        ConfigError, EnvError: with `--env`, see `env_defaults.refuse_foreign`.
    """
    own: list[str] = []
    if env is not None:
        from skill_ttrl.stages.setup.env_defaults import in_another_env

        # A recipe's tasks are those of its own environment: another one brings its own, unless `--set data...` says more.
        own = ["data.train=null", "data.eval=null", *in_another_env(source, env)]
    keys = {"env.id": env, "seed": seed, "run.tracker": tracker, "phases": f"[{phase}]" if phase else None}
    return [*own, *(overrides or []), *(f"{key}={value}" for key, value in keys.items() if value is not None)]


def _setting(key: str, path: Path) -> str:
    """A path as an override: whatever is in its name, it is text."""
    return f"{key}={json.dumps(str(path), ensure_ascii=False)}"


def _home(bank: Path) -> Path:
    """Where what belongs to a bank stands: the folder that it is in."""
    return bank.parent if bank.name not in ("", "..") else bank.resolve().parent


def _run_of(bank: Path) -> Path | None:
    """The run whose bank it is; None for a bank of its own."""
    from skill_ttrl.runs.folder import RunFolder

    return next((place for place in (bank, _home(bank)) if RunFolder.exists(place)), None)


def _episodes(bank: Path | None, trajectories: Path | None) -> Path:
    """The file of episodes: what was given, what the bank's run has collected, or what stands beside the bank."""
    from skill_ttrl.stages.data_phases import COLLECTED

    if trajectories is not None:
        return trajectories
    assert bank is not None
    owner = _run_of(bank)
    beside = _home(bank) / BESIDE if owner is None else owner / COLLECTED
    if not beside.is_file():
        raise ConfigError(
            f"There are no episodes beside the bank ({beside}). Say which to imitate: --trajectories FILE.jsonl; collect some "
            "with: skillttrl collect."
        )
    return beside


def _quickstart_of(episodes: Path) -> str:
    """The recipe of the environment that the episodes are of."""
    from skill_ttrl.config import recipe_names
    from skill_ttrl.data.episodes import read_episodes
    from skill_ttrl.envs.lookup import SHORT_NAMES

    env_id = next(read_episodes(episodes)).task.env_id
    short = next((name for name, known in SHORT_NAMES.items() if known == env_id), None)
    recipe = f"quickstart_{short}"
    if recipe not in recipe_names():
        raise ConfigError(
            f"The episodes are of {env_id}, for which no quickstart recipe is shipped. Say which recipe to follow."
        )
    return recipe


def _as_collected(episodes: Path) -> list[str]:
    """What a quickstart recipe takes over from how the episodes were collected: where games or products are, and what can be
    imitated. Of episodes from elsewhere nothing is known.
    """
    from skill_ttrl.runs.trajectories import beside, read_identity

    if not beside(episodes).is_file():
        return []
    made_with = read_identity(episodes)["made_with"]
    given = [f"env.kwargs.data={json.dumps(made_with.get('kwargs', {}).get('data'))}"]
    if not made_with.get("explore"):
        given.append("demonstrations.label=won")  # advice stands beside the steps of those who explored
        said = "The episodes were collected without --explore: what was done in won ones is imitated (demonstrations.label=won)."
        Console(stderr=True).print(said, highlight=False)
    return given


def _beside(bank: Path, name: str, resume: str | None) -> Path | None:
    """The folder of a new run beside a bank; None where the bank is a run's: nothing is put into that."""
    return None if _run_of(bank) else _free_folder(_home(bank) / name, resume)


def _sft_beside(bank: Path) -> Path:
    """The newest run of `skillttrl sft` beside a bank; of a run's bank that run."""
    owner = _run_of(bank)
    if owner is not None:
        return owner
    found = _free_folder(_home(bank) / "sft", "auto")
    if not (found / "run.json").is_file():
        raise ConfigError(
            f"There is no run of skillttrl sft beside the bank ({found}). Do that first, or say what to start from: a recipe, or "
            "--model."
        )
    return found


def _run(
    source: str,
    overrides: list[str],
    output: Path | None,
    resume: str | None,
    as_json: bool,
    dry_run: bool,
    *,
    another_env: bool,
    seeds: list[int] | None = None,
) -> None:
    from skill_ttrl.cli.display.views import RunView
    from skill_ttrl.config import InvalidConfigError, load_config, read_config_text, verified_note

    try:
        config = load_config(source, overrides)
    except InvalidConfigError as error:
        from skill_ttrl.stages.setup.checks import with_wrong_names

        raise with_wrong_names(error) from None
    if another_env:
        from skill_ttrl.stages.setup.env_defaults import refuse_foreign

        refuse_foreign(source, config)
    text, where = read_config_text(source)
    if resume not in (None, "auto", "last-good"):
        raise ConfigError(f"--resume is 'auto' or 'last-good', found {resume!r}.")
    screen = Console(stderr=as_json)
    if dry_run:
        from skill_ttrl.cli.display.tables import plan_view
        from skill_ttrl.stages.doctor.plan import plan

        planned = plan(config)
        if as_json:
            print_json(planned)
        else:
            screen.print(plan_view(planned))
        if planned.exit_code:
            raise typer.Exit(planned.exit_code)
        return
    folder = output or _free_folder(Path("runs") / config.name, resume)
    if (note := verified_note(config)).startswith("never"):
        screen.print(
            f"{where} is verified: {note}. Nobody has recorded a run of these settings.", style="yellow", markup=False
        )
    if seeds is not None:
        from skill_ttrl.cli.runs import train_seeds

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
    from skill_ttrl.cli.display.views import closing_lines, summary_table
    from skill_ttrl.stages.reports.baseline import baseline_lines

    screen.print(summary_table(summary))
    for line in closing_lines(summary, baseline_lines(folder)):
        screen.print(escape_terminal(line), markup=False, highlight=False)
    screen.print(f"Everything is in {folder}. Look at it: skillttrl inspect {folder}", markup=False, highlight=False)


def _free_folder(first: Path, resume: str | None) -> Path:
    """This folder, or the next free one, `NAME-2`, …; with `resume` the newest of them that there is."""
    taken = [first] if first.exists() else []
    while taken:
        following = first.with_name(f"{first.name}-{len(taken) + 1}")
        if not following.exists():
            return taken[-1] if resume else following
        taken.append(following)
    return first
