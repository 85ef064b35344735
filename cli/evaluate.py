"""`skillttrl evaluate`: measure a policy on its own problems, on files, or in an environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from skill_ttrl.cli.collect import scripted_settings, show_collected
from skill_ttrl.cli.display.evaluation_view import evaluation_view
from skill_ttrl.cli.display.output import print_json, prints_aside
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.options import (
    ENV_RULE,
    POLICIES,
    SCRIPTED,
    Data,
    EnvData,
    Full,
    NoSkills,
    NumWorkers,
    Resume,
    Samples,
    check_resume,
    config_option,
    is_scripted,
    policy_argument,
    refuse,
    set_option,
    with_seed,
)
from skill_ttrl.errors import ConfigError, SplitError, annotate_error

if TYPE_CHECKING:
    from skill_ttrl.config import SkillTTRLConfig
    from skill_ttrl.stages.collecting.collection import Collected
    from skill_ttrl.stages.evaluation.results import Evaluation

SPLIT = "test"
"""Of an environment, where none is named."""

Policy = Annotated[
    str | None,
    policy_argument(
        f"{POLICIES[0].upper()}{POLICIES[1:]}. With --env or --config also {SCRIPTED}. Default there: `expert`."
    ),
]
Overrides = Annotated[list[str] | None, set_option("Override one config key, e.g. eval.greedy=false.")]
Env = Annotated[str | None, typer.Option(help=f"Evaluate on the tasks of this environment: {ENV_RULE}.")]
Split = Annotated[
    str | None, typer.Option(help="With --env: split of its tasks, such as `valid_unseen`. Default: test.")
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of tasks. Default: all.")]
Seed = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Seed of every random choice. Default: the config's, else 0.")
]
Config = Annotated[
    str | None,
    config_option(
        "Chat template, lengths and problems of a plain model; for a scripted agent, the tasks, and for `first` the order in which the "
        "prompts list the actions."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Folder that stores the samples as they are drawn; for a scripted agent: FILE.jsonl."
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="N",
        min=0,
        help="Problems drawn together, each batch from its own seed; 0: all. Default: all, or with --output what the backend "
        "takes at once.",
    ),
]
Document = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Skill document to put at the head of every prompt. Short for --set agent.document=FILE."
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON value on stdout, and nothing else there; a list for several files."),
]


def evaluate(
    policy: Policy = None,
    overrides: Overrides = None,
    data: Data = None,
    config: Config = None,
    env: Env = None,
    split: Split = None,
    limit: Limit = None,
    env_data: EnvData = None,
    samples: Samples = None,
    seed: Seed = None,
    num_workers: NumWorkers = None,
    output: Output = None,
    resume: Resume = "auto",
    batch_size: BatchSize = None,
    no_skills: NoSkills = False,
    document: Document = None,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Measure avg@k, pass@k, maj@k and greedy accuracy with intervals, on every problem once. Prints one table per file.

    With --env the problems are the tasks of one split of an environment. A scripted agent plays each task once, and success is
    reported by task type. Where an environment gives partial rewards (`webshop`), the mean score is reported too.

    Example: `skillttrl evaluate runs/quickstart --data problems.jsonl -n 8`
    """
    check_resume(resume, output)
    scripted = _is_scripted(policy, env, config)
    drawn = [] if samples is None else [f"eval.samples={samples}"]
    shown = [] if document is None else [f"agent.document={json.dumps(document)}"]
    settings = [*(overrides or ()), *drawn, *shown]
    place = Place(env, split, limit, data or (), env_data, settings if scripted else with_seed(settings, seed), config)
    of_model = {"--batch-size": batch_size, "--no-skills": no_skills, "--document": document, "--samples": samples}
    _check_options(policy, scripted, place, {"--num-workers": num_workers}, of_model)
    title = f"evaluate {policy or 'expert'}" + (f" in {env or config}" if env or scripted else "")
    # without --split the error about the default split has to say how another one is named
    naming = annotate_error(SplitError, "Name one with --split.") if split is None else nullcontext()
    with prints_aside(), RunView(Console(stderr=True), title, loop=False) as view, naming:
        if scripted:
            who = {"agent": policy or "expert", "seed": seed or 0, "jobs": num_workers, "output": output}
            played = _play(place, {**who, "progress": view})
        else:
            how = {"output": output, "chunk": batch_size, "use_bank": not no_skills, "progress": view}
            found = _measure(str(policy), place, how)
    if scripted:
        show_collected(played, as_json, full=full)
    elif as_json:
        print_json(found[0] if len(found) == 1 else found)
    else:
        for each in found:
            Console().print(evaluation_view(each, full=full))


class Place(NamedTuple):
    """Tasks to measure on: those of an environment's split, or of a config, or problems."""

    env: str | None
    split: str | None
    limit: int | None
    data: Sequence[str]
    env_data: str | None
    overrides: Sequence[str]
    config: str | None


def _is_scripted(policy: str | None, env: str | None, config: str | None) -> bool:
    """True if a scripted agent is meant.

    Raises:
        ConfigError: nothing is named, or a scripted agent without tasks to play.
    """
    if env is None and config is None:
        if policy is None:
            raise ConfigError(
                "Name the policy to evaluate: skillttrl evaluate POLICY. A scripted agent needs an environment (--env), or a config "
                "with tasks (--config)."
            )
        if is_scripted(policy):
            raise ConfigError(
                f"{policy} is a scripted agent: it needs --env ENV, or --config CONFIG with the tasks to play."
            )
        return False
    if policy is None:
        return True
    from skill_ttrl.config import load_config
    from skill_ttrl.envs import resolve_env
    from skill_ttrl.stages.collecting.watch import find_scripted_agent

    return find_scripted_agent(policy, resolve_env(env or load_config(str(config)).env.id)) is not None


def _play(place: Place, who: Mapping[str, Any]) -> Collected:
    """Run a scripted agent on the tasks that a config is measured on, or on those of an environment."""
    from skill_ttrl.stages import collect
    from skill_ttrl.stages.collecting.collection import TaskSelection

    if place.config is not None:
        return collect.run_as_configured(_configured(place), split=place.split, limit=place.limit, **who)
    arguments, settings = scripted_settings(place.overrides, place.env_data)
    selection = TaskSelection(str(place.env), place.split or SPLIT, arguments, episodes=place.limit)
    return collect.run(selection, **settings, **who)


def _configured(place: Place) -> SkillTTRLConfig:
    """Return the config whose evaluation tasks are played; another environment than its own brings its own arguments and tasks."""
    from skill_ttrl.config import load_config
    from skill_ttrl.envs import resolve_env

    source, env = str(place.config), place.env
    own = load_config(source).env.id
    asked = [] if env is None else [f"env.id={env}"]
    if env is not None and resolve_env(own) != resolve_env(env):
        asked += ["env.kwargs={}", "data.train=null", "data.eval=null"]
    data = [] if place.env_data is None else [f"env.kwargs.data={json.dumps(place.env_data)}"]
    return load_config(source, [*asked, *place.overrides, *data])


def _measure(policy: str, place: Place, how: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    """Evaluate a model on problems or in an environment."""
    if place.env is None:
        from skill_ttrl.stages.evaluate import run_all

        own = [] if place.env_data is None else [f"env.kwargs.data={json.dumps(place.env_data)}"]
        settings = [*place.overrides, *own]
        return run_all(policy, settings, data=place.data, limit=place.limit, config=place.config, **how)
    from skill_ttrl.stages.evaluate import measure_policy

    kwargs = None if place.env_data is None else {"data": place.env_data}
    tasks: dict[str, Any] = {"split": place.split or SPLIT, "limit": place.limit, "kwargs": kwargs}
    return measure_policy(policy, place.env, overrides=place.overrides, config=place.config, **tasks, **how)


def _check_options(
    policy: str | None, scripted: bool, place: Place, of_scripted: Mapping[str, object], of_model: Mapping[str, object]
) -> None:
    """Refuse options that would have no effect.

    Raises:
        ConfigError: one of them is given.
    """
    if place.data and (place.env is not None or scripted):
        raise ConfigError(
            f"--data {place.data[0]} names problems, but the environment's own tasks are evaluated here. Name its games or products "
            "with --env-data."
        )
    if scripted:
        refuse(of_model, f"needs a model, but {policy or 'expert'} is a scripted agent")
        return
    if place.env is None:
        refuse({"--split": place.split}, "needs --env")
    refuse(of_scripted, f"needs a scripted agent, but {policy} is a model")
