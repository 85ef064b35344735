"""`skillttrl collect`: a player that needs no model plays the tasks of an environment, and every episode is kept.

One line an episode (`types.Trajectory` as JSON), in the order of the tasks, whatever the number of processes; stopped at any
point and called again, it goes on and ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from skill_ttrl.agents.player import Player, make_player
from skill_ttrl.envs import env_tasks, make_env, prepare_unit, resolve_env
from skill_ttrl.envs.lookup import refuse_split, split_argument
from skill_ttrl.episode import play_episode
from skill_ttrl.errors import ConfigError, EnvError, RunFolderError, did_you_mean
from skill_ttrl.runs.cores import cores
from skill_ttrl.runs.identity import describe_environment
from skill_ttrl.runs.interrupt import StopSignal
from skill_ttrl.runs.progress import OPENING, Counting, Progress, SilentProgress, telling_warnings
from skill_ttrl.runs.trajectory_file import TrajectoryFile
from skill_ttrl.stages.outcomes import (
    Outcome,
    Success,
    count_by_type,
    count_success,
    outcome_of,
    running_success,
)
from skill_ttrl.stages.workers import work
from skill_ttrl.types import Task, Trajectory, first_problem, from_json, to_json

PHASE = "play"
HOPELESS = 100
"""So many episodes at the start that all fail end a collection: the environment or the agent is broken."""
_EPISODES_A_PROCESS = 64  # fewer are played sooner than another process has started
_SECONDS_BETWEEN_WRITES = 1.0

Unit = tuple[Task, int]
"""A task, and the number of the try at it."""


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
    overall: Success
    by_type: dict[str, Success]
    """By type of task; empty where there is only one type."""
    first_error: str | None
    """What went wrong in the first episode that failed."""
    output: str | None
    """The file of trajectories; None where they were not kept."""
    played: int
    """Episodes that this call played; the others were there already."""
    seconds: float
    """Wall time of this call."""


def run(
    env: str,
    *,
    agent: str = "expert",
    split: str = "train",
    kwargs: Mapping[str, Any] | None = None,
    types: Sequence[str] = (),
    episodes: int | None = None,
    tries: int = 1,
    seed: int = 0,
    jobs: int | None = None,
    output: str | Path | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> Collected:
    """Have a player play the tasks of a split in their order, and keep every episode.

    An episode in which the environment or the player fails is data: its line has `error`, and it counts as no success.

    Args:
        env: short name, Gymnasium id, or `module:EnvId-v0`.
        agent: `expert`, `random`, `walkthrough`, or `module:attribute`, called without arguments (`agents.player.Player`). Each
            process has one, so `start` must forget earlier episodes.
        split: part of the environment's tasks.
        kwargs: handed to the environment.
        types: only tasks of these types; empty: all.
        episodes: at most so many, from the start; None: all.
        tries: episodes of each task; they begin alike, and the player's choices differ.
        seed: of the environment, where a task has none, and of the player.
        jobs: processes; None: one for each core, and fewer where there is little to play. More than one start a fresh Python
            each, so that a script that calls this stands under `if __name__ == "__main__"`.
        output: `FILE.jsonl`; what it was made with stands in `FILE.jsonl.json`. None: nothing is kept.
        confidence: level of the intervals, in (0, 1).
        progress: told of episodes, success and what was found.

    Raises:
        ConfigError: there is no such agent, or a number is out of its range.
        EnvError: there is no such environment, split, type or data, or every episode failed.
        RunFolderError: `output` holds something else, or cannot be written.
        Interrupted: a signal came; what was played is kept where there is an `output`.
    """
    for name, value in (("episodes", episodes), ("tries", tries), ("jobs", jobs)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, found {value}.")
    progress = progress or SilentProgress()
    env_id, given = resolve_env(env), dict(kwargs or {})
    refuse_split(given)
    arguments = {**given, **split_argument(env, split)}
    make_player(agent, env_id)  # refused before anything is played
    with telling_warnings(progress):
        units = _units(env, arguments, split, types, episodes, tries, progress)
    began = time.perf_counter()
    with ExitStack() as stack:
        file = None
        if output is not None:
            made_with = _made_with(env_id, arguments, agent, split, types, tries, seed, units)
            file = stack.enter_context(TrajectoryFile.open(output, made_with))
        tally = _Tally(units, file, progress)
        tally.read_kept()
        there = len(tally.outcomes)
        make = partial(_Playing, env, arguments, agent, seed)
        left = len(units) - there
        _play(make, tally, jobs or min(cores(), max(1, left // _EPISODES_A_PROCESS)))
        outcomes = tally.outcomes
        sources = sorted({outcome.source for outcome in outcomes} - {""})
        if file is not None:
            made_in = describe_environment()
            file.note({"source": sources, **{name: made_in[name] for name in ("python", "platform", "libraries")}})
    return Collected(
        env=env_id,
        agent=agent,
        split=split,
        seed=seed,
        source=", ".join(sources),
        overall=count_success(outcomes, confidence=confidence, seed=seed),
        by_type=count_by_type(outcomes, confidence=confidence, seed=seed),
        first_error=next((outcome.error for outcome in outcomes if outcome.error is not None), None),
        output=None if output is None else str(output),
        played=len(outcomes) - there,
        seconds=time.perf_counter() - began,
    )


def _units(
    env: str,
    kwargs: Mapping[str, Any],
    split: str,
    types: Sequence[str],
    episodes: int | None,
    tries: int,
    progress: Progress,
) -> list[Unit]:
    """What is played, in order: all tries at a task before the next one."""
    most = None if episodes is None or types else -(-episodes // tries)
    tasks = env_tasks(env, kwargs, split, most, Counting(progress, OPENING, prepare_unit(env, kwargs)))
    known = {task.task_type for task in tasks}
    for kind in types:
        if kind not in known:
            raise EnvError(
                f"{env} has no tasks of the type {kind!r} in the split {split!r}.{did_you_mean(kind, known - {''})}"
            )
    tasks = [task for task in tasks if not types or task.task_type in types]
    return [(task, attempt) for task in tasks for attempt in range(tries)][:episodes]


def _made_with(
    env_id: str,
    kwargs: Mapping[str, Any],
    agent: str,
    split: str,
    types: Sequence[str],
    tries: int,
    seed: int,
    units: Sequence[Unit],
) -> dict[str, Any]:
    """All that decides which lines a collection has."""
    digest = hashlib.blake2b(digest_size=16)
    for task, attempt in units:
        digest.update(f"{attempt} {to_json(task)}\n".encode())
    return {
        "env": env_id,
        "kwargs": json.loads(json.dumps(kwargs, default=str)),
        "agent": agent,
        "split": split,
        "types": sorted(types),
        "tries": tries,
        "seed": seed,
        "episodes": len(units),
        "tasks": digest.hexdigest(),
        "skill_ttrl": describe_environment()["skill_ttrl"],
    }


class _Playing:
    """Plays one unit after another in its process, with one environment and one player.

    Both are made anew after an episode that failed: what comes next must not depend on what a failure left behind.
    """

    def __init__(self, env: str, kwargs: Mapping[str, Any], agent: str, seed: int) -> None:
        self._make_env = partial(make_env, env, **kwargs)
        self._make_player = partial(make_player, agent, resolve_env(env))
        self._seed = seed
        self._made: tuple[gymnasium.Env[Any, Any], Player] | None = None

    def __call__(self, unit: Unit) -> tuple[bytes, Outcome]:
        """The line of the episode, and what is counted of it."""
        env, player = self._made = self._made or self._make()
        task, attempt = unit
        played = play_episode(env, task, player, seed=self._seed, attempt=attempt)
        try:
            line = to_json(played)
        except (PydanticSerializationError, UnicodeEncodeError) as error:  # half a character, which no file can hold
            played = Trajectory(task, (), None, "error", error=f"{type(error).__name__}: {error}")
            line = to_json(played)
        if played.error is not None:
            env.close()
            self._made = None
        return f"{line}\n".encode(), outcome_of(played)

    def _make(self) -> tuple[gymnasium.Env[Any, Any], Player]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said already, where the tasks were listed
            return self._make_env(), self._make_player()


class _Tally:
    """Episodes as they come, in order: counted, shown, and kept in the file now and then.

    While all have failed nothing is kept: a collection that only fails leaves no file.
    """

    def __init__(self, units: Sequence[Unit], file: TrajectoryFile | None, progress: Progress) -> None:
        self.units = units
        self.outcomes: list[Outcome] = []
        self.progress = progress
        self._file = file
        self._waiting: list[bytes] = []
        self._written = -math.inf
        self._fine = 0
        self._counts: dict[str, tuple[int, int]] = {}
        self._score: float | None = 0.0
        """Sum so far; None where an episode that did not fail has no score."""

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
            self._count(_read(self._file.path, number, line, self.units))
        if not self.outcomes:
            return
        if len(self.outcomes) == len(self.units):
            said = f"All {len(self.units)} episodes are in {self._file.path} already: nothing is played."
        else:
            said = f"Going on after {len(self.outcomes)} of {len(self.units)} episodes in {self._file.path}."
        self.progress.notice(said)

    def add(self, line: bytes, outcome: Outcome) -> None:
        """One more episode.

        Raises:
            EnvError: all have failed, and that is enough of them to tell.
        """
        self._count(outcome)
        self._waiting.append(line)
        self.progress.advance(PHASE, len(self.outcomes), running_success(self._counts, self._mean_score()))
        if not self._fine and len(self.outcomes) in (HOPELESS, len(self.units)):
            raise EnvError(
                f"Every one of {len(self.outcomes)} episodes failed in {self.units[0][0].env_id}, so that nothing is kept. The "
                f"first: {self.outcomes[0].error}"
            )
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> None:
        """Put what has come since into the file.

        Raises:
            RunFolderError: it cannot be written.
        """
        if self._file is not None and self._waiting and self._fine:
            self._file.append(self._waiting)
            self._waiting.clear()
        self._written = time.monotonic()

    def leaving(self) -> str:
        """What to say when a signal ends it here."""
        if not self.outcomes:
            return "Stopped before the first episode was played."
        done = f"Stopped with {len(self.outcomes)} of {len(self.units)} episodes played"
        if self._file is None:
            return f"{done}, and nothing is kept. With --output FILE.jsonl episodes are kept as they are played."
        return f"{done}; they are kept in {self._file.path}. Go on with the same command."

    def _count(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._fine += outcome.error is None
        won, count = self._counts.get(outcome.task_type, (0, 0))
        self._counts[outcome.task_type] = (won + bool(outcome.success), count + 1)
        if outcome.error is None:
            self._score = None if outcome.score is None or self._score is None else self._score + outcome.score

    def _mean_score(self) -> float | None:
        return None if self._score is None or not self._fine else self._score / len(self.outcomes)


def _play(make: partial[_Playing], tally: _Tally, jobs: int) -> None:
    """Play what is left, in order; what was played is kept however it ends."""
    left = tally.units[len(tally.outcomes) :]
    if not left:
        return
    tally.progress.start(PHASE, len(tally.units), "episode", len(tally.outcomes))
    with StopSignal() as stop, closing(work(make, left, jobs)) as results:
        try:
            for _ in left:
                with stop.leaving_at_once(tally.leaving()):
                    line, outcome = next(results)
                tally.add(line, outcome)
        finally:
            tally.write()
    tally.progress.finish(PHASE)


def _read(path: Path, number: int, line: bytes, units: Sequence[Unit]) -> Outcome:
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
