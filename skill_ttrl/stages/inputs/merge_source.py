"""Input of `skillttrl merge`: groups of rollouts, step by step, and which of them won."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from skill_ttrl.data.records import column, read_records, record_ids
from skill_ttrl.errors import DataError
from skill_ttrl.rollout.outcome import winning
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.merge.plan import group_digest
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.storage.jsonl import first_keys, whole_lines
from skill_ttrl.types import Group, Step, Task, Trajectory, VoteResult, first_problem, from_json
from skill_ttrl.voting import majority_vote

T = TypeVar("T")

TRAJECTORIES, VOTES = "trajectories.jsonl", "votes.jsonl"


@dataclass(frozen=True, slots=True)
class Samples:
    """Groups of one step, and which of their rollouts won."""

    step: int | None
    groups: tuple[Group, ...]
    winners: tuple[tuple[bool, ...], ...]
    digests: tuple[str, ...]
    """Of each group (`group_digest`)."""

    @classmethod
    def of(cls, step: int | None, groups: Sequence[Group], winners: Sequence[Sequence[bool]]) -> Samples:
        """The groups of a step."""
        digests = tuple(group_digest(group, step) for group in groups)
        return cls(step, tuple(groups), tuple(map(tuple, winners)), digests)

    def without(self, known: Collection[str]) -> Samples:
        """Those that are not known."""
        rows = zip(self.groups, self.winners, self.digests, strict=True)
        new = [row for row in rows if row[2] not in known]
        return Samples(self.step, *(tuple(column) for column in (zip(*new, strict=True) if new else ((), (), ()))))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line of a run's file belongs."""

    phase: str = ""
    step: int | None = None
    task_id: str = ""


def read_samples(path: Path, notes: list[str]) -> list[Samples]:
    """The samples of a run, of one of its files, or of records; see `merge.run`.

    Args:
        path: the source.
        notes: takes what should be said about it, such as a torn last line.

    Raises:
        DataError: it cannot be read; names the line.
    """
    if path.is_dir():
        if not RunFolder.exists(path):
            raise DataError(f"{path} is no run folder (it has no run.json). Name a run, or one of its .jsonl files.")
        if not (path / TRAJECTORIES).is_file():
            raise DataError(
                f"{path} has no {TRAJECTORIES}: no step has finished yet, or the run has run.save_trajectories: false."
            )
        path = path / TRAJECTORIES
    keys = first_keys(path)
    if keys >= {"task", "steps"}:
        return _from_trajectories(path, None, notes)
    if keys >= {"task_id", "matches"}:
        beside = path.with_name(TRAJECTORIES)
        if not beside.is_file():
            raise DataError(f"{path} holds votes, but the file with their samples is missing: {beside}.")
        return _from_trajectories(beside, path, notes)
    return _from_records(path)


def _from_records(path: Path) -> list[Samples]:
    records = read_records(path)
    names = record_ids(records)
    types = [str(row.get("task_type") or "") for row in records.rows]
    groups = []
    rows = zip(
        column(records, "problem"), column(records, "responses", list), names, types, records.places, strict=True
    )
    for problem, responses, name, task_type, place in rows:
        if not responses or not all(isinstance(text, str) for text in responses):
            raise DataError(f"{place}: 'responses' must be a list of at least one text.")
        task = Task(id=name, env_id="", task_type=task_type)
        groups.append(Group(task, tuple(_answered(task, problem, text) for text in responses)))
    winners = tuple(majority_vote(group.answers).matches for group in groups)
    return [Samples.of(None, groups, winners)]


def _answered(task: Task, problem: str, text: str) -> Trajectory:
    found = OutputParser().parse(text)
    return Trajectory(task, (Step(problem, text, 0.0, True, False),), found.answer, "terminated", ops=found.skill_ops)


def _from_trajectories(path: Path, votes: Path | None, notes: list[str]) -> list[Samples]:
    rollouts: dict[tuple[str, int | None], dict[str, list[Trajectory]]] = defaultdict(lambda: defaultdict(list))
    for where, line in whole_lines(path, notes):
        place, trajectory = _parsed(_Place, line, where), _parsed(Trajectory, line, where)
        # Tokens are most of a trajectory and nothing to a merge.
        steps = tuple(replace(step, completion=None, prompt_ids=()) for step in trajectory.steps)
        rollouts[place.phase, place.step][trajectory.task.id].append(replace(trajectory, steps=steps))
    if not rollouts:
        raise DataError(f"{path} holds no samples.")
    held = _votes(votes, notes) if votes else None
    found = []
    for (phase, step), tasks in rollouts.items():
        groups = tuple(Group(rows[0].task, tuple(rows)) for rows in tasks.values())
        if held is None:
            winners = [_winners(group) for group in groups]
        else:
            winners = [
                _voted(held.get((phase, step, group.task.id)), group, f"{votes}, step {step}") for group in groups
            ]
        found.append(Samples.of(step, groups, winners))
    return found


def _winners(group: Group) -> tuple[bool, ...]:
    """By reward; by a vote where no rollout has one."""
    if all(trajectory.reward is None for trajectory in group.trajectories):
        return majority_vote(group.answers).matches
    return tuple(winning(group))


def _votes(path: Path, notes: list[str]) -> dict[tuple[str, int | None, str], VoteResult]:
    found = {}
    for where, line in whole_lines(path, notes):
        place = _parsed(_Place, line, where)
        found[place.phase, place.step, place.task_id] = _parsed(VoteResult, line, where)
    return found


def _voted(vote: VoteResult | None, group: Group, where: str) -> tuple[bool, ...]:
    if vote is None or len(vote.matches) != len(group.trajectories):
        found = "no vote" if vote is None else f"a vote over {len(vote.matches)} samples"
        raise DataError(
            f"{where}: found {found} on the task {group.task.id!r}, of which {TRAJECTORIES} has {len(group.trajectories)} samples. "
            "Nothing was merged. The two files must come from one run."
        )
    return vote.matches


def _parsed(kind: type[T], line: bytes, where: str) -> T:
    try:
        return from_json(kind, line)
    except ValidationError as error:
        what = f"{where} is no line of a run's {VOTES if kind is VoteResult else TRAJECTORIES}"
        raise DataError(f"{what}: {first_problem(error)}. Nothing was merged.") from None
