"""`skillttrl merge`: samples in, bank out.

The source is read as a whole and the updates are planned on a copy in memory before the bank is touched: a malformed line,
an update that does not fit, or a language model that gives no usable answer, leaves it as it was.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from skill_ttrl.config import SkillsConfig, SkillTTRLConfig, load_config
from skill_ttrl.data.records import column, read_records, record_ids, text_lists
from skill_ttrl.errors import DataError, annotate_error
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.rollout.outcome import winning
from skill_ttrl.runs.episode_logs import TRAJECTORIES, Place, read_rollouts
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.bank import SkillBank, UpdateMetadata
from skill_ttrl.skills.changes import content_changes
from skill_ttrl.skills.log import check_new, is_bank
from skill_ttrl.skills.merge import group_digest, merge_groups, merged_samples
from skill_ttrl.skills.mergers import MergeReport, make_merger
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.skills.querying import bank_unchanged
from skill_ttrl.storage.jsonl import first_keys
from skill_ttrl.train.bank_changes import TestChange, outcome_record, verdict
from skill_ttrl.train.rules import Rules
from skill_ttrl.train.run_bank import models_of
from skill_ttrl.train.tasks import of_training
from skill_ttrl.types import BankUpdate, Group, Step, Task, Trajectory
from skill_ttrl.voting import majority_vote

Rows = list[tuple[Group, Sequence[bool], str]]
"""Groups of one step, each with which of its rollouts won and its `group_digest`."""


def read_samples(path: Path, notes: list[str]) -> list[tuple[int | None, Rows]]:
    """The samples of a run, of one of its files, or of records; see `merge.run`.

    Args:
        path: the source.
        notes: takes what should be said about it, such as a torn last line.

    Raises:
        DataError: it cannot be read; names the line.
    """
    if path.is_dir():
        if not RunFolder.exists(path):
            raise DataError(f"{path} is not a run folder (it has no run.json). Name a run, or one of its .jsonl files.")
        if not (path / TRAJECTORIES).is_file():
            raise DataError(
                f"{path} has no {TRAJECTORIES}: no step has finished yet, or the run has run.save_trajectories: false."
            )
        path = path / TRAJECTORIES
    return _from_trajectories(path, notes) if first_keys(path) >= {"task", "steps"} else _from_records(path)


def _from_records(path: Path) -> list[tuple[int | None, Rows]]:
    records = read_records(path)
    names = record_ids(records)
    types = [str(row.get("task_type") or "") for row in records.rows]
    found: Rows = []
    rows = zip(column(records, "problem"), text_lists(records, "responses"), names, types, strict=True)
    for problem, responses, name, task_type in rows:
        task = Task(id=name, env_id="", task_type=task_type)
        group = Group(task, tuple(answered(task, problem, text) for text in responses))
        found.append((group, majority_vote(group.answers).matches, group_digest(group, None)))
    return [(None, found)]


def answered(task: Task, problem: str, text: str) -> Trajectory:
    """A text as the rollout of a problem, with its answer and its operations; queries get no answer."""
    found = OutputParser().parse(text)
    return Trajectory(task, (Step(problem, text, 0.0, True, False),), found.answer, "terminated", ops=found.skill_ops)


def _from_trajectories(path: Path, notes: list[str]) -> list[tuple[int | None, Rows]]:
    rollouts: dict[Place, dict[str, list[Trajectory]]] = defaultdict(lambda: defaultdict(list))
    for _, place, trajectory in read_rollouts(path, notes):
        # Tokens are most of a trajectory and nothing to a merge, but for the text, which the action is only a part of.
        steps = tuple(
            replace(step, action=step.model_text, completion=None, prompt_ids=()) for step in trajectory.steps
        )
        rollouts[place][trajectory.task.id].append(replace(trajectory, steps=steps))
    if not rollouts:
        raise DataError(f"{path} holds no samples.")
    found: list[tuple[int | None, Rows]] = []
    for place, tasks in rollouts.items():
        groups = [Group(own[0].task, tuple(own)) for own in tasks.values()]
        rows: Rows = [(group, _winners(group), group_digest(group, place.step)) for group in groups]
        found.append((place.step, rows))
    return found


def _winners(group: Group) -> tuple[bool, ...]:
    """By reward; by a vote where no rollout has one."""
    if all(trajectory.reward is None for trajectory in group.trajectories):
        return majority_vote(group.answers).matches
    return tuple(winning(group))


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of a merge into a bank; with `dry_run`, of a merge that was only planned."""

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
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Cost of language models (`Ledger.report`); empty if none was called. A dry run calls them too."""
    gate: Mapping[str, Any] = field(default_factory=dict)
    """Decision of the gate (`bank_changes.outcome_record`); empty where nothing was tested. A dry run tests too."""


def run(
    source: str | Path,
    bank: str | Path,
    *,
    dry_run: bool = False,
    config: SkillTTRLConfig | None = None,
    gate: TestChange | None = None,
) -> MergeResult:
    """Merge the operations of a source's winners into a bank.

    Args:
        source: a run folder or its `trajectories.jsonl` (winners: the best reward of their group, or a vote where there are
            no rewards), or records with `problem` and `responses`, a list of texts, that are put to the vote first.
        bank: the bank's folder; made where it is not there.
        dry_run: plan only; nothing is written. A language model is asked all the same.
        config: its section `skills` is how to merge; also language models (`endpoints`), and where prompts are (`agent.prompts`).
        gate: test that the change has to pass, else nothing is merged (`commands.play.open_gate`). Counts of uses alone are not tested.

    Raises:
        DataError: the source cannot be read; names the line.
        ConfigError: no such merger, or a language model that it needs is not in the config.
        SkillBankError: the bank cannot be read or written.
        EndpointError, BudgetError: a language model gave no usable answer, or its budget is spent. Nothing was merged.
    """
    config = config or SkillTTRLConfig()
    Rules(config, "merge").check()
    skills, notes = config.skills or SkillsConfig(), list[str]()
    merge = partial(merge_groups, skills=skills, merger=make_merger(skills.merger, models=models_of(config)))
    with annotate_error(DataError, "Nothing was merged."):
        samples = read_samples(Path(source), notes)
    splits = config.training_splits
    if Path(source).is_dir():  # the run's own config states what the run trains on
        splits = splits | load_config(Path(source) / "config.yaml").training_splits
    rollouts = (each for _, rows in samples for group, *_ in rows for each in group.trajectories)
    deque(of_training(rollouts, splits, str(source)), maxlen=0)
    path, new = Path(bank), not is_bank(Path(bank))
    check_new(path)
    with (
        SkillBank() if new else SkillBank.open(path, read_only=dry_run) as opened,
        bank_unchanged("Nothing was merged."),
        track_usage(None, config.endpoints) as ledger,
    ):
        before, known = opened.snapshot(), merged_samples(opened.history())
        digests = [row[2] for _, rows in samples for row in rows]
        if versions := sorted({known[digest] for digest in digests if digest in known}):
            where = f"version {', '.join(map(str, versions[:5]))}{' …' * (len(versions) > 5)}"
            notes.append(
                f"{sum(digest in known for digest in digests)} of {len(digests)} groups of samples are in this bank already ({where}) and "
                f"are skipped. To merge them again, first undo that and all later changes: skillttrl skills rollback {bank} {versions[0] - 1}"
            )
        samples = [(step, [row for row in rows if row[2] not in known]) for step, rows in samples]
        with ledger.phase("merge"):
            # Step by step, into a copy in memory.
            copy, report = SkillBank.from_snapshot(before, max_skills=opened.settings.max_skills), MergeReport()
            for step, rows in samples:
                groups, winners = [row[0] for row in rows], [row[1] for row in rows]
                changes, counts = merge(groups, winners, copy.snapshot(), round=step)
                report += counts
                if changes:
                    why = UpdateMetadata(
                        reason="merge", evidence=dict.fromkeys(group.task.id for group in groups), round=step
                    )
                    copy.apply(changes, samples=[row[2] for row in rows], **why)
            updates, after = copy.history(), copy.snapshot()
        tested = gate(before, after) if gate is not None and content_changes(before, after) else None
        if tested is not None and not tested.decision.accept:
            updates, after = [], before
        if updates and not dry_run:
            with SkillBank(path) if new else nullcontext(opened) as written:
                for update in updates:
                    written.apply(update)
    trouble = report.trouble()
    notes += [trouble] if trouble else []
    notes += [] if tested is None else [verdict(tested)]
    if tested is None and not updates and any(rows for _, rows in samples):
        notes.append("Nothing to merge: no winner changed or used a skill of the bank.")
    return MergeResult(
        source=str(source),
        bank=str(bank),
        dry_run=dry_run,
        groups=sum(len(rows) for _, rows in samples),
        skills_before=len(before),
        skills_after=len(after),
        version=after.version,
        updates=tuple(updates),
        report=report,
        notes=tuple(notes),
        usage=ledger.report(),
        gate={} if tested is None else outcome_record(tested),
    )
