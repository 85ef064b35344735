"""`--dry-run`: the rules that `train` applies before it starts, and the sizes of the run that are known. Nothing is sampled or written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from skill_ttrl.commands.doctor import host_checks
from skill_ttrl.config import ModelConfig, SkillTTRLConfig, Source
from skill_ttrl.errors import ConfigError, EndpointError, SkillTTRLError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.models.load import count_parameters, load_model_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.train.build import make_envs
from skill_ttrl.train.defaults import with_defaults
from skill_ttrl.train.open_run import Resume
from skill_ttrl.train.rules import Rules, combined, errors_of
from skill_ttrl.train.tasks import ConfigTasks, seen_prompts
from skill_ttrl.types import Task

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


@dataclass
class DryRun:
    """Sizes of a run, and what keeps it from starting."""

    name: str
    model: str = ""
    """Size of the model; empty: none is loaded, or its config cannot be read."""
    train_tasks: int | None = None
    """Tasks to train on; None: not known, see `notes`."""
    evaluated_tasks: int | None = None
    phases: list[PhaseSize] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Unknowns, each with its reason, and leaks that the run would report."""
    obstacles: list[str] = field(default_factory=list)
    """Why a run of it would not start; empty: it would."""
    exit_code: int = 0
    """With which `skillttrl train` would refuse it; 0: it would not, as far as can be seen here."""

    @property
    def tasks(self) -> str:
        """The numbers of tasks, in words."""
        counts = ("?" if count is None else f"{count:,}" for count in (self.train_tasks, self.evaluated_tasks))
        return "{} to train on, {} to evaluate on".format(*counts)

    def refuse(self, error: SkillTTRLError) -> None:
        """Add an obstacle, once."""
        if (text := str(error).rstrip(".")) not in self.obstacles:
            self.obstacles.append(text)
            self.exit_code = self.exit_code or error.exit_code

    def attempt(self, check: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Call a check; an error that it raises is an obstacle, and the result is None."""
        try:
            return check(*args, **kwargs)
        except SkillTTRLError as error:
            self.refuse(error)
            return None


def dry_run(
    config: SkillTTRLConfig,
    *,
    output: Path | None = None,
    resume: Resume | None = None,
    asks_ranks: bool = False,
    measures: bool = False,
    hosts: bool = True,
) -> DryRun:
    """Apply the rules of a run of `config`, and state its sizes.

    Args:
        config: The config as given.
        output: The folder of the run; None: it is not looked at.
        resume: As for `commands.train.run`.
        asks_ranks: The command line says how many ranks (`Rules.asks_ranks`).
        measures: The config may be one that only measures, with a policy that is not loaded here.
        hosts: Also ask the hosts that the config names whether they are there.
    """
    found, remote = DryRun(config.name), backend_facts(config).remote
    rules = Rules(config, "sample" if measures and remote else "train", asks_ranks, output, resume)
    refused = [*rules.refusals()]
    for error in refused:
        found.refuse(error)
    if (whole := combined(refused)) is not None:
        found.exit_code = whole.exit_code
    with suppress(SkillTTRLError):  # which is among the obstacles
        config = with_defaults(config)
        _look_at_tasks(config, found)
        if not remote:
            found.model = found.attempt(_model_size, config.model) or ""
        for check in host_checks(config) if hosts and not any(type(each) is ConfigError for each in refused) else ():
            if check.status == "fail":
                found.refuse(EndpointError(f"{check.name}: {check.found}. {check.advice}".rstrip()))
    found.phases = [_size(config, found, name) for name in (*config.phases, "evaluate")]
    return found


def _model_size(model: ModelConfig) -> str:
    parameters, adapters = count_parameters(load_model_config(model), model.lora)
    trainable = adapters or parameters
    size = (4 * parameters + 12 * trainable) / 1e9  # float32; of what learns also the gradient and Adam's two moments
    return (
        f"{model.path}, {parameters:,} parameters, {trainable:,} of them trainable: weights, gradients and optimizer take up to "
        f"{size:.2g} GB; activations and the sampler come on top"
    )


class TakesLongError(SkillTTRLError):
    """Tasks could only be counted after work that takes long."""


class AtOnce(SilentProgress):
    """Leaves where work begins that takes long."""

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Raise `TakesLongError` instead of starting the phase."""
        raise TakesLongError(f"{total:,} {unit}s would have to be read or made")


def _size(config: SkillTTRLConfig, found: DryRun, name: str) -> PhaseSize:
    tasks, measured, rl, sft, own = found.train_tasks, found.evaluated_tasks, config.rl, config.sft, config.dagger
    if name == "collect":
        count = config.collect.episodes or (tasks or 0) * config.collect.rollouts_per_task
        return PhaseSize(name, prompts=tasks, samples=count * len(config.collect.data or [None]) or None)
    if name == "sft":
        batch = sft.batch_size if sft.batch_tokens is None else None
        return PhaseSize(name, sft.steps, batch, batch and sft.steps * batch)
    if name == "dagger":
        return PhaseSize(name, sum(own.round_steps), own.episodes, own.rounds * own.episodes)
    if name in ("rl", "vote_sft"):
        samples = rl.steps * rl.prompts_per_step * config.rollout.n_votes_per_prompt
        return PhaseSize(name, rl.steps, rl.prompts_per_step, samples)
    if name == "evaluate" and measured:
        each = config.eval.samples * (1 + len(config.eval.extra_temperatures)) + config.eval.greedy
        return PhaseSize(name, prompts=measured, samples=measured * each)
    return PhaseSize(name)


def _look_at_tasks(config: SkillTTRLConfig, found: DryRun) -> None:
    """Look at the tasks that are trained and evaluated on, and at the environment with the first of them."""
    data, env, tasks = config.data, config.env, ConfigTasks(config, AtOnce())

    def count(
        read: Callable[[], list[Task]], source: Source | None, split: str, limit: int | None
    ) -> list[Task] | None:
        """The tasks as the run would take them; None where that takes long, which is noted."""
        if source is not None and source.path.startswith("hf:"):
            found.notes.append(f"the number of tasks in {source.path} is not known before it is fetched")
            return None
        try:
            return read()
        except TakesLongError as slow:
            if limit is None:
                found.notes.append(f"the number of tasks of {env.id} in the split {split} is not known: {slow} first")
            return None

    split = env.train_split if data.train is None else "train"
    train = evaluated = found.attempt(count, tasks.training, config.train_source, split, env.train_tasks)
    if data.held_out:
        place = (config.eval_source, config.evaluation_split, env.eval_tasks)
        evaluated = found.attempt(count, tasks.evaluated, *place)
    found.train_tasks, found.evaluated_tasks = (None if each is None else len(each) for each in (train, evaluated))
    known = [*(train or ()), *(evaluated or ())]
    envs = found.attempt(make_envs, env, config.agent, known) if known else None
    for error in errors_of(Rules(config).of_tasks(train, envs)):
        found.refuse(error)
    if envs is not None:
        envs.close()
    if evaluated is None:
        return
    if data.held_out and train is not None:
        found.notes += found.attempt(tasks.leaks, train, evaluated) or []
    found.notes += found.attempt(_imitated, ConfigTasks(config), evaluated) or []


def _imitated(tasks: ConfigTasks, evaluated: list[Task]) -> list[str]:
    """Lines the run would report on demonstrations of tasks that it is measured on."""
    config, notes = tasks.config, list[str]()
    data, files = config.demonstration_source, config.demonstrations.trajectories
    imitated = config.imitates and data is None
    # Those that are collected are of training tasks.
    if files and "collect" not in config.phases and (imitated or "distill" in config.phases):
        notes += tasks.episode_leaks(evaluated if imitated or config.data.held_out else [])
    if config.imitates and data is not None and not data.path.startswith("hf:"):
        seen = seen_prompts(each.prompt for each in tasks.demonstrations(data))
        notes += tasks.keep_apart(evaluated, seen, f"sft.data ({data.name})")
    return notes
