"""Collections, for any agent: episodes of tasks in a fixed order, counted as they finish and stored as lines of a file."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import env_tasks, resolve_env
from skill_ttrl.envs.lookup import refuse_split, split_argument
from skill_ttrl.envs.tasks import spread
from skill_ttrl.errors import ConfigError, EndpointError, EnvError, RunFolderError, did_you_mean
from skill_ttrl.llm.openai.ledger import SAME
from skill_ttrl.progress import OPENING, Counting, Progress, telling_warnings
from skill_ttrl.rollout.outcome import (
    EpisodeResult,
    RunningSuccess,
    SuccessStats,
    count_by_type,
    count_success,
    episode_result,
)
from skill_ttrl.rollout.scripted import Exploration
from skill_ttrl.runs.episode_logs import TrajectoryFile, lines_of, write_array
from skill_ttrl.runs.identity import describe_environment
from skill_ttrl.types import Task, Trajectory, to_json

PHASE = "play"
ABORT_AFTER_FAILURES = 100
"""So many episodes at the start that all fail end a collection: the environment or the agent is broken."""
_SECONDS_BETWEEN_WRITES = 1.0

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
    """So many, of tasks that are spread over the split and its types (`envs.tasks.spread`); None: `rollouts_per_task` of every task."""
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
            "skill_ttrl": describe_environment()["skill_ttrl"],
        }


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of a collection."""

    env: str
    """The environment's id."""
    agent: str
    split: str
    seed: int
    source: str
    """Where the environment has its tasks from, as it says; several with commas between; empty where it does not say."""
    overall: SuccessStats
    by_type: dict[str, SuccessStats]
    """By type of task; empty where there is only one type."""
    first_error: str | None
    """Error of the first episode that failed; None if none did."""
    output: str | None
    """The file of trajectories; None where they were not kept."""
    played: int
    """Episodes that this call played; the others were there already."""
    seconds: float
    """Wall time of this call."""
    tokens: int = 0
    """Tokens that a policy wrote in this call."""
    explore: float | Sequence[float] = 0.0
    """Share of a scripted agent's steps that take a random action, or one for each rollout of a task in turn; see `Exploration`."""


@dataclass(frozen=True, slots=True)
class Collection:
    """An agent, the tasks it plays, and the file of its episodes."""

    selection: TaskSelection
    agent: str
    seed: int
    output: str | Path | None
    """`FILE.jsonl`, or `FILE.json` for a JSON array, which is written from `FILE.jsonl` once all episodes are there; None: nothing is kept."""
    progress: Progress
    explore: Exploration = field(default_factory=Exploration)

    def run(
        self, units: Sequence[Unit], depends_on: Mapping[str, Any], play: Callable[[EpisodeWriter], int]
    ) -> Collected:
        """Count what the file holds, and have the rest played.

        Args:
            units: all episodes, in order.
            depends_on: what the episodes depend on apart from the names of agent and tasks.
            play: adds the episodes that are missing; how many tokens a policy wrote.

        Raises:
            RunFolderError: the file holds something else, which is named, or cannot be written.
        """
        began, tokens = time.perf_counter(), 0
        with ExitStack() as stack:
            log = None
            if self.output is not None:
                made_with = {**self.selection.made_with(units, self.agent, self.seed), **depends_on}
                _check_array(Path(self.output))
                log = stack.enter_context(TrajectoryFile(lines_of(Path(self.output)), made_with))
            writer = EpisodeWriter(units, log, self.progress)
            there = writer.read_existing()
            if there < len(units):
                self.progress.start(PHASE, len(units), "episode", there)
                try:
                    tokens = play(writer)
                finally:  # what was played is kept however it ends
                    writer.write()
                self.progress.finish(PHASE)
            if log is not None and self.output is not None and log.path != Path(self.output):
                write_array(Path(self.output), log.lines())
            return self._result(writer, there, time.perf_counter() - began, tokens)

    def _result(self, writer: EpisodeWriter, there: int, seconds: float, tokens: int) -> Collected:
        outcomes, log = writer.outcomes, writer.log
        sources = sorted({outcome.source for outcome in outcomes} - {""})
        if log is not None:
            made_in = describe_environment()
            log.note(facts={"source": sources, **{name: made_in[name] for name in ("python", "platform", "libraries")}})
        return Collected(
            env=resolve_env(self.selection.env),
            agent=self.agent,
            split=self.selection.split,
            seed=self.seed,
            source=", ".join(sources),
            overall=count_success(outcomes),
            by_type=count_by_type(outcomes),
            first_error=next((outcome.error for outcome in outcomes if outcome.error is not None), None),
            output=None if log is None else str(self.output),
            played=len(outcomes) - there,
            seconds=seconds,
            tokens=tokens,
            explore=self.explore.stated,
        )


def training_selection(config: SkillTTRLConfig) -> TaskSelection:
    """Select the tasks that the collect phase of a run plays: tasks that the run trains on.

    Raises:
        ConfigError: they come from files.
        EnvError: there is no such environment, or its arguments name a split.
    """
    asked, env = config.collect, config.env
    if config.data.train is not None:
        raise ConfigError(
            "The phase collect plays the environment's training tasks (env.train_split), but data.train names other tasks. Remove "
            "one of the two."
        )
    selection = TaskSelection(
        env.id,
        env.train_split,
        episodes=asked.episodes,
        rollouts_per_task=asked.rollouts_per_task,
        subset_size=env.train_tasks,
    )
    return selection.made(env.kwargs)


def _check_array(path: Path) -> None:
    """Refuse a `FILE.json` that was not begun here: it would be replaced at the end."""
    lines = lines_of(path)
    if lines != path and path.exists() and not lines.exists():
        raise RunFolderError(
            f"{path} exists without the {lines.name} that this command writes, so another program created it. Choose another --output, "
            "or remove it."
        )


def written(trajectory: Trajectory) -> tuple[str, EpisodeResult]:
    """The line of an episode, and what is counted of it."""
    try:
        line = to_json(trajectory)
    except (PydanticSerializationError, UnicodeEncodeError) as error:  # half a character, which no file can hold
        trajectory = Trajectory(trajectory.task, (), None, "error", error=f"{type(error).__name__}: {error}")
        line = to_json(trajectory)
    return line, episode_result(trajectory)


class EpisodeWriter:
    """Takes episodes in their order: counts them, reports progress, and appends them to the log now and then.

    While all have failed nothing is kept: a collection that only fails leaves no file.
    """

    def __init__(self, units: Sequence[Unit], log: TrajectoryFile | None, progress: Progress) -> None:
        self.units, self.log, self.progress = units, log, progress
        self.outcomes: list[EpisodeResult] = []
        self._waiting: list[str] = []
        self._written = -math.inf
        self._fine = 0
        self._shown = RunningSuccess()

    def read_existing(self) -> int:
        """Count the episodes that the log holds already.

        Raises:
            RunFolderError: a line is no trajectory, or not the one that belongs there.
        """
        if self.log is None:
            return 0
        path, total = self.log.path, len(self.units)
        if self.log.cut:
            self.progress.notice(
                f"The last line of {path} was incomplete and is removed ({self.log.cut:,} bytes); its episode is played again."
            )
        expected = [repr(task.id) for task, _ in self.units]
        for trajectory in self.log.read(Trajectory, expected, lambda found: repr(found.task.id)):
            outcome = episode_result(trajectory)
            self._count(outcome)
            self._shown.add(outcome)
        if there := len(self.outcomes):
            whole = f"All {total} episodes are in {path} already."
            self.progress.notice(
                whole if there == total else f"Continuing after {there} of {total} episodes in {path}."
            )
        return there

    def show(self, outcome: EpisodeResult, figures: Mapping[str, float] | None = None) -> None:
        """Report an episode that has ended, whatever its place; `figures` are shown next to its success."""
        self._shown.add(outcome)
        self.progress.advance(PHASE, self._shown.episodes, {**self._shown.metrics(), **(figures or {})})

    def add(self, line: str, outcome: EpisodeResult) -> None:
        """Take the next episode in order.

        Raises:
            EndpointError, EnvError: all have failed, and that is enough of them to tell.
        """
        self._count(outcome)
        self._waiting.append(line)
        if not self._fine and len(self.outcomes) in (ABORT_AFTER_FAILURES, len(self.units)):
            kind = EndpointError if all(outcome.unanswered for outcome in self.outcomes) else EnvError
            raise kind(
                f"All {len(self.outcomes)} episodes failed in {self.units[0][0].env_id}, so nothing is saved. The first error: "
                f"{self.outcomes[0].error}"
            )
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> bool:
        """Append what has come since; True if the log has everything now.

        Raises:
            RunFolderError: it cannot be written.
        """
        if self.log is not None and self._waiting and self._fine:
            self.log.append(self._waiting)
            self._waiting.clear()
        self._written = time.monotonic()
        return self.log is not None and not self._waiting

    def leaving(self, in_play: int = 1) -> str:
        """Say what is kept when it ends here, where so many episodes are played together."""
        if self.log is None:
            return "Stopped; nothing is saved. With --output FILE.jsonl episodes are saved as they finish."
        if not self.outcomes and in_play == 1:
            return "Interrupted before the first episode finished."
        done = f"Stopped; {len(self.outcomes)} of {len(self.units)} episodes are saved in {self.log.path}"
        again = f"; the {in_play} in progress will be played again" if in_play > 1 else ""
        return f"{done}{again}. {SAME}"

    def _count(self, outcome: EpisodeResult) -> None:
        self.outcomes.append(outcome)
        self._fine += outcome.error is None
