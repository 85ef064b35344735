"""The tasks that a run trains on and is measured on."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.config import DataConfig, GateConfig, SkillTTRLConfig, Source, load_config
from skill_ttrl.data.tasks import load_tasks, system_message
from skill_ttrl.envs import env_tasks, resolve_env
from skill_ttrl.errors import ConfigError, DataError, EnvError, SplitError, TrustError, annotate_error
from skill_ttrl.llm.backend import Backend
from skill_ttrl.progress import OPENING, Counting, Progress, SilentProgress
from skill_ttrl.stages.inputs.leak import leaked, refuse_leak, run_of, seen_by_run, seen_tasks, task_content
from skill_ttrl.stages.inputs.pin import pinned_source
from skill_ttrl.types import Task, derive_seed

_SPLITS = "A run trains on env.train_split and evaluates on env.eval_split."


def source_tasks(
    config: SkillTTRLConfig,
    env_id: str,
    source: Source | None,
    split: str,
    limit: int | None = None,
    progress: Progress | None = None,
) -> list[Task]:
    """The tasks of a source, or the environment's own where there is none; of these `limit`, spread over all (`envs.tasks.spread`).

    Raises:
        DataError: there are none, or they cannot be read.
    """
    if source is not None:
        tasks = load_tasks(source, env_id, split=split)
        _check_system(config, source, progress or SilentProgress())
        unknown = sum(task.ground_truth is None for task in tasks)
        if progress is not None and 0 < unknown < len(tasks):
            progress.notice(
                f"{unknown} of {len(tasks)} problems in {source.path} have no answer. Accuracy is measured only if all have one.",
                warning=True,
            )
    else:
        counter = Counting(progress or SilentProgress(), OPENING, "item")
        with annotate_error(SplitError, _SPLITS):
            tasks = env_tasks(env_id, config.env.kwargs, split, limit, counter)
    if not tasks:
        raise DataError(f"There are no {split} tasks in {source.path if source else env_id}.")
    return tasks


def _check_system(config: SkillTTRLConfig, source: Source, progress: Progress) -> None:
    """Say that a system message in the data is not sent.

    Raises:
        DataError: the config does not say that it is meant.
    """
    if config.agent.system is not None or (system := system_message(source)) is None:
        return
    found = f"The conversations of {source.path} begin with a system message"
    if "system" not in config.agent.model_fields_set:
        raise DataError(f"{found}. Set agent.system={json.dumps(system)}, or agent.system=null to leave it out.")
    progress.notice(f"{found}, which is left out (agent.system=null).", warning=True)


def training_tasks(
    config: SkillTTRLConfig, env_id: str, source: Source | None, progress: Progress | None = None
) -> list[Task]:
    """Return the tasks that a run trains on: those of `source`, or `env.train_tasks` of those of `env.train_split`.

    Raises:
        DataError, EnvError: there are none, or they cannot be read.
    """
    split = config.env.train_split if source is None else "train"
    return source_tasks(config, env_id, source, split, config.env.train_tasks, progress)


def evaluation_split(config: SkillTTRLConfig) -> str:
    """The name of what a run is measured on: the environment's own split, or "test" where the tasks come from files."""
    return config.env.eval_split if config.data.eval is None and config.data.train is None else "test"


def is_held_out(data: DataConfig) -> bool:
    """True if a run is measured on other tasks than it trains on."""
    return data.eval is not None or data.train is None


def set_names(config: SkillTTRLConfig) -> tuple[str, str]:
    """Names of the tasks that a run trains on and of those that it is measured on, for tables."""

    def name(source: Source | None, usual: str, split: str) -> str:
        if source is None:
            return f"{config.env.id} ({split})"
        part = source.split or (usual if source.path.startswith("synthetic:") else "")
        return f"{source.path} ({part})" if part else source.path

    train = name(config.train_source, "train", config.env.train_split)
    if config.data.eval is None and config.data.train is not None:
        return train, train
    return train, name(config.eval_source, "test", config.env.eval_split)


def other_family(config: SkillTTRLConfig) -> str | None:
    """A warning where a run is measured on problems of another family than it trains on, such as a recipe's additions; else None."""
    train, evaluated = config.train_source, config.eval_source
    if train is None or evaluated is None or train.path == evaluated.path:
        return None
    if not any(source.path.startswith("synthetic:") for source in (train, evaluated)):
        return None  # two files may hold one kind of problems
    trained, measured = set_names(config)
    return (
        f"The run trains on {trained} and is measured on {measured}, another family of problems. Measure on your own: set "
        "data.eval.path, or data.eval=null for the training problems."
    )


def fit_prompts(
    tasks: Sequence[Task],
    config: DataConfig,
    backend: Backend,
    agent: Agent,
    progress: Progress,
) -> list[Task]:
    """Tasks whose prompt fits `max_prompt_tokens`; longer ones are left out.

    Only tasks that state their question can be looked at beforehand; others pass. Skills have a budget of their own and
    are not counted here.
    """
    fitting: list[Task] = []
    long: list[int] = []
    for task in tasks:
        question = task.options.get("question")
        if (
            not isinstance(question, str)
            or (tokens := backend.count(agent.prompt(AgentInput(question)).messages)) <= config.max_prompt_tokens
        ):
            fitting.append(task)
            continue
        long.append(tokens)
    if long:
        least, most = min(long), max(long)
        lengths = f"{most}" if least == most else f"{least} to {most}"
        progress.notice(
            f"{len(long)} of {len(tasks)} prompts are longer than {config.max_prompt_tokens} tokens (they have {lengths}) and were "
            "left out (data.max_prompt_tokens).",
            warning=True,
        )
    if not fitting:
        raise DataError(
            f"No prompt of {len(tasks)} fits data.max_prompt_tokens={config.max_prompt_tokens}: they have {lengths} tokens. Set "
            f"data.max_prompt_tokens={most}."
        )
    return fitting


def leaks(config: SkillTTRLConfig, train: Sequence[Task], evaluated: Sequence[Task]) -> list[str]:
    """Refuse held-out tasks that this run, or the run its weights come from, learns from; lines on what cannot be told.

    Raises:
        DataError: there are some.
    """
    where = "data.train" if config.data.train is not None else f"env.train_split ({config.env.train_split})"
    refuse_leak(leaked(config, evaluated, seen_tasks(train), where))
    began = run_of(config.model.path)
    if began is None:
        return []
    try:
        seen = seen_by_run(load_config(began / "config.yaml"), own_training_tasks)
    except (DataError, EnvError, TrustError) as error:
        return [f"The training data of {config.model.path} can no longer be read ({error})."]
    refuse_leak(leaked(config, evaluated, seen, f"what {began} was trained on (model.path)"))
    return []


def own_training_tasks(config: SkillTTRLConfig) -> list[Task]:
    """The training tasks of a config, from the very data that it has pinned.

    Raises:
        DataError, EnvError: they cannot be read.
    """
    return training_tasks(config, resolve_env(config.env.id), pinned_source(config.train_source))


def gate_of(config: SkillTTRLConfig) -> GateConfig | None:
    """The gate of a run; None where no bank changes in it, or all changes are applied as they come."""
    skills = config.skills
    return skills.gate if skills is not None and skills.enabled and config.reinforces else None


def hold_out(
    config: SkillTTRLConfig,
    train: Sequence[Task],
    evaluated: Sequence[Task],
    progress: Progress,
) -> tuple[list[Task], list[Task]]:
    """Split the tasks to train on from those of the gate; the latter are none where there is no gate.

    Args:
        config: the whole config.
        train: all training tasks.
        evaluated: those of the evaluation.
        progress: shows how far reading is.

    Raises:
        ConfigError: too few tasks.
        DataError: the gate's own tasks cannot be read, or are those of the evaluation.
    """
    gate = gate_of(config)
    if gate is None:
        return [*train], []
    if gate.data is None:
        return split_tasks(train, gate.tasks, config.seed)
    tasks = source_tasks(config, resolve_env(config.env.id), config.data.source(gate.data), "train", None, progress)[
        : gate.tasks
    ]
    refuse_leak(leaked(config, evaluated, seen_tasks(tasks), "skills.gate.data"))
    held_out = {task_content(task) for task in tasks}
    return [task for task in train if task_content(task) not in held_out], tasks


def split_tasks(tasks: Sequence[Task], count: int, seed: int) -> tuple[list[Task], list[Task]]:
    """Draw `count` tasks with the seed: the others in their order, and these, without true answers, in the order that they were drawn.

    Raises:
        ConfigError: none would be left to train on.
    """
    if count >= len(tasks):
        raise ConfigError(
            f"skills.gate.tasks is {count}, but there are {len(tasks)} training tasks, and the gate's tasks are excluded from training. Lower it, or add tasks."
        )
    drawn = np.random.default_rng(derive_seed(seed, "gate tasks")).permutation(len(tasks))[:count].tolist()
    held_out = {*drawn}
    return [task for place, task in enumerate(tasks) if place not in held_out], [
        tasks[place].without_ground_truth() for place in drawn
    ]
