"""`skillttrl merge`: samples or votes in, bank out.

The source is read as a whole and the updates are planned on a copy in memory before the bank is touched: a malformed line,
an update that does not fit, or a language model that gives no usable answer, leaves it as it was.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from skill_ttrl.config import SkillsConfig, SkillTTRLConfig, load_config
from skill_ttrl.data.records import column, read_records, record_ids
from skill_ttrl.errors import BudgetError, ConfigError, DataError, EndpointError, annotate_error
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.bank.folder import is_bank
from skill_ttrl.skills.merge.make import make_extractor, make_merger
from skill_ttrl.skills.merge.merged import group_digest, merged_samples
from skill_ttrl.skills.merge.plan import MergeRules, merge_groups
from skill_ttrl.skills.merge.report import MergeReport
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.stages.setup.leak import foreign_splits, settle, training_splits
from skill_ttrl.stages.training.run_bank import models_of, winning
from skill_ttrl.storage.jsonl import first_keys, whole_lines
from skill_ttrl.types import BankUpdate, Group, Step, Task, Trajectory, VoteResult, first_problem, from_json
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
    usage: Mapping[str, Any] = field(default_factory=dict)
    """What was spent on language models (`Ledger.report`); empty where none was asked. A dry run asks too."""


@dataclass(frozen=True, slots=True)
class _Samples:
    """The groups of one step, and which of their tries won."""

    step: int | None
    groups: tuple[Group, ...]
    winners: tuple[tuple[bool, ...], ...]
    digests: tuple[str, ...]
    """Of each group (`group_digest`)."""

    @classmethod
    def of(cls, step: int | None, groups: Sequence[Group], winners: Sequence[Sequence[bool]]) -> _Samples:
        """The groups of a step."""
        digests = tuple(group_digest(group, step) for group in groups)
        return cls(step, tuple(groups), tuple(map(tuple, winners)), digests)

    def without(self, known: Collection[str]) -> _Samples:
        """Those that are not known."""
        rows = zip(self.groups, self.winners, self.digests, strict=True)
        new = [row for row in rows if row[2] not in known]
        return _Samples(self.step, *(tuple(column) for column in (zip(*new, strict=True) if new else ((), (), ()))))


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
    merger: str | None = None,
    config: SkillTTRLConfig | None = None,
) -> MergeResult:
    """Merge the operations of a source's winners into a bank.

    Args:
        source: a run folder or its `trajectories.jsonl` (winners: the best reward of their group, or a vote where there are
            no rewards), its `votes.jsonl` (winners: those of the votes), or records with `problem` and `responses`, a list
            of texts, that are put to the vote first.
        bank: the bank's folder; made where it is not there.
        dry_run: plan only; nothing is written. A language model is asked all the same.
        extract: take a skill from winners' solutions where none of a group wrote one.
        by: one update for each step of a run, or one for all.
        merger: name of the merger; None: the config's, else `heuristic`.
        config: says which language models may be asked (`endpoints`), who extracts and what happens when a model fails
            (`skills.extractor`, `skills.on_failure`), how many new skills a problem may bring
            (`skills.max_skills_per_problem`), and where prompts are (`agent.prompts`).

    Raises:
        DataError: the source cannot be read; names the line.
        ConfigError: no such merger or extractor, or a language model that it needs is not in the config.
        SkillBankError: the bank cannot be read or written.
        EndpointError: a language model gave no usable answer. Nothing was merged.
        BudgetError: what may be spent on language models is spent. Nothing was merged.
    """
    if by not in ("step", "all"):
        raise ConfigError(f"by is 'step' or 'all', found {by!r}.")
    config = config or SkillTTRLConfig()
    skills = config.skills or SkillsConfig()
    models = models_of(config)
    rules = MergeRules(
        make_merger(merger or skills.merger, models=models),
        make_extractor(skills.extractor, models=models) if extract else None,
        max_skills_per_problem=skills.max_skills_per_problem,
    )
    notes: list[str] = []
    samples = _read(Path(source), notes)
    notes += _foreign_rollouts(samples, Path(source), config)
    if by == "all":
        samples = [_joined(samples)]
    with _open(Path(bank), dry_run) as kept, _unmerged(), track_usage(None, config.endpoints) as ledger:
        before = kept.snapshot()
        known = merged_samples(kept.history())
        samples, again = [part.without(known) for part in samples], samples
        notes += _merged_before(again, known, bank)
        plan = SkillBank.from_snapshot(before, max_skills=kept.settings.max_skills)
        with ledger.phase("merge"):
            updates, report = _plan_updates(samples, plan, rules)
        if not dry_run:
            for update in updates:
                kept.apply(update)
        after = plan.snapshot()
    trouble = report.trouble()
    if trouble:
        notes.append(trouble)
    if not updates and any(part.groups for part in samples):
        notes.append(
            "Nothing to merge: no winner asked for a change of the bank, and none was given one of its skills."
        )
    return MergeResult(
        source=str(source),
        bank=str(bank),
        dry_run=dry_run,
        groups=sum(len(part.groups) for part in samples),
        skills_before=len(before),
        skills_after=len(after),
        version=after.version,
        updates=tuple(updates),
        report=report,
        notes=tuple(notes),
        usage=ledger.report(),
    )


def _foreign_rollouts(samples: Sequence[_Samples], source: Path, config: SkillTTRLConfig) -> list[str]:
    """Notes on rollouts of splits that neither the config nor the run trains on."""
    splits = training_splits(config)
    if source.is_dir():  # the run's own config states what the run trains on
        splits |= training_splits(load_config(source / "config.yaml"))
    rollouts = (each for part in samples for group in part.groups for each in group.trajectories)
    return settle(config, foreign_splits(rollouts, splits, str(source)))


def _plan_updates(
    samples: Sequence[_Samples], bank: SkillBank, rules: MergeRules
) -> tuple[list[BankUpdate], MergeReport]:
    """Merge step by step into `bank`, a copy in memory: its updates, and the counts over all."""
    updates, total = list[BankUpdate](), MergeReport()
    for part in samples:
        changes, report = merge_groups(part.groups, part.winners, bank.snapshot(), rules, round=part.step)
        total += report
        if changes:
            tasks = dict.fromkeys(group.task.id for group in part.groups)
            updates.append(bank.apply(changes, reason="merge", evidence=tasks, round=part.step, samples=part.digests))
    return updates, total


def _merged_before(samples: Sequence[_Samples], known: Mapping[str, int], bank: str | Path) -> list[str]:
    """A sentence on the groups that are in the bank already; none where all are new."""
    digests = [digest for part in samples for digest in part.digests]
    versions = sorted({known[digest] for digest in digests if digest in known})
    if not versions:
        return []
    count = sum(digest in known for digest in digests)
    where = f"version {', '.join(map(str, versions[:5]))}{' …' * (len(versions) > 5)}"
    return [
        f"{count} of {len(digests)} groups of samples were merged into this bank before ({where}) and are not counted again. "
        f"To merge them anew, first undo that and what came after it: skillttrl skills rollback {bank} {versions[0] - 1}"
    ]


@contextmanager
def _open(path: Path, dry_run: bool) -> Iterator[SkillBank]:
    """The bank; one that was made for a merge that fails, or changes nothing, is taken away again."""
    new = not is_bank(path) and not dry_run
    missing = next((each for each in reversed((path, *path.parents)) if not each.exists()), None)
    bank = SkillBank(path) if new else SkillBank.open(path, read_only=dry_run) if is_bank(path) else SkillBank()
    whole = False
    try:
        with bank:
            yield bank
        whole = bank.version > 0
    finally:
        if new and not whole and missing is not None:
            shutil.rmtree(missing)
        elif new and not whole:  # the folder was there, and empty
            for entry in path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


@contextmanager
def _unmerged() -> Iterator[None]:
    """Says of a language model that failed what it means for the bank."""
    ways = "go on without it: skills.on_failure=skip, or heuristic"
    with (
        annotate_error(EndpointError, f"Nothing was merged. To {ways}."),
        annotate_error(BudgetError, "Nothing was merged."),
    ):
        yield


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
    return [_Samples.of(None, groups, winners)]


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
        found.append(_Samples.of(step, groups, winners))
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
        what = f"{where} is no line of a run's {VOTES if kind is VoteResult else TRAJECTORIES}"
        raise DataError(f"{what}: {first_problem(error)}. Nothing was merged.") from None


def _joined(samples: Sequence[_Samples]) -> _Samples:
    """All steps as one; its round is the last step's."""
    steps = [part.step for part in samples if part.step is not None]
    return _Samples(
        max(steps, default=None),
        tuple(group for part in samples for group in part.groups),
        tuple(wins for part in samples for wins in part.winners),
        tuple(digest for part in samples for digest in part.digests),
    )
