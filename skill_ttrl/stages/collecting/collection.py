"""What a collection is, whoever plays: episodes of tasks in a fixed order, counted as they come and kept as lines of a file."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.envs import env_tasks, prepare_unit, resolve_env
from skill_ttrl.envs.lookup import refuse_split, split_argument, spread
from skill_ttrl.errors import ConfigError, EndpointError, EnvError, RunFolderError, did_you_mean
from skill_ttrl.llm.openai.ledger import SAME
from skill_ttrl.progress import OPENING, Counting, Progress, telling_warnings
from skill_ttrl.runs.identity import describe_environment
from skill_ttrl.runs.trajectories import TrajectoryFile, beside, read_identity
from skill_ttrl.stages.evaluation.outcomes import (
    Outcome,
    SuccessStats,
    count_by_type,
    count_success,
    outcome_of,
    running_success,
)
from skill_ttrl.types import Task, Trajectory, first_problem, from_json, to_json

PHASE = "play"
HOPELESS = 100
"""So many episodes at the start that all fail end a collection: the environment or the agent is broken."""
_SECONDS_BETWEEN_WRITES = 1.0

Unit = tuple[Task, int]
"""A task, and the number of the try at it."""


@dataclass(frozen=True, slots=True)
class Place:
    """What is played."""

    env: str
    """Short name, Gymnasium id, or `module:EnvId-v0`."""
    split: str
    """Part of the environment's tasks."""
    kwargs: Mapping[str, Any]
    """What the environment is made with, its split included where it takes one."""
    types: tuple[str, ...] = ()
    """Only tasks of these types; empty: all."""
    episodes: int | None = None
    """So many, of tasks that are spread over the split and its types; None: `tries` of every task."""
    tries: int = 1
    """Episodes of each task."""
    among: int | None = None
    """Only of so many tasks, spread over the split: those that a run trains on; None: all."""

    def units(self, progress: Progress) -> list[Unit]:
        """What is played, in order: all tries at a task before the next one.

        Raises:
            ConfigError: a number is below 1.
            EnvError: there is no such environment, split or type.
        """
        for name, value in (("episodes", self.episodes), ("tries", self.tries)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, found {value}.")
        most = None if self.episodes is None else -(-self.episodes // self.tries)
        whole = not self.types and self.among is None
        with telling_warnings(progress):
            counting = Counting(progress, OPENING, prepare_unit(self.env, self.kwargs))
            tasks = env_tasks(self.env, self.kwargs, self.split, most if whole else self.among, counting)
        known = {task.task_type for task in tasks}
        for kind in self.types:
            if kind not in known:
                raise EnvError(
                    f"{self.env} has no tasks of the type {kind!r} in the split {self.split!r}."
                    f"{did_you_mean(kind, known - {''})}"
                )
        if not whole:
            tasks = spread([task for task in tasks if not self.types or task.task_type in self.types], most)
        if most is not None and len(tasks) < most:
            progress.notice(
                f"There are {len(tasks):,} tasks in {self.split}: {len(tasks) * self.tries:,} episodes are played, not "
                f"{self.episodes:,}. More tries play each more often (--tries; collect.tries)."
            )
        return [(task, attempt) for task in tasks for attempt in range(self.tries)][: self.episodes]

    def made_with(self, units: Sequence[Unit], agent: str, seed: int, more: Mapping[str, Any]) -> dict[str, Any]:
        """All that decides which lines a collection has; `more` is what matters of the agent beside its name."""
        digest = hashlib.blake2b(digest_size=16)
        for task, attempt in units:
            digest.update(f"{attempt} {to_json(task)}\n".encode())
        return {
            "env": resolve_env(self.env),
            "kwargs": json.loads(json.dumps(self.kwargs, default=str)),
            "agent": agent,
            "split": self.split,
            "types": sorted(self.types),
            "tries": self.tries,
            "seed": seed,
            "episodes": len(units),
            "tasks": digest.hexdigest(),
            "skill_ttrl": describe_environment()["skill_ttrl"],
            **more,
        }


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of a collection."""

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
    """What went wrong in the first episode that failed."""
    output: str | None
    """The file of trajectories; None where they were not kept."""
    played: int
    """Episodes that this call played; the others were there already."""
    seconds: float
    """Wall time of this call."""
    tokens: int = 0
    """Tokens that a policy wrote in this call."""
    explore: float = 0.0
    """Share of a player's steps in which any action was taken; see `play_episode`."""


def training_place(config: SkillTTRLConfig) -> Place:
    """What the phase collect of a run plays: tasks that the run trains on.

    Raises:
        ConfigError: they come from files.
        EnvError: there is no such environment, or its arguments name a split.
    """
    asked, env = config.collect, config.env
    if config.data.train is not None:
        raise ConfigError(
            "The phase collect plays the environment's own training tasks (env.train_split), but data.train names others. Leave "
            "one of the two out."
        )
    refuse_split(env.kwargs)
    arguments = {**env.kwargs, **split_argument(env.id, env.train_split)}
    return Place(env.id, env.train_split, arguments, (), asked.episodes, asked.tries, env.train_tasks)


def open_file(output: str | Path, made_with: Mapping[str, Any]) -> TrajectoryFile:
    """Begin the file of a collection, or go on with it; see `TrajectoryFile.open`.

    Raises:
        RunFolderError: it holds something else, which is named, or cannot be written.
    """
    try:
        return TrajectoryFile.open(output, made_with)
    except RunFolderError as error:
        there: Mapping[str, Any] = {}
        with suppress(RunFolderError):
            there = read_identity(Path(output))["made_with"] if beside(Path(output)).is_file() else {}
        if there.get("episodes", made_with["episodes"]) == made_with["episodes"]:
            raise
        raise RunFolderError(
            f"{error} A file cannot grow: another number of episodes is of other tasks, for they are spread over the split."
        ) from None


def written(trajectory: Trajectory) -> tuple[bytes, Outcome]:
    """The line of an episode, and what is counted of it."""
    try:
        line = to_json(trajectory)
    except (PydanticSerializationError, UnicodeEncodeError) as error:  # half a character, which no file can hold
        trajectory = Trajectory(trajectory.task, (), None, "error", error=f"{type(error).__name__}: {error}")
        line = to_json(trajectory)
    return f"{line}\n".encode(), outcome_of(trajectory)


class Tally:
    """Episodes as they come, in order: counted, shown, and kept in the file now and then.

    While all have failed nothing is kept: a collection that only fails leaves no file.
    """

    def __init__(self, units: Sequence[Unit], file: TrajectoryFile | None, progress: Progress) -> None:
        self.units = units
        self.outcomes: list[Outcome] = []
        self.progress = progress
        self._file = file
        self._waiting: list[bytes] = []
        self._there = 0
        self._written = -math.inf
        self._fine = 0
        self._shown = _Shown()

    def read_kept(self) -> None:
        """Count what the file holds already.

        Raises:
            RunFolderError: a line is no trajectory, or not the one that belongs there.
        """
        if self._file is None:
            return
        if self._file.cut:
            self.progress.notice(
                f"The last line of {self._file.path} was cut off and is taken away ({self._file.cut:,} bytes): its episode is "
                "played again."
            )
        for number, line in enumerate(self._file.lines()):
            outcome = _read_line(self._file.path, number, line, self.units)
            self._count(outcome)
            self._shown.add(outcome)
        self._there = len(self.outcomes)
        if not self.outcomes:
            return
        if len(self.outcomes) == len(self.units):
            said = f"All {len(self.units)} episodes are in {self._file.path} already: nothing is played."
        else:
            said = f"Going on after {len(self.outcomes)} of {len(self.units)} episodes in {self._file.path}."
        self.progress.notice(said)

    def show(self, outcome: Outcome, figures: Mapping[str, float] | None = None) -> None:
        """Tell of an episode that has ended, whatever its place; `figures` stand beside its success."""
        self._shown.add(outcome)
        self.progress.advance(PHASE, self._shown.episodes, {**self._shown.figures(), **(figures or {})})

    def add(self, line: bytes, outcome: Outcome) -> None:
        """The next episode in order.

        Raises:
            EndpointError, EnvError: all have failed, and that is enough of them to tell.
        """
        self._count(outcome)
        self._waiting.append(line)
        if not self._fine and len(self.outcomes) in (HOPELESS, len(self.units)):
            kind = EndpointError if all(outcome.unanswered for outcome in self.outcomes) else EnvError
            raise kind(
                f"Every one of {len(self.outcomes)} episodes failed in {self.units[0][0].env_id}, so that nothing is kept. The "
                f"first: {self.outcomes[0].error}"
            )
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> bool:
        """Put what has come since into the file; whether it has everything now.

        Raises:
            RunFolderError: it cannot be written.
        """
        if self._file is not None and self._waiting and self._fine:
            self._file.append(self._waiting)
            self._waiting.clear()
        self._written = time.monotonic()
        return self._file is not None and not self._waiting

    def leaving(self, in_play: int = 1) -> str:
        """What to say when it ends here, where so many episodes are played together."""
        if self._file is None:
            return "Stopped, and nothing is kept. With --output FILE.jsonl episodes are kept as they are played."
        if not self.outcomes and in_play == 1:
            return "Stopped before the first episode was played."
        done = f"Stopped with {len(self.outcomes)} of {len(self.units)} episodes kept in {self._file.path}"
        again = f"; the {in_play} that were in play are played again" if in_play > 1 else ""
        return f"{done}{again}. {SAME}"

    def found(
        self,
        place: Place,
        agent: str,
        seed: int,
        *,
        confidence: float,
        seconds: float,
        tokens: int = 0,
        explore: float = 0.0,
    ) -> Collected:
        """What became of it; what is known of the episodes now is noted beside the file."""
        sources = sorted({outcome.source for outcome in self.outcomes} - {""})
        if self._file is not None:
            made_in = describe_environment()
            self._file.note(
                {"source": sources, **{name: made_in[name] for name in ("python", "platform", "libraries")}}
            )
        return Collected(
            env=resolve_env(place.env),
            agent=agent,
            split=place.split,
            seed=seed,
            source=", ".join(sources),
            overall=count_success(self.outcomes, confidence=confidence),
            by_type=count_by_type(self.outcomes, confidence=confidence),
            first_error=next((outcome.error for outcome in self.outcomes if outcome.error is not None), None),
            output=None if self._file is None else str(self._file.path),
            played=len(self.outcomes) - self._there,
            seconds=seconds,
            tokens=tokens,
            explore=explore,
        )

    def _count(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._fine += outcome.error is None


class _Shown:
    """Success so far, as it is shown."""

    def __init__(self) -> None:
        self.episodes = 0
        self._counts: dict[str, tuple[int, int]] = {}
        self._fine = 0
        self._score: float | None = 0.0
        """Sum so far; None where an episode that did not fail has no score."""

    def add(self, outcome: Outcome) -> None:
        self.episodes += 1
        won, count = self._counts.get(outcome.task_type, (0, 0))
        self._counts[outcome.task_type] = (won + bool(outcome.success), count + 1)
        if outcome.error is None:
            self._fine += 1
            self._score = None if outcome.score is None or self._score is None else self._score + outcome.score

    def figures(self) -> dict[str, float]:
        scored = self._score is not None and self._fine
        return running_success(self._counts, (self._score or 0.0) / self.episodes if scored else None)


def _read_line(path: Path, number: int, line: bytes, units: Sequence[Unit]) -> Outcome:
    changed = "The file was changed; remove it and collect again."
    if number >= len(units):
        raise RunFolderError(f"{path} has more than the {len(units)} lines that belong there. {changed}")
    try:
        found = from_json(Trajectory, line)
    except ValidationError as error:
        raise RunFolderError(f"{path}:{number + 1} is no trajectory: {first_problem(error)}. {changed}") from None
    if found.task.id != units[number][0].id:
        raise RunFolderError(
            f"{path}:{number + 1} is of the task {found.task.id!r}, but {units[number][0].id!r} belongs there. {changed}"
        )
    return outcome_of(found)
