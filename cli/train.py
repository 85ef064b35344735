"""`skillttrl train`, `sft` and `rl`: all phases of a config in one run, or one of them from existing skills and episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from skill_ttrl.cli import options
from skill_ttrl.cli.launching import notice, run_or_check, seeds_of, serve_other_ranks
from skill_ttrl.errors import ConfigError

if TYPE_CHECKING:
    from skill_ttrl.commands.launch import Options

Config = Annotated[str, typer.Argument(metavar="CONFIG", help=options.CONFIG_HELP)]
MaybeConfig = Annotated[
    str | None, typer.Argument(metavar="CONFIG", help=f"{options.CONFIG_HELP} Can be left out as described above.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Run folder. Default: runs/NAME, or NAME-2 and so on if it exists."),
]
OutputNearBank = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Run folder. Default: runs/NAME; with --bank, `sft` or `rl` next to the bank. Numbered if it exists.",
    ),
]
Resume = Annotated[
    Literal["auto", "never"] | None,
    typer.Option(
        help="`auto`: continue the run in --output from its newest checkpoint. `never`: fail if there is a run. Default: `auto` with "
        "--output; without it, a new folder."
    ),
]
Env = Annotated[str | None, typer.Option(help=f"Train in another environment, on its own tasks: {options.ENV_RULE}.")]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="0,1,2", help="One run per seed, in one folder; `inspect` reports mean and interval over seeds."
    ),
]
Nproc = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that train together here, one per GPU. Default: runtime.nproc, else one."),
]
Policy = Annotated[
    Path | None,
    options.policy_option(
        "Where to start: a run, a checkpoint, a model folder or a hub model (OWNER/NAME). Default: the config's model."
    ),
]
Bank = Annotated[
    Path | None, typer.Option(help="Initial skill bank: a bank's folder, a run that has one, or an exported file.")
]
Trajectories = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl",
        help="Episodes to imitate. Default with --bank: trajectories.jsonl in its folder, or those that its run collected; printed.",
    ),
]
Examples = Annotated[int | None, typer.Option(min=1, help="Most steps to imitate.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check what the run checks before it starts, show its sizes, and do nothing. Exits as the run would.",
    ),
]


def train(
    config: Config,
    agent: options.Program = None,
    overrides: options.Overrides = None,
    output: Output = None,
    resume: Resume = None,
    env: Env = None,
    env_data: options.EnvData = None,
    mock: options.Mock = False,
    seed: options.Seed = None,
    nproc: Nproc = None,
    seeds: Seeds = None,
    dry_run: DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Run all phases of a config: collect, distill, cold start, then RL training (sample, vote, reward, update).

    Example: `skillttrl train quickstart --seed 1 -o runs/mine`
    """
    serve_other_ranks()
    from skill_ttrl.commands.launch import launch

    if seeds is not None and seed is not None:
        raise ConfigError("--seed and --seeds each name seeds: give one of them.")
    asked = _asked(overrides, env_data, mock, output, resume, agent=agent, env=env, seed=seed, nproc=nproc)
    found = launch(config, asked)
    run_or_check(found, as_json=as_json, dry_run=dry_run, seeds=None if seeds is None else seeds_of(seeds))


def sft(
    config: MaybeConfig = None,
    policy: Policy = None,
    bank: Bank = None,
    trajectories: Trajectories = None,
    examples: Examples = None,
    overrides: options.Overrides = None,
    output: OutputNearBank = None,
    resume: Resume = None,
    env: Env = None,
    env_data: options.EnvData = None,
    mock: options.Mock = False,
    seed: options.Seed = None,
    nproc: Nproc = None,
    dry_run: DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Run only the supervised cold start of a config.

    With --bank or --trajectories, imitate collected episodes, with the bank's skills in their prompts. CONFIG can then be left out: it
    is the quickstart config of the episodes' environment, with their data. Episodes collected without --epsilon have no recorded expert
    actions, so that only successful ones are imitated.

    Example: `skillttrl sft --bank runs/alfworld/bank --trajectories runs/alfworld/trajectories.jsonl`
    """
    serve_other_ranks()
    from skill_ttrl.commands.launch import launch_sft

    asked = _asked(overrides, env_data, mock, output, resume, env=env, seed=seed, nproc=nproc)
    found = launch_sft(config, asked, model=policy, bank=bank, trajectories=trajectories, examples=examples)
    run_or_check(found, as_json=as_json, dry_run=dry_run)


def rl(
    config: MaybeConfig = None,
    policy: Policy = None,
    bank: Bank = None,
    agent: options.Program = None,
    overrides: options.Overrides = None,
    output: OutputNearBank = None,
    resume: Resume = None,
    env: Env = None,
    env_data: options.EnvData = None,
    mock: options.Mock = False,
    seed: options.Seed = None,
    nproc: Nproc = None,
    dry_run: DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Run only the RL training of a config, from its model or from --policy.

    The run begins with the skills of --bank; without it, with those of the run that --policy names. CONFIG can be left out with
    --policy RUN or --bank: it is then the config of that run, or of the newest run of `skillttrl sft` in the bank's folder. All that is
    found this way is printed.

    Example: `skillttrl rl quickstart --policy runs/sft -o runs/rl`
    """
    serve_other_ranks()
    from skill_ttrl.commands.launch import launch_rl

    asked = _asked(overrides, env_data, mock, output, resume, agent=agent, env=env, seed=seed, nproc=nproc)
    found = launch_rl(config, asked, model=policy, bank=bank)
    run_or_check(found, as_json=as_json, dry_run=dry_run)


def _asked(
    overrides: Sequence[str] | None,
    env_data: str | None,
    mock: bool,
    output: Path | None,
    resume: str | None,
    *,
    agent: str | None = None,
    **more: Any,
) -> Options:
    """Return the options of a launch, with the rules of `--mock` and `--resume` applied."""
    from skill_ttrl.commands.launch import Options

    short = {"program.argv": agent, "env.kwargs.data": options.generated_data(env_data, mock)}
    if resume is None and output is not None:
        resume = "auto"
    resume = None if resume == "never" else resume
    return Options(options.with_short(overrides, short), output=output, resume=resume, notice=notice, **more)
