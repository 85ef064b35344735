"""`skillttrl collect`: roll out a policy on the tasks of an environment, and store the trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from skill_ttrl.cli import options
from skill_ttrl.cli.display import RunView, print_json, say, text_table
from skill_ttrl.errors import ConfigError

if TYPE_CHECKING:
    from skill_ttrl.commands.collect import Collected

Env = Annotated[str, typer.Option(help=f"Environment: {options.ENV_RULE}.")]
Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.jsonl",
        help="File with one line per episode. FILE.json: also a JSON array, at the end.",
    ),
]
Policy = Annotated[
    str | None,
    options.policy_option(f"The policy that plays: {options.POLICIES}; or {options.SCRIPTED}. Default: `expert`."),
]
Split = Annotated[str, typer.Option(help="Split of the environment's tasks.")]
Rollouts = Annotated[
    int,
    typer.Option(
        "--rollouts-per-task", "-n", metavar="N", min=1, help="Episodes per task, a group of them sampled together."
    ),
]
Types = Annotated[list[str] | None, typer.Option(help="Task types, separated by commas or repeated. Default: all.")]
Overrides = Annotated[
    list[str] | None,
    options.set_option(
        "Override one config key, e.g. rollout.temperature=0.4. A scripted agent has only env.kwargs, e.g. "
        "env.kwargs.max_steps=20, scale, e.g. scale.address=local, and rollout.rollout_timeout_s."
    ),
]
Epsilon = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Scripted agent: probability that a step takes a random admissible action. The agent's own action is recorded in each "
        "step's `info`. Several values, separated by commas: one for each rollout of a task in turn. Default: 0.",
    ),
]
EpsilonMoves = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, metavar="SHARE", help="Scripted agent: share of the random actions that only move. Default: 0."
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Scripted agent: most steps of an episode. Default: the environment's."),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Model: episodes that are rolled out and stored together. Default: 64, or the backend's.",
    ),
]
Greedy = Annotated[bool, typer.Option("--greedy", help="Model: decode greedily instead of with rollout.temperature.")]


def collect(
    env: Env,
    output: Output,
    policy: Policy = None,
    agent: options.Program = None,
    split: Split = "train",
    limit: options.Limit = None,
    rollouts_per_task: Rollouts = 1,
    types: Types = None,
    epsilon: Epsilon = None,
    epsilon_moves: EpsilonMoves = None,
    max_steps: MaxSteps = None,
    env_data: options.EnvData = None,
    mock: options.Mock = False,
    config: options.PlainConfig = None,
    no_skills: options.NoSkills = False,
    greedy: Greedy = False,
    batch_size: BatchSize = None,
    num_workers: options.NumWorkers = None,
    seed: options.Seed = None,
    resume: options.Resume = "auto",
    overrides: Overrides = None,
    as_json: options.AsJson = False,
) -> None:
    """Roll out a policy in an environment and write each trajectory, with its exact text, as one line.

    A model plays as in its training rollouts, with the skills of its bank in its prompts. Reports success by task type, and the mean
    score where an environment gives partial rewards (`webshop`).

    Example: `skillttrl collect --env alfworld --mock --policy expert --limit 100 -o expert.jsonl`
    """
    from skill_ttrl.agents.scripted import find_scripted_agent
    from skill_ttrl.commands.collect import run, run_policy
    from skill_ttrl.envs import resolve_env
    from skill_ttrl.rollout.episode import Exploration
    from skill_ttrl.runs.episode_logs import lines_of
    from skill_ttrl.train.tasks import TaskSelection

    options.check_resume(resume, output, lines_of(output))
    policy = policy or ("expert" if agent is None else "none")
    data = options.generated_data(env_data, mock)
    scripted = find_scripted_agent(policy, resolve_env(env)) is not None
    of_model = {
        "--agent": agent,
        "--config": config,
        "--batch-size": batch_size,
        "--no-skills": no_skills,
        "--greedy": greedy,
    }
    of_scripted = {"--epsilon": epsilon, "--epsilon-moves": epsilon_moves, "--max-steps": max_steps}
    options.refuse_foreign(policy, scripted, {**of_scripted, "--num-workers": num_workers}, of_model)
    with RunView(Console(stderr=True), f"collect {env} {split}: {policy}") as view:
        kwargs, settings = scripted_settings(overrides if scripted and overrides else (), data)
        selection = TaskSelection(env, split, kwargs, options.words(types), limit, rollouts_per_task)
        if scripted:
            try:
                chances = tuple(float(each) for each in (epsilon or "0").split(","))
            except ValueError:
                raise ConfigError(
                    f"--epsilon is a probability such as 0.2, or several separated by commas, found {epsilon!r}."
                ) from None
            how = Exploration(chances, epsilon_moves or 0.0, max_steps)
            given: dict[str, Any] = {"explore": how, "seed": seed or 0, "jobs": num_workers, **settings}
            found = run(selection, agent=policy, **given, output=output, progress=view)
        else:
            given = {"overrides": options.with_short(overrides, {"program.argv": agent}), "config": config}
            given |= {"use_bank": not no_skills, "greedy": greedy, "chunk": batch_size, "seed": seed}
            found = run_policy(policy, selection, **given, output=output, progress=view)
    show_collected(found, as_json)


def scripted_settings(overrides: Sequence[str], data: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the environment from `--set env.kwargs...` and `--env-data`, and those of `commands.collect.run` from others.

    Raises:
        ConfigError: another key is set, or one that is not written KEY=VALUE.
    """
    from skill_ttrl.config import load_config

    others = [each for each in overrides if each.strip().startswith(("scale", "rollout.rollout_timeout_s"))]
    arguments = environment_arguments([each for each in overrides if each not in others], data)
    found = load_config({}, others)
    return arguments, {"scale": found.scale, "timeout_s": found.rollout.rollout_timeout_s}


def environment_arguments(overrides: Sequence[str], data: str | None) -> dict[str, Any]:
    """Return the arguments of the environment from `--set env.kwargs...` and `--env-data`.

    Raises:
        ConfigError: another key is set, or one that is not written KEY=VALUE.
    """
    from skill_ttrl.config import load_config

    for each in overrides:
        key = each.partition("=")[0].strip()
        if key != "env.kwargs" and not key.startswith("env.kwargs."):
            raise ConfigError(
                f"--set {each} has no effect: it needs a model. Without one only arguments of the environment can be set "
                "(env.kwargs.NAME=VALUE)."
            )
    found = load_config({}, overrides).env.kwargs
    return found if data is None else {**found, "data": data}


def show_collected(found: Collected, as_json: bool) -> None:
    """Print success by task type, at most 80 columns wide, and the lines under it; no path is broken into lines."""
    from skill_ttrl.commands.reports.summary_text import with_interval
    from skill_ttrl.runs.episode_logs import lines_of

    if as_json:
        print_json(found)
        return
    overall = found.overall
    title = f"{found.agent} in {found.env}, {found.split}: {_episodes(overall.episodes)}"
    if overall.tasks < overall.episodes:
        title += f" of {overall.tasks:,} tasks"
    chances = found.explore if isinstance(found.explore, Sequence) else [found.explore]
    if any(chances):
        title += f", {', '.join(f'{chance:g}' for chance in chances)} of the steps random"
    say(f"{title}, seed {found.seed}", style="bold")
    types = found.by_type if len(found.by_type) > 1 else {}  # a single type repeats the row of all
    scored, rows = overall.score is not None, []
    for name, each in {"all": overall, **types}.items():
        score = (with_interval(each.score, each.score_interval),) if scored else ()
        steps = None if each.steps is None else f"{each.steps:.1f}"
        success = with_interval(each.success, each.interval)
        rows.append((name or "other", f"{each.episodes:,}", *score, success, steps, f"{each.failed:,}"))
    columns = ("task type", "episodes", *(("score",) if scored else ()), "success", "steps", "failed")
    Console().print(text_table("", columns, rows), crop=False)
    lines = [f"Source: {found.source or 'not stated by the environment'}."]
    if overall.success is None:
        lines.append("Success is unknown because the environment did not judge some episodes.")
    if overall.failed:
        lines.append(
            f"{_episodes(overall.failed)} failed and count as unsuccessful. The first error: {found.first_error}"
        )
    if overall.exploits:
        lines.append(f"{_episodes(overall.exploits)} with an attempted exploit.")
    if overall.invalid is not None:
        lines.append(f"{overall.invalid:.1%} of the actions were invalid.")
    if found.played:
        wrote = f"; {found.tokens:,} generated tokens" if found.tokens else ""
        lines.append(f"Played {_episodes(found.played)} in {found.seconds:.1f} s{wrote}.")
    if found.output is not None:
        lines.append(f"Trajectories: {found.output}. Show them: skillttrl inspect {lines_of(Path(found.output))}")
    say(*lines)


def _episodes(count: int) -> str:
    return f"{count:,} episode{'' if count == 1 else 's'}"
