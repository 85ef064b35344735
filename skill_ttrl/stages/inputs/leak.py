"""One check that nothing is learned from what is measured on, for every command that learns.

Tasks are compared by what they state, as plain text (`plain`): a trailing space, other case, full-width digits or invisible
characters make no new task. Tasks of an environment that state nothing are compared by what it shows first. A leak
is refused.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.data.tasks import CHECK, load_demonstrations
from skill_ttrl.envs import make_env
from skill_ttrl.envs.text_env import close_env
from skill_ttrl.errors import DataError
from skill_ttrl.rollout.env_pool import TextEnvironment
from skill_ttrl.runs.checkpoint import MANIFEST
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.signals import FAILURES, pass_signals
from skill_ttrl.stages.inputs.pin import pinned_source
from skill_ttrl.types import Task, Trajectory, derive_seed

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


def seen_by_run(config: SkillTTRLConfig, training: Callable[[SkillTTRLConfig], Sequence[Task]]) -> Seen:
    """Tasks and prompts that a run learned from, and those of the checkpoint that it began with.

    Args:
        config: the run's.
        training: gives the training tasks of a config.

    Raises:
        DataError, EnvError: its data cannot be read any more.
    """
    found = seen_tasks(training(config))
    source = pinned_source(config.demonstration_source)
    if config.imitates and source is not None:
        seed = derive_seed(config.seed, "demonstrations")
        found |= seen_prompts(shown.prompt for shown in load_demonstrations(source, seed=seed))
    elif config.imitates and config.demonstrations.trajectories is not None:
        found |= seen_tasks(episode.task for episode in read_episodes(config.demonstrations.trajectories))
    began = run_of(config.model.path)
    return found if began is None else found | seen_by_run(load_config(began / "config.yaml"), training)


def run_of(model: str) -> Path | None:
    """The run that a model is a checkpoint of; None for any other."""
    run = Path(model).resolve().parent.parent
    return run if (Path(model) / MANIFEST).is_file() and RunFolder.exists(run) else None


class FirstWords:
    """The first observation of a task in the environment of a config, as a run's episodes begin; None where it fails, as they will say.

    It is an environment of its own, made when it is first asked, so that what is asked leaves no trace in the episodes of a run.
    """

    def __init__(self, config: SkillTTRLConfig) -> None:
        self._config = config
        self._env: TextEnvironment | None = None

    def __call__(self, task: Task) -> str | None:
        """The first observation of a task."""
        seed = derive_seed(self._config.seed, "env", task.id) if task.seed is None else task.seed
        try:
            self._env = self._env or make_env(self._config.env.id, **self._config.env.kwargs)
            found, _ = self._env.reset(seed=seed, options=dict(task.options))
        except FAILURES as error:
            pass_signals(error)
            return None
        return found if isinstance(found, str) else None

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            close_env(self._env)


def training_splits(config: SkillTTRLConfig) -> set[str]:
    """Names of the splits whose tasks may be learned from."""
    data = config.data.train
    return {"train", config.env.train_split} | ({data.split} if data is not None and data.split else set())


@dataclass(frozen=True, slots=True)
class ForeignSplits:
    """Counts, among episodes that pass one by one, those of tasks that are not for training."""

    splits: Collection[str]
    """Those that may be learned from (`training_splits`)."""
    _found: dict[str, list[str]] = field(default_factory=dict)
    """Ids of the tasks by split."""

    def take(self, episode: Trajectory) -> None:
        """Look at one episode."""
        if episode.task.split not in self.splits:
            self._found.setdefault(episode.task.split, []).append(episode.task.id)

    def found(self, what: str) -> str | None:
        """How many there were of each split, in words; None where all are for training. `what` names where they are from."""
        if not self._found:
            return None
        counts = (f"{len(ids):,} of the split {split!r} (first: task {ids[0]!r})" for split, ids in self._found.items())
        return (
            f"{what} holds episodes of tasks that are not for training: {', '.join(counts)}. Training uses "
            f"{', '.join(sorted(self.splits))} only; env.train_split names another split."
        )


def foreign_splits(episodes: Iterable[Trajectory], splits: Collection[str], what: str) -> str | None:
    """Says which episodes are of tasks that are not for training; None where all are. See `ForeignSplits`."""
    foreign = ForeignSplits(splits)
    for episode in episodes:
        foreign.take(episode)
    return foreign.found(what)


def leaked(config: SkillTTRLConfig, measured: Sequence[Task], seen: Seen, what: str) -> str | None:
    """Says which of the tasks that are measured on are among what is learned from; None where none is.

    Args:
        config: names the environment.
        measured: tasks of the evaluation.
        seen: what is learned from.
        what: where `seen` is from, for the message.
    """
    with closing(FirstWords(config)) as first:
        shared = [task for task in measured if seen.holds(task, first)]
    if not shared:
        return None
    own = "data.train" if config.data.train is not None else f"env.eval_split ({config.env.eval_split})"
    name = "data.eval" if config.data.eval is not None else own
    return f"{len(shared):,} of the {len(measured):,} tasks of {name} are also in {what}, first {named(shared[0])}."


def refuse_leak(found: str | None) -> None:
    """Raise `DataError` where something says that there is a leak."""
    if found is not None:
        raise DataError(f"{found} {WAYS}")


def demonstration_leaks(
    config: SkillTTRLConfig, measured: Sequence[Task], seen: Seen, what: str, *, transductive: bool
) -> list[str]:
    """Lines on training tasks that are imitated and measured on; held-out ones are refused.

    Args:
        config: names the environment.
        measured: tasks of the evaluation.
        seen: what is imitated.
        what: where `seen` is from, for the message.
        transductive: whether the run is measured on its training tasks: that they are imitated is then only said.

    Raises:
        DataError: held-out tasks are imitated.
    """
    found = leaked(config, measured, seen, what)
    if found is not None and transductive:
        return [f"{found} They are training tasks, but their answers are learned, so this is not label-free."]
    refuse_leak(found)
    return []


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
