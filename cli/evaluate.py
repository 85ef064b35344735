"""`skillttrl evaluate`: a run, a checkpoint or a model on its own problems, on any file or in an environment; or a player."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from skill_ttrl.cli.collect import environment_arguments, show_collected
from skill_ttrl.cli.display.output import print_json, prints_aside
from skill_ttrl.cli.display.tables import evaluation_table
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.options import Jobs, recipe_option, refuse, set_option
from skill_ttrl.errors import ConfigError, SplitError, annotate_error

if TYPE_CHECKING:
    from skill_ttrl.config import SkillTTRLConfig
    from skill_ttrl.stages.collecting.collection import Collected
    from skill_ttrl.stages.evaluation.results import Evaluation

SPLIT = "test"
"""Of an environment, where none is named."""

Subject = Annotated[
    str | None,
    typer.Argument(
        metavar="SOURCE",
        help="A run, one checkpoint of it, a model's folder, a model of the hub, `openai:MODEL` for `endpoints.policy`, or `command:PROGRAM` for a program. "
        "None, with `--env`: a player without a model (`--agent`).",
    ),
]
Overrides = Annotated[list[str] | None, set_option("Override one key, e.g. eval.samples=64.")]
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
    recipe_option(
        "Template and lengths for a plain model. With --agent: the tasks that this recipe is measured on, and for `first` the "
        "order in which its prompts list the actions."
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
Document = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="A skill document at the head of every prompt; short for --set agent.document=FILE."
    ),
]
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
    document: Document = None,
    as_json: AsJson = False,
) -> None:
    """Measure avg@k, pass@k, maj@k and greedy, every problem exactly once, with intervals; one table a file.

    With `--env` the problems are the tasks of one split of an environment; without a SOURCE a player plays each of them once:
    success by type of task. Where an environment gives partial rewards (`webshop`), the mean score is reported too.
    """
    where = env or (config if path is None else None)  # a player plays the tasks of an environment, or of a config's
    of_player = {"--agent": agent, "--jobs": jobs, "--seed (a policy's is --set seed=...)": seed}
    of_policy = {"--chunk": chunk, "--no-bank": no_bank or None, "--document": document}
    shown = [] if document is None else [f"agent.document={json.dumps(document)}"]
    place = Place(env, split, limit, data or (), [*(overrides or ()), *shown], config)
    _refuse_idle(path, where is not None, place, of_player, of_policy)
    title = f"evaluate {path or agent or 'expert'}" + (f" in {where}" if where is not None else "")
    # where no split was named, the one that is looked for need not be there: it is not the user's word
    naming = annotate_error(SplitError, "Name one with --split.") if split is None else nullcontext()
    with prints_aside(), RunView(Console(stderr=True), title, loop=False) as view, naming:
        if path is None:
            who = {"agent": agent or "expert", "seed": seed or 0, "jobs": jobs, "output": output, "progress": view}
            played = _play(place, who)
        else:
            how = {"output": output, "chunk": chunk, "use_bank": not no_bank, "progress": view}
            found = _measure(path, place, how)
    if path is None:
        show_collected(played, as_json)
    elif as_json:
        print_json(found[0] if len(found) == 1 else found)
    else:
        for each in found:
            Console().print(evaluation_table(each))


class Place(NamedTuple):
    """Tasks to measure on: those of an environment's split, or of a config, or problems."""

    env: str | None
    split: str | None
    limit: int | None
    data: Sequence[str]
    overrides: Sequence[str]
    config: str | None


def _play(place: Place, who: Mapping[str, Any]) -> Collected:
    """A player, on the tasks that a config is measured on, or of an environment."""
    from skill_ttrl.stages import collect
    from skill_ttrl.stages.collecting.collection import TaskSelection

    if place.config is not None:
        return collect.run_as_configured(_configured(place), split=place.split, limit=place.limit, **who)
    arguments = environment_arguments(place.overrides, place.data[0] if place.data else None)
    return collect.run(TaskSelection(str(place.env), place.split or SPLIT, arguments, episodes=place.limit), **who)


def _configured(place: Place) -> SkillTTRLConfig:
    """The config whose evaluation tasks a player plays; another environment than its own brings its own arguments and tasks."""
    from skill_ttrl.config import load_config
    from skill_ttrl.envs import resolve_env

    source, env = str(place.config), place.env
    own = load_config(source).env.id
    asked = [] if env is None else [f"env.id={env}"]
    if env is not None and resolve_env(own) != resolve_env(env):
        asked += ["env.kwargs={}", "data.train=null", "data.eval=null"]
    data = [f"env.kwargs.data={json.dumps(place.data[0])}"] if place.data else []
    return load_config(source, [*asked, *place.overrides, *data])


def _measure(source: str, place: Place, how: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    """A policy, on problems or in an environment."""
    if place.env is None:
        from skill_ttrl.stages.evaluate import run_all

        return run_all(source, place.overrides, data=place.data, config=place.config, **how)
    from skill_ttrl.stages.evaluate import measure_policy

    kwargs = {"data": place.data[0]} if place.data else None
    tasks: dict[str, Any] = {"split": place.split or SPLIT, "limit": place.limit, "kwargs": kwargs}
    return measure_policy(source, place.env, overrides=place.overrides, config=place.config, **tasks, **how)


def _refuse_idle(
    path: str | None, has_env: bool, place: Place, of_player: Mapping[str, object], of_policy: Mapping[str, object]
) -> None:
    """Options that would change nothing are mistakes.

    Raises:
        ConfigError: one of them is given in vain, or there is nothing to measure.
    """
    if not has_env:
        refuse({"--split": place.split, "--limit": place.limit, **of_player}, "needs --env")
        if path is None:
            raise ConfigError(
                "Name what is to be measured: a run, a checkpoint or a model; or an environment in which a player is measured, "
                "with --env, or a recipe whose tasks it plays, with --config."
            )
        return
    if len(place.data) > 1:
        raise ConfigError(f"With --env, --data says where its games are: give it once, found {', '.join(place.data)}.")
    if path is None:
        refuse(of_policy, "is for a policy; name one as SOURCE, or leave it out")
    else:
        refuse(of_player, "is for a player without a model; leave out SOURCE to measure one")
