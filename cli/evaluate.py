"""`skillttrl evaluate`: measure a policy on its own problems, on files, or in an environment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group

from skill_ttrl.cli import options
from skill_ttrl.cli.collect import scripted_settings, show_collected
from skill_ttrl.cli.display import RunView, evaluation_view, show
from skill_ttrl.errors import ConfigError, SplitError, annotate_error

if TYPE_CHECKING:
    from skill_ttrl.commands.collect import Collected

SPLIT = "test"
"""Of an environment, where none is named."""

Policy = Annotated[
    str | None,
    options.policy_argument(
        f"{options.POLICIES[0].upper()}{options.POLICIES[1:]}. With --env or --config also {options.SCRIPTED}. Default there: `expert`."
    ),
]
Env = Annotated[str | None, typer.Option(help=f"Evaluate on the tasks of this environment: {options.ENV_RULE}.")]
Split = Annotated[
    str | None, typer.Option(help="With --env: split of its tasks, such as `valid_unseen`. Default: test.")
]
Config = Annotated[
    str | None,
    options.config_option(
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
        metavar="N", min=0, help="Problems drawn together, each batch from its own seed; 0: all. Default: as they fit."
    ),
]
Document = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Skill document at the head of every prompt. Short for --set agent.document=FILE."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout alone; a list for several files.")]


def evaluate(
    policy: Policy = None,
    agent: options.Program = None,
    overrides: options.Overrides = None,
    data: options.Data = None,
    config: Config = None,
    env: Env = None,
    split: Split = None,
    limit: options.Limit = None,
    env_data: options.EnvData = None,
    samples: options.Samples = None,
    seed: options.Seed = None,
    num_workers: options.NumWorkers = None,
    output: Output = None,
    resume: options.Resume = "auto",
    batch_size: BatchSize = None,
    no_skills: options.NoSkills = False,
    document: Document = None,
    full: options.Full = False,
    as_json: AsJson = False,
) -> None:
    """Measure avg@k, pass@k, maj@k and greedy accuracy with intervals, on every problem once. Prints one table per file.

    With --env the problems are the tasks of one split of an environment. A scripted agent plays each task once, and success is
    reported by task type. Where an environment gives partial rewards (`webshop`), the mean score is reported too.

    Example: `skillttrl evaluate runs/quickstart --data problems.jsonl -n 8`
    """
    options.check_resume(resume, output)
    policy = policy or (None if agent is None else "none")
    scripted = _is_scripted(policy, env, config)
    if data and (env is not None or scripted):
        raise ConfigError(
            f"--data {data[0]} names problems, but the environment's own tasks are evaluated here. Name its games or products with "
            "--env-data."
        )
    if not scripted and env is None:
        options.refuse({"--split": split}, "needs --env")
    of_model = {"--agent": agent, "--batch-size": batch_size, "--no-skills": no_skills, "--document": document}
    of_model |= {"--samples": samples}
    options.refuse_foreign(policy or "expert", scripted, {"--num-workers": num_workers}, of_model)
    short = {"program.argv": agent, "env.kwargs.data": env_data, "eval.samples": samples, "agent.document": document}
    settings = options.with_short(overrides, short)
    title = f"evaluate {policy or 'expert'}" + (f" with {agent}" if agent else "")
    title += f" in {env or config}" if env or scripted else ""
    # without --split the error about the default split has to say how another one is named
    naming = annotate_error(SplitError, "Name one with --split.") if split is None else nullcontext()
    with RunView(Console(stderr=True), title) as view, naming:
        how: dict[str, Any] = {"limit": limit, "output": output, "progress": view}
        if scripted:
            how |= {"agent": policy or "expert", "seed": seed or 0, "jobs": num_workers}
            played = _play(env, config, settings, split, **how)
        else:
            from skill_ttrl.commands.evaluate import measure_policy, run_all

            how |= {"config": config, "chunk": batch_size, "use_bank": not no_skills}
            settings = options.with_short(settings, {"seed": seed})
            if env is None:
                found = run_all(str(policy), settings, data=data or (), **how)
            else:
                found = measure_policy(str(policy), env, overrides=settings, split=split or SPLIT, **how)
    if scripted:
        show_collected(played, as_json)
    else:
        views = (evaluation_view(each, full=full) for each in found)
        show(found[0] if len(found) == 1 else found, as_json, lambda _: Group(*views))


def _is_scripted(policy: str | None, env: str | None, config: str | None) -> bool:
    """True if a scripted agent is meant.

    Raises:
        ConfigError: nothing is named, or a scripted agent without tasks to play.
    """
    from skill_ttrl.agents.scripted import find_scripted_agent, is_scripted

    if env is None and config is None:
        if policy is None or is_scripted(policy):
            raise ConfigError(
                "Name the policy to evaluate: skillttrl evaluate POLICY. A scripted agent needs an environment (--env), or a config "
                "with tasks (--config)."
            )
        return False
    if policy is None:
        return True
    from skill_ttrl.config import load_config
    from skill_ttrl.envs import resolve_env

    return find_scripted_agent(policy, resolve_env(env or load_config(str(config)).env.id)) is not None


def _play(
    env: str | None, config: str | None, settings: Sequence[str], split: str | None, *, limit: int | None, **how: Any
) -> Collected:
    """Run a scripted agent on the tasks that a config is evaluated on, or on those of an environment."""
    from skill_ttrl.commands import collect
    from skill_ttrl.config import load_config
    from skill_ttrl.envs import resolve_env
    from skill_ttrl.train.tasks import TaskSelection

    if config is None:
        arguments, scale = scripted_settings(settings, None)
        return collect.run(TaskSelection(str(env), split or SPLIT, arguments, episodes=limit), **scale, **how)
    asked = [] if env is None else [f"env.id={env}"]
    if env is not None and resolve_env(load_config(config).env.id) != resolve_env(env):
        asked += ["env.kwargs={}", "data.train=null", "data.eval=null"]  # another environment brings its own
    return collect.run_as_configured(load_config(config, [*asked, *settings]), split=split, limit=limit, **how)
