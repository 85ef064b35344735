"""`skillttrl collect`: have a player or a policy play the tasks of an environment, and keep the trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from skill_ttrl.cli.display.output import print_json, prints_aside, say
from skill_ttrl.cli.display.views import RunView, number
from skill_ttrl.cli.options import AsJson, GameData, Jobs, Mock, mocked, recipe_option, refuse, set_option, words
from skill_ttrl.errors import ConfigError
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.rollout.outcome import SuccessStats
    from skill_ttrl.stages.collecting.collection import Collected

Env = Annotated[
    str, typer.Option(help="Short name (`alfworld`, `webshop`), Gymnasium id, or `module:EnvId-v0` of your own.")
]
Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.jsonl",
        help="One line an episode; the same command goes on with it. FILE.json: a JSON array, written from FILE.jsonl at the end.",
    ),
]
Split = Annotated[str, typer.Option(help="Part of the environment's tasks.")]
Episodes = Annotated[
    int | None, typer.Option(min=1, help="So many, spread over the split and its types. Default: all.")
]
Tries = Annotated[int, typer.Option(min=1, help="Episodes of each task; of a policy: one group.")]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of every random choice. Default: 0; of a policy, its config's.")
]
Agent = Annotated[
    str,
    typer.Option(
        metavar="WHO",
        help="A player: `expert`, `random`, `first`, `constant:TEXT`, `walkthrough`, another of the environment's own (`rule`, "
        "`careful` and `brief` of `webshop`), or `module:attribute`. Or a policy: a run, a checkpoint, a model's folder, a model of the hub, `openai:MODEL`, or `command:PROGRAM`.",
    ),
]
Types = Annotated[
    list[str] | None, typer.Option(help="Only these types of task; several with commas, or given again. Default: all.")
]
Overrides = Annotated[
    list[str] | None,
    set_option(
        "An argument of the environment, e.g. env.kwargs.max_steps=20; of a policy, any key of its config, e.g. "
        "rollout.temperature=0.4."
    ),
]
Explore = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE[,SHARE...]",
        help="Of a player: share of the steps in which any admissible action is taken, whatever it says; what it says stands beside "
        "every step as `advice`. Several: one for each try in turn. Default: 0.",
    ),
]
ExploreMoves = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, metavar="SHARE", help="Of a player: share of these actions that only move (`go to`). Default: 0."
    ),
]
MaxSteps = Annotated[
    int | None, typer.Option(min=1, help="Of a player: longest episode, in steps. Default: the environment's own.")
]
Recipe = Annotated[str | None, recipe_option("Template, lengths and endpoints of a plain model.")]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of a policy: episodes that are played together and kept together. Default: 64, or what the backend takes.",
    ),
]
NoBank = Annotated[bool, typer.Option("--no-bank", help="Of a policy: without its skill bank.")]
Greedy = Annotated[
    bool, typer.Option("--greedy", help="Of a policy: the likeliest tokens, in the place of rollout.temperature.")
]


def collect(
    env: Env,
    output: Output,
    agent: Agent = "expert",
    split: Split = "train",
    episodes: Episodes = None,
    tries: Tries = 1,
    types: Types = None,
    explore: Explore = None,
    explore_moves: ExploreMoves = None,
    max_steps: MaxSteps = None,
    data: GameData = None,
    mock: Mock = False,
    config: Recipe = None,
    no_bank: NoBank = False,
    greedy: Greedy = False,
    chunk: Chunk = None,
    seed: Seed = None,
    jobs: Jobs = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Play the tasks of a split and write each trajectory, with exact text, as one line; success by type of task.

    A policy plays as it is sampled in its rollouts, with the skills of its bank in its prompts. Where an environment gives partial
    rewards (`webshop`), the mean score is reported too.
    """
    from skill_ttrl.envs import resolve_env
    from skill_ttrl.rollout.scripted import Exploration
    from skill_ttrl.stages.collect import run
    from skill_ttrl.stages.collecting.collection import TaskSelection
    from skill_ttrl.stages.collecting.watch import find_player

    data = mocked(data, mock)
    is_player = find_player(agent, resolve_env(env)) is not None
    if is_player:
        of_policy = {"--config": config, "--chunk": chunk, "--no-bank": no_bank or None, "--greedy": greedy or None}
        refuse(of_policy, f"is for a policy, but {agent} is a player. Leave it out")
    else:
        noise = {"--explore": explore, "--explore-moves": explore_moves, "--max-steps": max_steps}
        refuse({**noise, "--jobs": jobs}, f"is for a player without a model, but {agent} is a policy. Leave it out")
    with prints_aside(), RunView(Console(stderr=True), f"collect {env} {split}: {agent}", loop=False) as view:
        kwargs = environment_arguments(overrides or (), data) if is_player else {} if data is None else {"data": data}
        selection = TaskSelection(env, split, kwargs, words(types), episodes, tries)
        if is_player:
            how = Exploration(shares(explore or "0"), explore_moves or 0.0, max_steps, "," in (explore or ""))
            found = run(selection, agent=agent, explore=how, seed=seed or 0, jobs=jobs, output=output, progress=view)
        else:
            from skill_ttrl.stages.targets.collect import run_policy

            given: dict[str, Any] = {"overrides": overrides or (), "config": config, "use_bank": not no_bank}
            given |= {"greedy": greedy}
            found = run_policy(agent, selection, **given, chunk=chunk, seed=seed, output=output, progress=view)
    show_collected(found, as_json)


def shares(text: str) -> tuple[float, ...]:
    """The numbers of a list with commas.

    Raises:
        ConfigError: one is no number.
    """
    try:
        return tuple(float(each) for each in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--explore is a share of the steps, such as 0.2, or several with commas, found {text!r}."
        ) from None


def environment_arguments(overrides: Sequence[str], data: str | None) -> dict[str, Any]:
    """Return the arguments of the environment from `--set env.kwargs...` and `--data`.

    Raises:
        ConfigError: another key is set, or one that is not written KEY=VALUE.
    """
    from skill_ttrl.config import load_config

    for each in overrides:
        key = each.partition("=")[0].strip()
        if key != "env.kwargs" and not key.startswith("env.kwargs."):
            raise ConfigError(
                f"--set {each} has no meaning here: a player without a model has no config, only arguments of the "
                "environment can be set (env.kwargs.NAME=VALUE)."
            )
    found = load_config({}, overrides).env.kwargs
    return found if data is None else {**found, "data": data}


def show_collected(found: Collected, as_json: bool) -> None:
    """Print success by type of task, and what else is to be known; no path is broken into lines."""
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
        title += f", {', '.join(f'{chance:g}' for chance in chances)} of the steps taken at random"
    lines = [f"Source: {found.source or 'the environment does not say'}."]
    if overall.success is None:
        lines.append("Success is not known: the environment says of some episodes that it could not judge them.")
    if overall.failed:
        lines.append(f"{_episodes(overall.failed)} failed: no success. The first: {found.first_error}")
    if overall.exploits:
        lines.append(f"{_episodes(overall.exploits)} in which the agent sought a way around the task.")
    if overall.invalid is not None:
        lines.append(f"{overall.invalid:.1%} of the actions were invalid.")
    if found.played:
        seconds = max(found.seconds, 1e-9)
        wrote = f"; {found.tokens:,} tokens written, {found.tokens / seconds:.0f} a second" if found.tokens else ""
        lines.append(
            f"Played {_episodes(found.played)} in {found.seconds:.1f} s ({found.played / seconds:.1f} a second{wrote})."
        )
    if found.output is not None:
        lines.append(f"Trajectories: {found.output}. Look at them: skillttrl inspect {lines_of(Path(found.output))}")
    say(f"{title}, seed {found.seed}", style="bold")
    Console().print(success_table({**found.by_type, "all": overall}))
    say(*lines)


def _episodes(count: int) -> str:
    return f"{count:,} episode{'' if count == 1 else 's'}"


def _bounds(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.3f}–{interval[1]:.3f}"


def success_table(rows: Mapping[str, SuccessStats]) -> Table:
    """One row a type of task, narrow enough for 80 columns; nothing in a name is read as markup. Scores, where there are any."""
    scored = any(each.score is not None for each in rows.values())
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("type", overflow="fold")
    for column in ("episodes", *(("score", "interval") if scored else ()), "success", "interval", "steps", "failed"):
        table.add_column(column, justify="right")
    for name, each in rows.items():
        steps = "-" if each.steps is None else f"{each.steps:.1f}"
        score = (number(each.score), _bounds(each.score_interval)) if scored else ()
        success = (number(each.success), _bounds(each.interval))
        cells = (name or "other", f"{each.episodes:,}", *score, *success, steps, f"{each.failed:,}")
        table.add_row(*(Text(escape_terminal(cell)) for cell in cells))
    return table
