"""`skillttrl evaluate`: a run, a checkpoint or a model on its own problems, on any file or in an environment; or a player."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from skill_ttrl.cli.collect import Jobs, environment_arguments, show_collected
from skill_ttrl.errors import ConfigError, SplitError, annotate_error

if TYPE_CHECKING:
    from skill_ttrl.cli.display.views import RunView
    from skill_ttrl.config import SkillTTRLConfig
    from skill_ttrl.stages.collecting.collection import Collected
    from skill_ttrl.stages.evaluation.results import Evaluation

SPLIT = "test"
"""Of an environment, where none is named."""

Subject = Annotated[
    str | None,
    typer.Argument(
        metavar="SOURCE",
        help="A run, one checkpoint of it, a model's folder, a model of the hub, or `openai:MODEL` for `endpoints.policy`. "
        "None, with `--env`: a player without a model (`--agent`).",
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. eval.samples=64.")
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Problems: JSON, JSONL, Parquet or `hf:owner/name`; may be given more than once. Default: those of the run. With "
        "`--env`: where its games or products are (env.kwargs.data).",
    ),
]
Env = Annotated[
    str | None,
    typer.Option(
        help="Measure on the tasks of this environment: short name (`alfworld`, `webshop`), Gymnasium id, or `module:EnvId-v0`."
    ),
]
Split = Annotated[
    str | None, typer.Option(help="With --env: part of its tasks, such as `valid_unseen`. Default: test.")
]
Agent = Annotated[
    str | None,
    typer.Option(
        metavar="WHO",
        help="With --env or --config and no SOURCE: `expert` (the default), `random`, `first` (the first listed action), "
        "`constant:TEXT`, `walkthrough`, another of the environment's own (`rule` of `webshop`), or `module:attribute`.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="With --env: only so many tasks, spread over the split and its types. Default: all."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Of a player's choices. Default: 0.")]
Recipe = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="RECIPE",
        help="Template and lengths for a plain model. With --agent: the tasks that this recipe is measured on, and for `first` the "
        "order in which its prompts list the actions.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Keep samples here as they are drawn; the same command goes on from them. Of a player: FILE.jsonl, its "
        "trajectories.",
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Problems drawn together, each chunk from a seed of its own; 0: all. Default: what the backend takes at once with "
        "--output, else all.",
    ),
]
NoBank = Annotated[bool, typer.Option("--no-bank", help="Without the skill bank: what are the skills worth?")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout, nothing else: a list where there are several.")
]


def evaluate(
    path: Subject = None,
    overrides: Overrides = None,
    data: Data = None,
    config: Recipe = None,
    env: Env = None,
    split: Split = None,
    limit: Limit = None,
    agent: Agent = None,
    seed: Seed = None,
    jobs: Jobs = None,
    output: Output = None,
    chunk: Chunk = None,
    no_bank: NoBank = False,
    as_json: AsJson = False,
) -> None:
    """Measure avg@k, pass@k, maj@k and greedy, every problem exactly once, with intervals; one table a file.

    With `--env` the problems are the tasks of one split of an environment; without a SOURCE a player plays each of them once:
    success by type of task. Where an environment rewards what is right in part (`webshop`), the mean score stands beside.
    """
    from skill_ttrl.cli.display.output import print_json, prints_aside
    from skill_ttrl.cli.display.tables import evaluation_table
    from skill_ttrl.cli.display.views import RunView

    who = {"--agent": agent, "--jobs": jobs, "--seed (a policy's is --set seed=...)": seed}
    how = {"--chunk": chunk, "--no-bank": no_bank or None}
    where = env or (config if path is None else None)  # a player plays the tasks of an environment, or of a config's
    _refuse_idle(path, where, data or (), {"--split": split, "--limit": limit}, who, how)
    title = f"evaluate {path or agent or 'expert'}" + (f" in {where}" if where is not None else "")
    place = (env, split or SPLIT, limit) if env is not None else None
    with prints_aside(), RunView(Console(stderr=True), title, loop=False) as view, _naming_the_option(split):
        if path is None:
            who_plays = {
                "agent": agent or "expert",
                "seed": seed or 0,
                "jobs": jobs,
                "output": output,
                "progress": view,
            }
            played = _play(config, env, split, limit, data, overrides or (), who_plays)
        else:
            found = _measure(path, overrides or (), data or (), config, output, chunk, not no_bank, view, place=place)
    if path is None:
        if as_json:
            print_json(played)
        else:
            show_collected(Console(), played)
        return
    if as_json:
        print_json(found[0] if len(found) == 1 else found)
        return
    for each in found:
        Console().print(evaluation_table(each))


def _play(
    config: str | None,
    env: str | None,
    split: str | None,
    limit: int | None,
    data: Sequence[str] | None,
    overrides: Sequence[str],
    who_plays: dict[str, Any],
) -> Collected:
    """A player, on the tasks that a config is measured on, or of an environment."""
    from skill_ttrl.stages import collect
    from skill_ttrl.stages.collecting.collection import TaskSelection

    if config is not None:
        configured = _configured(config, overrides, env, data)
        return collect.run_as_configured(configured, split=split, limit=limit, **who_plays)
    arguments = environment_arguments(overrides, data[0] if data else None)
    return collect.run(TaskSelection(str(env), split or SPLIT, arguments, episodes=limit), **who_plays)


def _configured(config: str, overrides: Sequence[str], env: str | None, data: Sequence[str] | None) -> SkillTTRLConfig:
    """The config whose evaluation tasks a player plays; another environment than its own brings its own arguments and tasks."""
    from skill_ttrl.config import load_config
    from skill_ttrl.envs import resolve_env

    own = load_config(config).env.id
    asked = [] if env is None else [f"env.id={env}"]
    if env is not None and resolve_env(own) != resolve_env(env):
        asked += ["env.kwargs={}", "data.train=null", "data.eval=null"]
    return load_config(config, [*asked, *overrides, *([f"env.kwargs.data={json.dumps(data[0])}"] if data else [])])


def _naming_the_option(split: str | None) -> AbstractContextManager[None]:
    """Where no split was named, the one that is looked for need not be there: it is not the user's word."""
    return annotate_error(SplitError, "Name one with --split.") if split is None else nullcontext()


def _measure(
    source: str,
    overrides: Sequence[str],
    data: Sequence[str],
    config: str | None,
    output: Path | None,
    chunk: int | None,
    use_bank: bool,
    view: RunView,
    *,
    place: tuple[str, str, int | None] | None,
) -> tuple[Evaluation, ...]:
    """A policy, on problems or in a `place`: an environment, one of its splits, and how many tasks."""
    if place is None:
        from skill_ttrl.stages.evaluate import run_all

        return run_all(
            source,
            overrides,
            data=data,
            config=config,
            output=output,
            chunk=chunk,
            use_bank=use_bank,
            progress=view,
        )
    from skill_ttrl.stages.evaluate import measure_policy

    env, split, limit = place
    return measure_policy(
        source,
        env,
        split=split,
        overrides=overrides,
        kwargs={"data": data[0]} if data else None,
        limit=limit,
        config=config,
        output=output,
        chunk=chunk,
        use_bank=use_bank,
        progress=view,
    )


def _refuse_idle(
    path: str | None,
    env: str | None,
    data: Sequence[str],
    where: Mapping[str, object],
    who: Mapping[str, object],
    how: Mapping[str, object],
) -> None:
    """Options that would change nothing are mistakes.

    Args:
        path: the SOURCE.
        env: the environment.
        data: what `--data` names.
        where: options that need an environment.
        who: options of a player.
        how: options of a policy.

    Raises:
        ConfigError: one of them is given in vain, or there is nothing to measure.
    """
    if env is None:
        _refuse({**where, **who}, "needs --env")
        if path is None:
            raise ConfigError(
                "Name what is to be measured: a run, a checkpoint or a model; or an environment in which a player is measured, "
                "with --env, or a recipe whose tasks it plays, with --config."
            )
        return
    if len(data) > 1:
        raise ConfigError(f"With --env, --data says where its games are: give it once, found {', '.join(data)}.")
    if path is None:
        _refuse(how, "is for a policy; name one as SOURCE, or leave it out")
    else:
        _refuse(who, "is for a player without a model; leave out SOURCE to measure one")


def _refuse(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} {why}.")
