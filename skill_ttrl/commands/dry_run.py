"""`--dry-run`: the rules that `train` applies before it starts, and what is known of its data, its sizes and its memory.

Nothing is sampled or written, and no weights are read: of a model its config and its tokenizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from skill_ttrl.answers import correct, extract, verdict
from skill_ttrl.commands.doctor import host_checks
from skill_ttrl.config import BUILTIN, SkillTTRLConfig, Source
from skill_ttrl.data.records import read_source
from skill_ttrl.data.tasks import ANSWERS, find_family
from skill_ttrl.errors import ConfigError, EndpointError, ModelError, SkillTTRLError
from skill_ttrl.llm.backend import TokenCounter
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.chat import TokenizerMixin
from skill_ttrl.llm.models.load import count_parameters, load_model_config
from skill_ttrl.progress import SILENT, NoticeCollector
from skill_ttrl.rl.memory import Memory, estimate_memory
from skill_ttrl.sanitize import one_line
from skill_ttrl.train.build import PolicyLoader, make_agent, make_envs
from skill_ttrl.train.defaults import with_defaults
from skill_ttrl.train.open_run import Resume
from skill_ttrl.train.rules import Rules, combined, errors_of
from skill_ttrl.train.tasks import SHOWN, ConfigTasks, among_examples, fit_prompts, prompt_lengths, seen_prompts
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


@dataclass(frozen=True, slots=True)
class DataFacts:
    """Facts about the problems that a run trains or is evaluated on."""

    use: str
    """`train` or `evaluate`."""
    problems: int
    answers: int
    """Problems that have a true answer."""
    kinds: dict[str, int]
    """Answers by how they are compared: as a number, as an expression (symbolic), or as a text."""
    unread: list[str]
    """Place and text of each answer that is read as another one where a model says "The answer is" before it."""
    missing: list[str] = field(default_factory=list)
    """Places of the problems without an answer, where others have one."""
    prompt_tokens: tuple[int, int, int] | None = None
    """Fewest, median and most tokens of a prompt, with the agent's template; None: not known."""
    too_long: int = 0
    """Prompts above `data.max_prompt_tokens`, which the run leaves out."""


@dataclass
class DryRun:
    """Sizes of a run, and what keeps it from starting."""

    name: str
    model: str = ""
    """Size of the model; empty: none is loaded, or its config cannot be read."""
    train_tasks: int | None = None
    """Tasks to train on; None: not known, see `notes`."""
    evaluated_tasks: int | None = None
    data: list[DataFacts] = field(default_factory=list)
    """Of the tasks that are known, where they are problems."""
    prompt_limit: int = 0
    """`data.max_prompt_tokens`."""
    positions: int | None = None
    """Tokens that the model can take; None: not known."""
    samples: int = 0
    """Episodes or answers that are sampled in all, as far as is known, with all evaluations."""
    memory: Memory | None = None
    """Estimate of the peak; None: no model is loaded here."""
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
        found.prompt_limit = config.data.max_prompt_tokens
        loads = not remote and not any(type(each) is ModelError for each in refused)
        _look_at_tasks(config, found, found.attempt(_counter, config) if loads else None)
        if loads:
            found.attempt(_look_at_model, config, found)
        for check in host_checks(config) if hosts and not any(type(each) is ConfigError for each in refused) else ():
            if check.status == "fail":
                found.refuse(EndpointError(f"{check.name}: {check.found}. {check.advice}".rstrip()))
    found.phases = [_size(config, found, name) for name in (*config.phases, "evaluate")]
    often = {"sft": 0, "evaluate": 2 + (config.rl.steps // config.rl.eval_steps if config.rl.eval_steps else 0)}
    found.samples = sum((each.samples or 0) * often.get(each.phase, 1) for each in found.phases)
    return found


class _Counter(TokenizerMixin):
    """Counts tokens as a backend with this tokenizer does."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer


def _counter(config: SkillTTRLConfig) -> TokenCounter | None:
    """The tokenizer of the run; None where it would be made of data that are not fetched here."""
    shown = config.demonstration_source
    fetched = config.model.path == BUILTIN and shown is not None and shown.path.startswith("hf:")
    return None if fetched else _Counter(PolicyLoader(config).tokenizer())


def _look_at_model(config: SkillTTRLConfig, found: DryRun) -> None:
    model, described = config.model, load_model_config(config.model)
    parameters, adapters = count_parameters(described, model.lora)
    trainable, limit = adapters or parameters, found.prompt_limit
    found.positions = getattr(described.get_text_config(), "max_position_embeddings", None)
    found.model = f"{model.path}, {parameters:,} parameters, {trainable:,} of them trainable"
    longest = max((min(each.prompt_tokens[2], limit) for each in found.data if each.prompt_tokens), default=limit)
    longest = longest if config.agent.max_turns == 1 else limit
    rows = (found.evaluated_tasks or 0) * config.eval.samples
    with suppress(AttributeError):  # an architecture without attention heads: there is no estimate
        found.memory = estimate_memory(config, described, parameters, trainable, prompt_tokens=longest, measured=rows)


class TakesLongError(SkillTTRLError):
    """Tasks could only be counted after work that takes long."""


class AtOnce(NoticeCollector):
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


def _look_at_tasks(config: SkillTTRLConfig, found: DryRun, counter: TokenCounter | None) -> None:
    """Look at the tasks that are trained and evaluated on, and at the environment with the first of them."""
    data, env, tasks = config.data, config.env, ConfigTasks(config, at_once := AtOnce())

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
    found.notes += [text for text, _ in at_once.notices]
    found.train_tasks, found.evaluated_tasks = (None if each is None else len(each) for each in (train, evaluated))
    known = [*(train or ()), *(evaluated or ())]
    envs = found.attempt(make_envs, env, config.agent, known) if known else None
    for error in errors_of(Rules(config).of_tasks(train, envs)):
        found.refuse(error)
    if envs is not None:
        agent = None if counter is None else found.attempt(make_agent, config, counter, envs.schemas)
        envs.close()
        read = {"train": (config.train_source, train), "evaluate": (config.eval_source, evaluated)}
        for use, (source, tasks_N) in read.items():
            if tasks_N and "question" in tasks_N[0].options and (use == "train" or data.held_out):
                lengths: list[int] = []
                if counter is not None and agent is not None:
                    lengths = [each for each in prompt_lengths(tasks_N, counter, agent) if each is not None]
                    found.notes += among_examples(tasks_N, agent)
                found.data.append(facts := _facts(use, source, tasks_N, lengths, data.max_prompt_tokens))
                if facts.too_long == facts.problems:
                    found.attempt(fit_prompts, tasks_N, data, counter, agent, SILENT)
    if found.data and not found.data[-1].answers:
        found.notes.append("no problem to evaluate on has an answer: agreement is measured, and no accuracy")
    if evaluated is None:
        return
    if data.held_out and train is not None:
        found.notes += found.attempt(tasks.leaks, train, evaluated) or []
    found.notes += found.attempt(_imitated, ConfigTasks(config), evaluated) or []


def _facts(use: str, source: Source | None, tasks: Sequence[Task], lengths: Sequence[int], limit: int) -> DataFacts:
    """Facts about the tasks, whose prompts have these lengths."""
    from_file = source is not None and find_family(source) is None
    places = read_source(source).places if source is not None and from_file else [task.id for task in tasks]
    truths = [task.ground_truth for task in tasks]
    said = [None if each is None else extract(f"The answer is {each}\n") for each in truths]
    read = zip(places, truths, said, correct([*zip(said, truths, strict=True)]), strict=True)
    unread = [
        f"{place}: {one_line(truth, SHOWN)} (read: {one_line(found or 'nothing', SHOWN)})"
        for place, truth, found, same in read
        if truth is not None and not same
    ]
    missing = [place for place, truth in zip(places, truths, strict=True) if truth is None] if any(truths) else []
    kinds = Counter(str(result.rule) for each in truths if (result := verdict(each)) is not None)
    answers = sum(task.ground_truth is not None or ANSWERS in task.options for task in tasks)
    span = (min(lengths), round(median(lengths)), max(lengths)) if lengths else None
    return DataFacts(
        use, len(tasks), answers, dict(kinds), unread, missing, span, sum(each > limit for each in lengths)
    )


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
