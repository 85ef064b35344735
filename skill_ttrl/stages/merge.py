"""`skillttrl merge`: samples or votes in, bank out.

The source is read as a whole and the updates are planned on a copy in memory before the bank is touched: a malformed line,
or an update that does not fit, leaves it as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from skill_ttrl.data import column, read_records, record_ids
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.read import first_keys, whole_lines
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.folder import is_bank
from skill_ttrl.skills.merge import MergeReport, make_merger, merge_groups
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.stages.bank import winning
from skill_ttrl.types import BankUpdate, Group, Step, Task, Trajectory, VoteResult, from_json
from skill_ttrl.voting import majority_vote

By = Literal["step", "all"]
T = TypeVar("T")

TRAJECTORIES, VOTES = "trajectories.jsonl", "votes.jsonl"


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge did to a bank, or with `dry_run` would do."""

    source: str
    bank: str
    dry_run: bool
    groups: int
    skills_before: int
    skills_after: int
    version: int
    """Version of the bank afterwards."""
    updates: tuple[BankUpdate, ...]
    report: MergeReport
    """Counts over all updates."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Samples:
    """The groups of one step, and which of their tries won."""

    step: int | None
    groups: tuple[Group, ...]
    winners: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line of a run's file belongs."""

    phase: str = ""
    step: int | None = None
    task_id: str = ""


def run(
    source: str | Path,
    bank: str | Path,
    *,
    dry_run: bool = False,
    extract: bool = False,
    by: By = "step",
    merger: str = "heuristic",
) -> MergeResult:
    """Merge the operations of a source's winners into a bank.

    Args:
        source: a run folder or its `trajectories.jsonl` (winners: the best reward of their group, or a vote where there are
            no rewards), its `votes.jsonl` (winners: those of the votes), or records with `problem` and `responses`, a list
            of texts, that are put to the vote first.
        bank: the bank's folder; made where it is not there.
        dry_run: plan only; nothing is written.
        extract: take a skill from winners' solutions where none of a group wrote one.
        by: one update for each step of a run, or one for all.
        merger: name of the merger.

    Raises:
        DataError: the source cannot be read; names the line.
        ConfigError: no such merger.
        SkillBankError: the bank cannot be read or written.
    """
    if by not in ("step", "all"):
        raise ConfigError(f"by is 'step' or 'all', found {by!r}.")
    fuse = make_merger(merger)
    notes: list[str] = []
    samples = _read(Path(source), notes)
    if by == "all":
        samples = [_joined(samples)]
    with _open(Path(bank), dry_run) as kept:
        before = kept.snapshot()
        plan = SkillBank.from_snapshot(before, max_skills=kept.max_skills)
        updates, reports = [], []
        for part in samples:
            changes, report = merge_groups(
                part.groups, part.winners, plan.snapshot(), round=part.step, merger=fuse, extract=extract
            )
            reports.append(report)
            if changes:
                evidence = dict.fromkeys(group.task.id for group in part.groups)
                updates.append(plan.apply(changes, reason="merge", evidence=evidence, round=part.step))
        if not dry_run:
            for update in updates:
                kept.apply(update)
        after = plan.snapshot()
    return MergeResult(
        source=str(source),
        bank=str(bank),
        dry_run=dry_run,
        groups=sum(len(part.groups) for part in samples),
        skills_before=len(before),
        skills_after=len(after),
        version=after.version,
        updates=tuple(updates),
        report=_summed(reports),
        notes=tuple(notes),
    )


def _open(path: Path, dry_run: bool) -> SkillBank:
    if is_bank(path):
        return SkillBank.open(path, read_only=dry_run)
    return SkillBank() if dry_run else SkillBank(path)


def _read(path: Path, notes: list[str]) -> list[_Samples]:
    if path.is_dir():
        if not RunFolder.exists(path):
            raise DataError(f"{path} is no run folder (it has no run.json). Give a run, or one of its .jsonl files.")
        if not (path / TRAJECTORIES).is_file():
            raise DataError(
                f"{path} has no {TRAJECTORIES}: no step has ended yet, or the run has run.save_trajectories: false."
            )
        path = path / TRAJECTORIES
    keys = first_keys(path)
    if keys >= {"task", "steps"}:
        return _from_trajectories(path, None, notes)
    if keys >= {"task_id", "matches"}:
        beside = path.with_name(TRAJECTORIES)
        if not beside.is_file():
            raise DataError(f"{path} holds votes, but the samples that were voted on are not beside it: no {beside}.")
        return _from_trajectories(beside, path, notes)
    return _from_records(path)


def _from_records(path: Path) -> list[_Samples]:
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
    return [_Samples(None, tuple(groups), winners)]


def _answered(task: Task, problem: str, text: str) -> Trajectory:
    found = OutputParser().parse(text)
    return Trajectory(task, (Step(problem, text, 0.0, True, False),), found.answer, "terminated", ops=found.skill_ops)


def _from_trajectories(path: Path, votes: Path | None, notes: list[str]) -> list[_Samples]:
    tries: dict[tuple[str, int | None], dict[str, list[Trajectory]]] = defaultdict(lambda: defaultdict(list))
    for where, line in whole_lines(path, notes):
        place, trajectory = _parsed(_Place, line, where), _parsed(Trajectory, line, where)
        # Tokens are most of a trajectory and nothing to a merge.
        steps = tuple(replace(step, completion=None, prompt_ids=()) for step in trajectory.steps)
        tries[place.phase, place.step][trajectory.task.id].append(replace(trajectory, steps=steps))
    if not tries:
        raise DataError(f"{path} holds no samples. At least one is needed.")
    held = _votes(votes, notes) if votes else None
    found = []
    for (phase, step), tasks in tries.items():
        groups = tuple(Group(rows[0].task, tuple(rows)) for rows in tasks.values())
        if held is None:
            winners = [_winners(group) for group in groups]
        else:
            winners = [
                _voted(held.get((phase, step, group.task.id)), group, f"{votes}, step {step}") for group in groups
            ]
        found.append(_Samples(step, groups, tuple(winners)))
    return found


def _winners(group: Group) -> tuple[bool, ...]:
    """By reward; by a vote where no try has one."""
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
            f"{where}: found {found} on the task {group.task.id!r}, of which {TRAJECTORIES} has {len(group.trajectories)} "
            "samples. Nothing was merged. The two files must be of one run."
        )
    return vote.matches


def _parsed(kind: type[T], line: bytes, where: str) -> T:
    try:
        return from_json(kind, line)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        what = f"{where} is no line of a run's {VOTES if kind is VoteResult else TRAJECTORIES}"
        raise DataError(f"{what}: {field}{': ' if field else ''}{problem['msg']}. Nothing was merged.") from None


def _joined(samples: Sequence[_Samples]) -> _Samples:
    """All steps as one; its round is the last step's."""
    steps = [part.step for part in samples if part.step is not None]
    return _Samples(
        max(steps, default=None),
        tuple(group for part in samples for group in part.groups),
        tuple(wins for part in samples for wins in part.winners),
    )


def _summed(reports: Sequence[MergeReport]) -> MergeReport:
    counts = {
        each.name: sum(getattr(report, each.name) for report in reports)
        for each in fields(MergeReport)
        if each.name != "skipped"
    }
    return MergeReport(**counts, skipped=tuple(reason for report in reports for reason in report.skipped))
