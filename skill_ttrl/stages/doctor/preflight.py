"""Find what keeps a run from starting, without starting it: the checks of `train` that make, load and ask for nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from skill_ttrl.config import SkillTTRLConfig, SourceConfig
from skill_ttrl.data.episodes import names_of, read_episodes
from skill_ttrl.data.tasks import load_demonstrations
from skill_ttrl.envs import check_text_env, make_env, resolve_env
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.stages.data_phases import episode_leaks
from skill_ttrl.stages.inputs.demonstrate import answer_note
from skill_ttrl.stages.inputs.leak import (
    demonstration_leaks,
    foreign_splits,
    seen_prompts,
    seen_tasks,
    settle,
    training_splits,
)
from skill_ttrl.stages.inputs.tasks import evaluation_split, leaks, other_family, source_tasks, training_tasks
from skill_ttrl.stages.setup.checks import (
    check_cut_series,
    check_enough,
    check_states,
    refusals,
)
from skill_ttrl.stages.setup.defaults import with_defaults
from skill_ttrl.stages.setup.encode import imitated_files
from skill_ttrl.types import Task, derive_seed

T = TypeVar("T")


@dataclass
class Preflight:
    """Findings about a config."""

    refusals: list[SkillTTRLError] = field(default_factory=list)
    """Why a run of it would not start; the first is what `train` says, as a rule."""
    train: int | None = None
    """Tasks to train on; None: not known, see `notes`."""
    evaluated: int | None = None
    """Tasks that are measured on."""
    notes: list[str] = field(default_factory=list)
    """Unknowns, each with its reason, and leaks that the run would report."""

    def attempt(self, check: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Call a check; keep the error that it raises, once, and give None then."""
        try:
            return check(*args, **kwargs)
        except SkillTTRLError as error:
            if str(error) not in map(str, self.refusals):
                self.refusals.append(error)
            return None


def look_before(config: SkillTTRLConfig, *, asks_ranks: bool = False) -> Preflight:
    """Make the checks of a run that need neither its model nor anything that takes long or costs money.

    `asks_ranks`: the command line says how many ranks (`check_gpus`).
    """
    found = Preflight(list(refusals(config, asks_ranks=asks_ranks)))
    with suppress(SkillTTRLError):  # among the refusals: there are no tasks to look at
        _look_at_tasks(with_defaults(config), found)
    return found


def _look_at_tasks(config: SkillTTRLConfig, found: Preflight) -> None:
    held_out = config.data.eval is not None or config.data.train is None
    train = evaluated = found.attempt(_tasks, config, config.data.train, found, training=True)
    if held_out:
        evaluated = found.attempt(_tasks, config, config.data.eval, found, training=False)
    found.train, found.evaluated = (None if tasks is None else len(tasks) for tasks in (train, evaluated))
    found.attempt(check_cut_series, config, [*(train or ()), *(evaluated or ())])
    if train is not None:
        found.attempt(_check_contract, config, train[0])
        if "rl" in config.phases:
            found.attempt(check_enough, config, train)
    if evaluated is not None:
        found.notes += [note for note in (other_family(config),) if note]
        if held_out and train is not None:
            found.notes += found.attempt(leaks, config, train, evaluated) or []
        found.notes += found.attempt(_imitated, config, evaluated, transductive=not held_out) or []


def _check_contract(config: SkillTTRLConfig, task: Task) -> None:
    with closing(make_env(resolve_env(config.env.id), **config.env.kwargs)) as env:
        check_text_env(env, task)
        check_states(config, env, task)


def _tasks(
    config: SkillTTRLConfig, source: SourceConfig | None, found: Preflight, *, training: bool
) -> list[Task] | None:
    """The tasks as the run would take them; None where that takes long, which is noted."""
    env_id = resolve_env(config.env.id)
    split = config.env.train_split if training else evaluation_split(config)
    if source is not None and source.path.startswith("hf:"):
        found.notes.append(f"how many tasks {source.path} has is not known: a plan fetches nothing")
        return None
    try:
        if training:
            return training_tasks(config, env_id, source, AtOnce())
        return source_tasks(config, env_id, source, split, config.env.eval_tasks, AtOnce())
    except TakesLongError as slow:
        if (config.env.train_tasks if training else config.env.eval_tasks) is None:
            found.notes.append(
                f"how many tasks {config.env.id} has in the split {split} is not known: {slow} first, as the run does once"
            )
        return None


class TakesLongError(SkillTTRLError):
    """Tasks could only be counted after work that takes long."""


class AtOnce(SilentProgress):
    """Leaves where work begins that takes long."""

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """See `Progress.start`."""
        raise TakesLongError(f"{total:,} {unit}s would have to be read or made")


def _imitated(config: SkillTTRLConfig, evaluated: list[Task], *, transductive: bool) -> list[str]:
    """Lines the run would report on demonstrations of tasks that it is measured on."""
    data, notes = config.sft.data, list[str]()
    if "distill" in config.phases and "collect" not in config.phases and config.demonstrations.trajectories:
        notes += episode_leaks(config, config.demonstrations.trajectories)
    if not config.imitates:
        return notes
    if data is not None:
        if data.path.startswith("hf:"):
            return notes
        shown = load_demonstrations(data, seed=derive_seed(config.seed, "demonstrations"))
        notes += [note] if (note := answer_note(config, shown)) else []
        seen, what = seen_prompts(each.prompt for each in shown), f"sft.data ({data.path})"
    elif "collect" in config.phases:  # its episodes are of training tasks
        return notes
    else:
        files = imitated_files(config)
        what = f"demonstrations.trajectories ({names_of(files)})"
        notes += settle(config, foreign_splits(read_episodes(files), training_splits(config), what))
        seen = seen_tasks(episode.task for episode in read_episodes(files))
    return notes + demonstration_leaks(config, evaluated, seen, what, transductive=transductive)
