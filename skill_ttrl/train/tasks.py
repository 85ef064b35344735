"""The tasks that a run trains on and is measured on: which they are, the exact version of their data, and leaks between the two.

Tasks are compared by what they state, as plain text (`plain`): a trailing space, other case, full-width digits or invisible
characters make no new task. Tasks of an environment that state nothing are compared by what it shows first. A leak is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import skill_ttrl
from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.config import (
    BUILTIN,
    DataConfig,
    EnvConfig,
    ModelConfig,
    SkillsConfig,
    SkillTTRLConfig,
    Source,
    load_config,
)
from skill_ttrl.config.rl import COPY
from skill_ttrl.data.episodes import names_of, read_episodes
from skill_ttrl.data.families import Demonstration
from skill_ttrl.data.records import FILE_HASH, read_source
from skill_ttrl.data.tasks import CHECK, MATH_ENV_ID, load_demonstrations, load_tasks, system_message
from skill_ttrl.envs import env_tasks, make_env, resolve_env
from skill_ttrl.envs.lookup import refuse_split, split_argument, spread
from skill_ttrl.envs.text_env import close_env
from skill_ttrl.errors import (
    ConfigError,
    DataError,
    EnvError,
    ModelError,
    SplitError,
    TrustError,
    annotate_error,
    did_you_mean,
)
from skill_ttrl.llm.backend import TokenCounter
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.models.gguf import is_gguf
from skill_ttrl.progress import OPENING, Counting, Progress, SilentProgress, telling_warnings
from skill_ttrl.prompts.templates import document_revision
from skill_ttrl.rollout.episode import TextEnvironment
from skill_ttrl.runs.checkpoint import MANIFEST
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.signals import FAILURES
from skill_ttrl.skills.embedders import hub_commit
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.skills.retrieval import check_packages
from skill_ttrl.types import Task, Trajectory, derive_seed, to_json
from skill_ttrl.voting.rewards import MODEL_REWARD

_SPLITS = "A run trains on env.train_split and evaluates on env.eval_split."


@dataclass(frozen=True)
class ConfigTasks:
    """The tasks that a config names: to train on, to measure on, and which of them are the same."""

    config: SkillTTRLConfig
    progress: Progress = field(default_factory=SilentProgress)

    def read(self, source: Source | None, split: str, limit: int | None = None) -> list[Task]:
        """The tasks of a source, or the environment's own where there is none; of these `limit`, spread over all (`envs.lookup.spread`).

        Raises:
            DataError: there are none, or they cannot be read; or they bring a system message that the config does not mention.
        """
        config, progress = self.config, self.progress
        env_id = resolve_env(config.env.id)
        if source is not None:
            tasks = load_tasks(source, env_id, split=split)
            if config.agent.system is None and (system := system_message(source)) is not None:
                found = f"The conversations of {source.path} begin with a system message"
                if "system" not in config.agent.model_fields_set:
                    raise DataError(
                        f"{found}. Set agent.system={json.dumps(system)}, or agent.system=null to leave it out."
                    )
                progress.notice(f"{found}, which is left out (agent.system=null).", warning=True)
            unknown = sum(task.ground_truth is None for task in tasks)
            if 0 < unknown < len(tasks):
                progress.notice(
                    f"{unknown} of {len(tasks)} problems in {source.path} have no answer. Accuracy is measured only if all have one.",
                    warning=True,
                )
        else:
            with annotate_error(SplitError, _SPLITS):
                tasks = env_tasks(env_id, config.env.kwargs, split, limit, Counting(progress, OPENING, "item"))
        if not tasks:
            raise DataError(f"There are no {split} tasks in {source.path if source else env_id}.")
        return tasks

    def training(self, *, pinned: bool = False) -> list[Task]:
        """The tasks to train on: those of `data.train`, or `env.train_tasks` of those of `env.train_split`.

        Args:
            pinned: Read the very version of `data.train` that the config has pinned.

        Raises:
            DataError, EnvError: there are none, or they cannot be read.
        """
        source = self.config.train_source
        split = self.config.env.train_split if source is None else "train"
        return self.read(pinned_source(source) if pinned else source, split, self.config.env.train_tasks)

    def evaluated(self) -> list[Task]:
        """The tasks of the evaluation, where they are others than those to train on (`data.held_out`)."""
        config = self.config
        return self.read(config.eval_source, config.evaluation_split, config.env.eval_tasks)

    @property
    def names(self) -> tuple[str, str]:
        """Names of the tasks that a run trains on and of those that it is measured on, for tables."""
        config = self.config

        def name(source: Source | None, usual: str, split: str) -> str:
            if source is None:
                return f"{config.env.id} ({split})"
            part = source.split or (usual if source.path.startswith("synthetic:") else "")
            return f"{source.path} ({part})" if part else source.path

        train = name(config.train_source, "train", config.env.train_split)
        return train, name(config.eval_source, "test", config.env.eval_split) if config.data.held_out else train

    def selection(self) -> TaskSelection:
        """Select the tasks that the collect phase of a run plays: tasks that the run trains on.

        Raises:
            ConfigError: they come from files.
            EnvError: there is no such environment, or its arguments name a split.
        """
        asked, env = self.config.collect, self.config.env
        if self.config.data.train is not None:
            raise ConfigError(
                "The phase collect plays the environment's training tasks (env.train_split), but data.train names other tasks. Remove "
                "one of the two."
            )
        rollouts, subset = asked.rollouts_per_task, env.train_tasks
        selection = TaskSelection(
            env.id, env.train_split, episodes=asked.episodes, rollouts_per_task=rollouts, subset_size=subset
        )
        return selection.made(env.kwargs)

    def hold_out(self, train: Sequence[Task], evaluated: Sequence[Task]) -> tuple[list[Task], list[Task]]:
        """Split the tasks to train on from those of the gate; the latter are none where there is no gate.

        Args:
            train: all training tasks.
            evaluated: those of the evaluation.

        Raises:
            ConfigError: too few tasks.
            DataError: the gate's own tasks cannot be read, or are those of the evaluation.
        """
        gate = self.config.gate
        if gate is None:
            return [*train], []
        if gate.data is None:
            return split_tasks(train, gate.tasks, self.config.seed)
        tasks = self.read(self.config.data.source(gate.data), "train")[: gate.tasks]
        self.keep_apart(evaluated, seen_tasks(tasks), "skills.gate.data")
        held_out = {task_content(task) for task in tasks}
        return [task for task in train if task_content(task) not in held_out], tasks

    def learned_from(self) -> Seen:
        """Tasks and prompts that a run of this config learned from, and those of the checkpoint that it began with.

        Raises:
            DataError, EnvError: its data cannot be read any more.
        """
        config, found = self.config, seen_tasks(self.training(pinned=True))
        source = pinned_source(config.demonstration_source)
        if config.imitates and source is not None:
            found |= seen_prompts(shown.prompt for shown in self.demonstrations(source))
        elif config.imitates and config.demonstrations.trajectories is not None:
            found |= seen_tasks(episode.task for episode in read_episodes(config.demonstrations.trajectories))
        began = run_of(config.model.path)
        return found if began is None else found | ConfigTasks.of_run(began).learned_from()

    @classmethod
    def of_run(cls, run: Path) -> ConfigTasks:
        """The tasks of a run's config."""
        return cls(load_config(run / "config.yaml"))

    def leaks(self, train: Sequence[Task], evaluated: Sequence[Task]) -> list[str]:
        """Refuse held-out tasks that this run, or the run its weights come from, learns from; return notes on what cannot be checked.

        Raises:
            DataError: there are some.
        """
        config = self.config
        where = "data.train" if config.data.train is not None else f"env.train_split ({config.env.train_split})"
        self.keep_apart(evaluated, seen_tasks(train), where)
        began = run_of(config.model.path)
        if began is None:
            return []
        try:
            seen = ConfigTasks.of_run(began).learned_from()
        except (DataError, EnvError, TrustError) as error:
            return [f"The training data of {config.model.path} can no longer be read ({error})."]
        return self.keep_apart(evaluated, seen, f"what {began} was trained on (model.path)")

    def demonstrations(self, source: Source) -> list[Demonstration]:
        """The demonstrations of a source.

        Raises:
            DataError: there are none, or they cannot be read, or none of a math problem has an answer that a vote can read.
        """
        env, seed = self.config.env, derive_seed(self.config.seed, "demonstrations")
        shown = load_demonstrations(source, seed=seed)
        if not shown:
            raise DataError(f"{source.name} holds no demonstrations.")
        # A family knows what it teaches: some parts of `operators` teach words alone.
        if not source.path.startswith("synthetic:") and resolve_env(env.id) == MATH_ENV_ID:
            parser = OutputParser(last_number=bool(env.kwargs.get("last_number")))
            if not any(parser.parse(each.response).answer for each in shown):
                raise DataError(
                    f"0 of {len(shown):,} demonstrations in {source.path} contain an answer; write \\boxed{{63}} or <answer>63</answer>, or "
                    "set env.kwargs.last_number=true if their last number is the answer."
                )
        return shown

    def episode_leaks(self, measured: Sequence[Task]) -> list[str]:
        """`keep_apart` for the episodes that the config names, all of them of tasks for training."""
        files = self.config.demonstrations.trajectories
        assert files is not None  # a rule
        what = f"demonstrations.trajectories ({names_of(files)})"
        episodes = of_training(read_episodes(files), self.config.training_splits, what)
        return self.keep_apart(measured, seen_tasks(episode.task for episode in episodes), what)

    def keep_apart(self, measured: Sequence[Task], seen: Seen, what: str) -> list[str]:
        """Refuse held-out tasks that are learned from; on training tasks, return lines for the summary.

        Args:
            measured: tasks of the evaluation.
            seen: what is learned from.
            what: where `seen` is from, for the message.

        Raises:
            DataError: held-out tasks are learned from.
        """
        with first_words(self.config.env, self.config.seed) as first:
            shared = [task for task in measured if seen.holds(task, first)]
        if not shared:
            return []
        data, split = self.config.data, self.config.env.eval_split
        own = "data.train" if data.train is not None else f"env.eval_split ({split})"
        name = "data.eval" if data.eval is not None else own
        found = (
            f"{len(shared):,} of the {len(measured):,} tasks of {name} are also in {what}, first {named(shared[0])}."
        )
        if data.held_out:
            raise DataError(f"{found} {WAYS}")
        return [f"{found} They are training tasks, but their answers are learned, so this is not label-free."]


def prompt_lengths(tasks: Sequence[Task], counter: TokenCounter, agent: Agent) -> list[int | None]:
    """Tokens of each task's prompt, without skills; None where the task does not state its question."""
    asked = [task.options.get("question") for task in tasks]
    return [counter.count(agent.prompt(AgentInput(each)).messages) if isinstance(each, str) else None for each in asked]


def among_examples(tasks: Sequence[Task], agent: Agent) -> list[str]:
    """A warning where some tasks stand among the solved examples of their own prompt."""
    own = []
    for task in tasks:
        if isinstance(question := task.options.get("question"), str) and (bare := question.strip()):
            text = "\0".join(each.content for each in agent.prompt(AgentInput(question)).messages)
            if text.count(bare) > 1 and len(re.findall(rf"(?<!\w){re.escape(bare)}(?!\w)", text)) > 1:
                own.append(task)
    if len(own) in (0, len(tasks)):  # all: the template states the question twice
        return []
    return [
        f"{len(own)} of {len(tasks)} problems stand among the examples of their own prompt (agent.template), first {named(own[0])}: they "
        "measure no learning. Take other examples."
    ]


def fit_prompts(
    tasks: Sequence[Task], config: DataConfig, counter: TokenCounter, agent: Agent, progress: Progress
) -> list[Task]:
    """Tasks whose prompt fits `max_prompt_tokens`; longer ones are left out.

    Only tasks that state their question can be looked at beforehand; others pass. Skills have a budget of their own and
    are not counted here.
    """
    lengths_N = [tokens or 0 for tokens in prompt_lengths(tasks, counter, agent)]  # 0: not known
    long = [tokens for tokens in lengths_N if tokens > config.max_prompt_tokens]
    fitting = [task for task, tokens in zip(tasks, lengths_N, strict=True) if tokens <= config.max_prompt_tokens]
    if long:
        least, most = min(long), max(long)
        lengths = f"{most}" if least == most else f"{least} to {most}"
        progress.notice(
            f"{len(long)} of {len(tasks)} prompts are longer than {config.max_prompt_tokens} tokens (they have {lengths}) and were "
            "left out (data.max_prompt_tokens).",
            warning=True,
        )
    for text in among_examples(tasks, agent):
        progress.notice(text, warning=True)
    if not fitting:
        raise DataError(
            f"No prompt of {len(tasks)} fits data.max_prompt_tokens={config.max_prompt_tokens}: they have {lengths} tokens. Set "
            f"data.max_prompt_tokens={most}."
        )
    return fitting


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
    left = [task for place, task in enumerate(tasks) if place not in held_out]
    return left, [tasks[place].without_ground_truth() for place in drawn]


FOLDER_DIGEST = "blocks:"
_BLOCKS, _BLOCK = 64, 1 << 20
"""A weight file is recognised by its size and so many blocks of so many bytes, spread over it evenly."""


def pin_revisions(config: SkillTTRLConfig, saved: SkillTTRLConfig | None = None) -> SkillTTRLConfig:
    """The config with every revision that can be known filled in; `saved`: the same config at the start of its run, which has pinned them.

    Raises:
        DataError: a data set cannot be read, or a file's content is not the pinned one.
        ModelError: a hub model cannot be found, or a reward model is not the pinned one.
    """
    if saved is not None:
        config = config.model_copy(deep=True)
        config.model.revision = saved.model.revision
        if config.skills is not None and saved.skills is not None:
            config.skills.embedder_revision = saved.skills.embedder_revision
        config.data.revisions = {**saved.data.revisions}
    pinned, found = pin_policy(config), dict[str, str | None]()
    if config.reinforces and config.rl.reward.startswith(MODEL_REWARD):
        name = config.rl.reward.removeprefix(MODEL_REWARD)
        found[name] = _reward_revision(name, config.data.revisions.get(name))
    critic = pinned.rl.critic if config.reinforces else None
    if critic is not None and critic.model is not None and critic.model != COPY:
        asked = config.data.revisions.get(critic.model)
        found[critic.model] = _model_revision(ModelConfig(path=critic.model, revision=asked))
    gate = None if config.skills is None or config.skills.gate is None else config.data.source(config.skills.gate.data)
    sources = (config.train_source, config.eval_source, config.demonstration_source, gate)
    found |= {source.name: data_revision(source) for source in sources if source is not None}
    pinned.data.revisions |= {name: revision for name, revision in found.items() if revision is not None}
    return pinned


def pin_policy(config: SkillTTRLConfig, *, use_bank: bool = True) -> SkillTTRLConfig:
    """The config with the revisions of its model, its document and, where `use_bank`, of the embedder of its skills.

    Raises:
        ModelError: a hub model cannot be found.
        DocumentError: the document cannot be read, or is not the pinned one.
    """
    pinned = config.model_copy(deep=True)
    if (document := config.agent.document) is not None:
        pinned.data.revisions[document] = document_revision(document, config.data.revisions.get(document))
    if not backend_facts(config).remote:
        pinned.model.revision = _model_revision(config.model)
    if use_bank and pinned.skills is not None:
        pinned.skills.embedder_revision = _embedder_revision(pinned.skills)
    return pinned


def _model_revision(model: ModelConfig) -> str | None:
    if model.path == BUILTIN or is_gguf(model.path) or Path(model.path).is_dir():
        return model.revision
    from skill_ttrl.llm.models.load import hub_revision

    return hub_revision(model)


def _reward_revision(path: str, asked: str | None) -> str | None:
    """The exact version of a reward model: the commit of a hub's, a digest of a folder's files."""
    if not Path(path).is_dir():
        try:
            return _model_revision(ModelConfig(path=path, revision=asked))
        except ModelError as error:
            raise ModelError(f"Cannot load the reward model of rl.reward={MODEL_REWARD}{path}. {error}") from None
    found = f"{FOLDER_DIGEST}{folder_digest(Path(path))}"
    if asked is not None and asked != found:
        raise ModelError(
            f"The reward model in {path} has changed since this run started: its files are {found}, the config pins {asked}. "
            "Restore the folder, or start a new run."
        )
    return found


def folder_digest(folder: Path) -> str:
    """A digest of a model's files that reads a part of the large ones only; notes and hidden files do not count."""
    digest = hashlib.sha256()
    for file in sorted(entry for entry in folder.iterdir() if entry.is_file()):
        if file.suffix == ".md" or file.name.startswith("."):
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        step = max(_BLOCK, (size - _BLOCK) // (_BLOCKS - 1))
        with file.open("rb") as stream:
            for start in range(0, size, step):
                stream.seek(start)
                digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def _embedder_revision(skills: SkillsConfig) -> str | None:
    """Commit of a hub model; another embedder, or a folder, has its fingerprint in the bank's index."""
    hub = skills.embedder == "sentence-transformers" and not Path(skills.embedder_model).expanduser().is_dir()
    if not hub or not skills.embeds:
        return skills.embedder_revision
    check_packages(skills)
    try:
        return hub_commit(skills.embedder_model, skills.embedder_revision)
    except OSError as error:
        raise ModelError(
            f"Cannot find the embedder {skills.embedder_model!r}: {str(error).partition(chr(10))[0]} Name a folder in "
            "skills.embedder_model, or set skills.embedder=hash, which needs no download."
        ) from None


def data_revision(source: Source) -> str | None:
    """The exact version that a source reads now: the hash of a file, the commit of a hub data set; None of a family.

    Raises:
        DataError: it cannot be read, or a file's content is not the pinned one.
    """
    asked = source.revision
    if source.path.startswith("synthetic:"):
        return asked
    found = read_source(source, limit=1).revision
    if asked is not None and asked.startswith(FILE_HASH) and found != asked:
        raise DataError(
            f"{source.name} has changed since this run started: its content is {found}, the config pins {asked}. Restore the file, or "
            "start a new run."
        )
    return found or asked


def pinned_source(source: Source | None) -> Source | None:
    """A source with its revision; None where there is none.

    Raises:
        DataError: see `data_revision`.
    """
    return None if source is None else source.model_copy(update={"revision": data_revision(source)})


WAYS = (
    "Evaluation tasks must not be learned from. Use other data (without data.eval a run evaluates on its training tasks, "
    "as TTRL does)."
)
SHOWN = 60
"""Most characters of a prompt that a refusal shows."""
_SPACES = re.compile(r"\s+")
_NO_WORDS = re.compile(r"(?<!\w) | (?!\w)")

First = Callable[[Task], str | None]
"""The first observation of a task; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Tasks and prompts that were learned from."""

    contents: frozenset[str] = frozenset()
    """Tasks (`task_content`)."""
    texts: frozenset[str] = frozenset()
    """Prompts of demonstrations, as plain text."""

    def __or__(self, other: Seen) -> Seen:
        return Seen(self.contents | other.contents, self.texts | other.texts)

    def holds(self, task: Task, first: First) -> bool:
        """True where this task was learned from; `first` is asked only where it must be."""
        if task_content(task) in self.contents:
            return True
        if not self.texts:
            return False
        text = _question(task) or first(task)
        return text is not None and plain(text) in self.texts


def plain(text: str) -> str:
    """A text without what hides that it is the same: Unicode's NFKC, case-folded, without format characters, variation selectors
    and all white space but one space between two words. It takes time in proportion to the text.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        text = "".join(sign for sign in text if unicodedata.category(sign) != "Cf" and not "\ufe00" <= sign <= "\ufe0f")
    return _NO_WORDS.sub("", _SPACES.sub(" ", text.casefold()).strip())


def task_content(task: Task) -> str:
    """A key that two tasks share where they are the same: what they state; ids are often mere numbers that start again in each file."""
    if not task.options and task.seed is None:
        return task.id
    stated = {name: value for name, value in task.options.items() if name != CHECK}
    return json.dumps([_plain(stated), task.seed], sort_keys=True, default=str)


def seen_tasks(tasks: Iterable[Task]) -> Seen:
    """These tasks, as learned from."""
    return Seen(frozenset(map(task_content, tasks)))


def seen_prompts(prompts: Iterable[str]) -> Seen:
    """Demonstrations with these prompts, as learned from."""
    return Seen(texts=frozenset(map(plain, prompts)))


def run_of(model: str) -> Path | None:
    """The run that a model is a checkpoint of; None for any other."""
    run = Path(model).resolve().parent.parent
    return run if (Path(model) / MANIFEST).is_file() and RunFolder.exists(run) else None


@contextmanager
def first_words(config: EnvConfig, seed: int) -> Iterator[First]:
    """The first observation of a task in the environment of a config, as a run's episodes begin; None where it fails, as they will say.

    It is an environment of its own, made when it is first asked, so that what is asked leaves no trace in the episodes of a run.
    """
    made: list[TextEnvironment] = []

    def first(task: Task) -> str | None:
        own_seed = derive_seed(seed, "env", task.id) if task.seed is None else task.seed
        try:
            if not made:
                made.append(make_env(config.id, **config.kwargs))
            found, _ = made[0].reset(seed=own_seed, options=dict(task.options))
        except FAILURES:
            return None
        return found if isinstance(found, str) else None

    try:
        yield first
    finally:
        for env in made:
            close_env(env)


def of_training(episodes: Iterable[Trajectory], splits: Collection[str], what: str) -> Iterator[Trajectory]:
    """The episodes, one by one.

    Args:
        episodes: what is learned from.
        splits: those that may be learned from (`training_splits`).
        what: where the episodes are from, for the message.

    Raises:
        DataError: after the last one, if some are of tasks that are not for training; it counts those of each split.
    """
    found: dict[str, list[str]] = {}
    for episode in episodes:
        if episode.task.split not in splits:
            found.setdefault(episode.task.split, []).append(episode.task.id)
        yield episode
    if found:
        counts = (f"{len(ids):,} of the split {split!r} (first: task {ids[0]!r})" for split, ids in found.items())
        raise DataError(
            f"{what} holds episodes of tasks that are not for training: {', '.join(counts)}. Training uses "
            f"{', '.join(sorted(splits))} only; env.train_split names another split. {WAYS}"
        )


def _question(task: Task) -> str | None:
    question = task.options.get("question")
    return question if isinstance(question, str) else None


def named(task: Task) -> str:
    """The task by the beginning of what it states, since ids may be made up; by its id alone where it states nothing."""
    question = _question(task)
    if question is None:
        return repr(task.id)
    text = escape_terminal(" ".join(question.split()))
    return f'"{text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"}" (task {task.id!r})'


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


Unit = tuple[Task, int]
"""A task, and the index of the rollout of it."""


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """Tasks of an environment, and how often each is played."""

    env: str
    """Short name, Gymnasium id, or `module:EnvId-v0`."""
    split: str = "train"
    """Part of the environment's tasks."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment; its split is added where it takes one (`made`)."""
    types: Sequence[str] = ()
    """Only tasks of these types; empty: all."""
    episodes: int | None = None
    """So many, of tasks that are spread over the split and its types (`envs.lookup.spread`); None: `rollouts_per_task` of every task."""
    rollouts_per_task: int = 1
    """Episodes of each task; they begin alike."""
    subset_size: int | None = None
    """Only of so many tasks, spread over the split: those that a run trains on; None: all."""

    def made(self, kwargs: Mapping[str, Any]) -> TaskSelection:
        """The same tasks of an environment that is made with `kwargs`, to which the split is added.

        Raises:
            EnvError: there is a split among the arguments too.
        """
        refuse_split(kwargs)
        return replace(self, kwargs={**kwargs, **split_argument(self.env, self.split)})

    def units(self, progress: Progress) -> list[Unit]:
        """Rollouts in order: all rollouts of a task before the next one.

        Raises:
            ConfigError: a number is below 1.
            EnvError: there is no such environment, split or type.
        """
        for name, value in (("episodes", self.episodes), ("rollouts_per_task", self.rollouts_per_task)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, found {value}.")
        most = None if self.episodes is None else -(-self.episodes // self.rollouts_per_task)
        whole = not self.types and self.subset_size is None
        with telling_warnings(progress):
            counting = Counting(progress, OPENING, "item")
            tasks = env_tasks(self.env, self.kwargs, self.split, most if whole else self.subset_size, counting)
        known = {task.task_type for task in tasks}
        for kind in self.types:
            if kind not in known:
                raise EnvError(
                    f"{self.env} has no tasks of type {kind!r} in the split {self.split!r}.{did_you_mean(kind, known - {''})}"
                )
        if not whole:
            tasks = spread([task for task in tasks if not self.types or task.task_type in self.types], most)
        if most is not None and len(tasks) < most:
            progress.notice(
                f"{self.split} has only {len(tasks):,} tasks, so {len(tasks) * self.rollouts_per_task:,} episodes are played instead of "
                f"{self.episodes:,}. To play each task more often: --rollouts-per-task (collect.rollouts_per_task)."
            )
        return [(task, attempt) for task in tasks for attempt in range(self.rollouts_per_task)][: self.episodes]

    def made_with(self, units: Sequence[Unit], agent: str, seed: int) -> dict[str, Any]:
        """All that decides which lines a collection has, except what matters of the agent apart from its name."""
        digest = hashlib.blake2b(digest_size=16)
        for task, attempt in units:
            digest.update(f"{attempt} {to_json(task)}\n".encode())
        return {
            "env": resolve_env(self.env),
            "kwargs": json.loads(json.dumps(self.kwargs, default=str)),
            "agent": agent,
            "split": self.split,
            "types": sorted(self.types),
            "rollouts_per_task": self.rollouts_per_task,
            "seed": seed,
            "episodes": len(units),
            "tasks": digest.hexdigest(),
            "skill_ttrl": skill_ttrl.__version__,
        }
