"""`--dry-run`: every check that `train` makes before it starts, and the sizes of the run that are known. Nothing is sampled or written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from skill_ttrl.config import SkillTTRLConfig, SourceConfig
from skill_ttrl.data.episodes import names_of, read_episodes
from skill_ttrl.data.tasks import load_demonstrations
from skill_ttrl.envs import check_text_env, make_env, resolve_env
from skill_ttrl.errors import ModelError, SkillTTRLError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.models.model_config import load_model_config, published_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.rl.device import resolve_device
from skill_ttrl.stages.data_phases import episode_leaks
from skill_ttrl.stages.doctor.hosts import failing_hosts
from skill_ttrl.stages.doctor.memory import estimate_here, memory_advice
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
    check_length,
    check_names,
    check_states,
    refusals,
)
from skill_ttrl.stages.setup.defaults import overruled, with_defaults
from skill_ttrl.stages.setup.encode import imitated_files
from skill_ttrl.stages.setup.ranks import TooManyRanksError
from skill_ttrl.types import Task, derive_seed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PhaseSize:
    """Sizes of one phase. None: not known before the run."""

    phase: str
    steps: int | None = None
    prompts: int | None = None
    """Tasks or problems of a step; of all, in a phase without steps."""
    samples: int | None = None
    """Episodes, answers or examples in all."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """Sizes of a run, and what keeps it from starting."""

    name: str
    model: str
    parameters: int
    trainable: int
    train_tasks: int | None
    evaluated_tasks: int | None
    phases: list[PhaseSize]
    memory: dict[str, int]
    """Bytes by part, of one rank."""
    peak: int
    """Bytes on one device: ranks on a CPU share it, each GPU has one rank."""
    available: int
    """Bytes of that device."""
    ranks: int
    notes: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    """Why a run of it would not start; empty: it would."""
    exit_code: int = 0
    """With which `skillttrl train` would refuse it, or 5 where memory is too small; 0: it would not, as far as can be seen here."""


def dry_run(config: SkillTTRLConfig, *, asks_ranks: bool = False) -> DryRun:
    """Check what a run of `config` checks before it starts, and state its sizes.

    Args:
        config: The config as given.
        asks_ranks: The command line says how many ranks (`setup.ranks.check_gpus`).

    Raises:
        ModelError: the model's config can be had nowhere.
        SkillTTRLError: nothing has a name that the config calls (`check_names`).
    """
    return examine(config, asks_ranks=asks_ranks, hosts=True)


def examine(config: SkillTTRLConfig, *, asks_ranks: bool = False, hosts: bool = False) -> DryRun:
    """See `dry_run`; without `hosts` those that the config names are not asked."""
    check_names(config)
    found = look_before(config, asks_ranks=asks_ranks)
    with suppress(SkillTTRLError):  # such an environment is among the refusals
        config = with_defaults(config)
    model_config = _model(config, found)
    memory, available, note = estimate_here(config, model_config)
    found.notes[:0] = [note] if note else []
    found.refusals += failing_hosts(config) if hosts else ()
    found.attempt(check_length, config, model_config)
    found.attempt(_check_engine, config, model_config)
    # Ranks that were refused whatever their model is are not refused for their memory too.
    several = memory.device == "cpu" and any(isinstance(each, TooManyRanksError) for each in found.refusals)
    if memory.on_device > available and not several:
        largest = max(memory.phases, key=lambda name: memory.phases[name])
        found.refusals.append(
            ModelError(
                f"The run needs {memory.on_device / 1e9:.1f} GB at its peak ({largest}), and the device has {available / 1e9:.1f} GB. "
                f"{memory_advice(config, memory, largest, available)}"
            )
        )
    return DryRun(
        config.name,
        config.model.path,
        memory.parameters,
        memory.trainable,
        found.train,
        found.evaluated,
        [_phase(name, config, found) for name in (*config.phases, "evaluate")],
        dict(memory.parts),
        memory.on_device,
        available,
        memory.ranks,
        [*found.notes, *(overruled(config) if "rl" in config.phases else ())],
        [str(each).rstrip(".") for each in found.refusals],
        found.refusals[0].exit_code if found.refusals else 0,
    )


def _check_engine(config: SkillTTRLConfig, model_config: Any) -> None:
    """Raise `ConfigError` where an engine in this process cannot run the model as the config asks."""
    if not backend_facts(config).engine:
        return
    from skill_ttrl.llm.context import ModelSource
    from skill_ttrl.llm.vllm.checks import check_fits

    def nothing() -> Any:
        raise AssertionError("a dry run loads no model")

    policy = ModelSource(config.model, nothing, trains="rl" in config.phases)
    check_fits(config, policy, str(resolve_device(config.runtime.device)))


def _phase(name: str, config: SkillTTRLConfig, found: Preflight) -> PhaseSize:
    rl, rollout = config.rl, config.rollout
    if name == "collect":
        count = config.collect.episodes or (found.train or 0) * config.collect.rollouts_per_task
        return PhaseSize(name, prompts=found.train, samples=count * len(config.collect.data or [None]) or None)
    if name == "sft":
        batch = config.sft.batch_size if config.sft.batch_tokens is None else None
        return PhaseSize(name, config.sft.steps, batch, None if batch is None else config.sft.steps * batch)
    if name == "dagger":
        own = config.dagger
        return PhaseSize(name, sum(own.round_steps), own.episodes, own.rounds * own.episodes)
    if name in ("rl", "vote_sft"):
        return PhaseSize(
            name, rl.steps, rl.prompts_per_step, rl.steps * rl.prompts_per_step * rollout.n_votes_per_prompt
        )
    if name == "evaluate" and found.evaluated:
        each = config.eval.samples * (1 + len(config.eval.extra_temperatures)) + config.eval.greedy
        return PhaseSize(name, prompts=found.evaluated, samples=found.evaluated * each)
    return PhaseSize(name)


def _model(config: SkillTTRLConfig, found: Preflight) -> Any:
    """The transformers config of the model; the published one, which is noted and refused, where no file of it is reached.

    Raises:
        ModelError: it can be had nowhere.
    """
    try:
        return load_model_config(config.model)
    except ModelError:
        known = published_config(config.model.path)
        if known is None:
            raise
        found.refusals.append(
            ModelError(
                f"The model {config.model.path} is no folder here and not in the Hugging Face cache, and the hub was not reached. Allow the "
                "network, or download the model and set model.path to its folder"
            )
        )
        found.notes.append(f"the shape of {config.model.path} is the published one: its config.json was not reached")
        return known


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
