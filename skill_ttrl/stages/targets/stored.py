"""Samples that are there already: of an evaluation, of a run's training, or texts in a file of one's own.

They are read as visits (see `replay`). Everything in them is untrusted text.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from skill_ttrl.config import Source, load_config
from skill_ttrl.data.records import column, read_records
from skill_ttrl.data.tasks import load_tasks
from skill_ttrl.errors import ConfigError, DataError, EnvError, TrustError
from skill_ttrl.rollout.samples import SAMPLE, Sample, TaskSamples, sample_of
from skill_ttrl.runs.episode_logs import SAMPLES, SampleFolder, read_facts
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.stages.inputs.tasks import own_training_tasks
from skill_ttrl.storage.jsonl import first_keys, whole_lines
from skill_ttrl.types import Task, Trajectory, first_problem, from_json

T = TypeVar("T")

FILES = (".json", ".jsonl", ".parquet")
"""Endings of files with samples."""
LARGEST = 10**12
"""Size above which a log-probability or a length is a slip: no sample has it, and not every sum could hold it."""
VIEWS = (0, 1)
"""The question as given, and its paraphrase."""


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Samples to vote on."""

    visits: tuple[tuple[TaskSamples, ...], ...]
    """Problems that are voted on together: one for samples drawn once, one for each step of a run."""
    notes: tuple[str, ...] = ()
    """Notes on what was left out or could not be read."""
    trained_on: int | None = None
    """Problems that the policy was trained on; None where that is not known."""


def is_stored(source: str | Path) -> bool:
    """True if `source` names a file or is a folder that stores samples; anything else is a policy to sample."""
    if not str(source).strip():  # as a path it would be the working directory
        return False
    path = Path(source)
    return path.is_file() or path.suffix in FILES or SampleFolder.exists(path)


def read_stored(source: str | Path) -> SampleSet:
    """Samples of a file or folder.

    Args:
        source: the `--output` of `evaluate` or `vote` or its `samples.jsonl`; the `trajectories.jsonl` of a run, whose true
            answers are taken from the run's data; or records with `problem`, `responses` (a list of texts) and where they are
            known `answer`, `logprobs`, `lengths`, `views` (lists of as many numbers).

    Raises:
        DataError: it cannot be read, or holds no samples; names the line.
    """
    path = Path(source)
    if path.is_dir():
        path = path / SAMPLES
    keys = first_keys(path)
    if keys >= {"draw", "task", "samples"}:
        return _from_samples(path)
    if keys >= {"task", "steps"}:
        return _from_trajectories(path)
    return _from_records(path)


def _from_samples(path: Path) -> SampleSet:
    notes: list[str] = []
    rows = [_parsed(TaskSamples, line, where) for where, line in whole_lines(path, notes)]
    main = tuple(row for row in rows if row.draw == SAMPLE and row.samples)
    for row in main:
        for number, sample in enumerate(row.samples):
            _refuse_unsound(sample, f"{path}, sample {number} of problem {row.task.id!r}")
    if not main:
        raise DataError(
            f"{path} holds no samples at a temperature, only {', '.join(sorted({row.draw for row in rows}))}."
        )
    facts = read_facts(path.parent)
    seen = facts.get("trained_on") if isinstance(facts, dict) else None
    trained_on = sum([row.source, row.task.id] in seen for row in main) if isinstance(seen, list) else None
    return SampleSet((main,), tuple(notes), trained_on)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line of a run's file belongs."""

    phase: str = ""
    step: int | None = None


def _from_trajectories(path: Path) -> SampleSet:
    notes: list[str] = []
    rollouts: dict[_Place, dict[str, list[tuple[Task, Sample]]]] = defaultdict(lambda: defaultdict(list))
    for where, line in whole_lines(path, notes):
        place, trajectory = _parsed(_Place, line, where), _parsed(Trajectory, line, where)
        # Tokens are most of a trajectory; of them only sums are kept.
        sample = sample_of(trajectory)
        _refuse_unsound(sample, where)
        rollouts[place][trajectory.task.id].append((trajectory.task, sample))
    if not rollouts:
        raise DataError(f"{path} holds no samples.")
    references = _references(path.parent, notes)
    visits = []
    for tasks in rollouts.values():
        rows = []
        for name, group in tasks.items():
            task = next((task for task, sample in group if sample.prompt_variant == 0), group[0][0])
            task = replace(task, ground_truth=task.ground_truth or references.get(name))
            rows.append(TaskSamples("", SAMPLE, task, tuple(sample for _, sample in group)))
        visits.append(tuple(rows))
    problems = {name for tasks in rollouts.values() for name in tasks}
    return SampleSet(tuple(visits), tuple(notes), len(problems))  # a run writes down what it is trained on


def _references(run: Path, notes: list[str]) -> dict[str, str]:
    """True answers of a run's training problems by id: its trajectories have none, as the trainer had none."""
    if not RunFolder.exists(run):
        return {}
    try:
        tasks = own_training_tasks(load_config(run / "config.yaml"))
    except (ConfigError, DataError, EnvError, TrustError) as error:
        notes.append(f"True answers are missing because the run's training problems cannot be read: {error}")
        return {}
    return {task.id: task.ground_truth for task in tasks if task.ground_truth is not None}


def _from_records(path: Path) -> SampleSet:
    records = read_records(path)
    if "responses" not in records.columns:
        raise DataError(
            f"{path} contains no samples: neither lines of {SAMPLES} or of a run's trajectories.jsonl, nor records with 'problem' "
            f"and 'responses' (it has: {', '.join(map(repr, records.columns))}). To draw samples, give --policy and --data."
        )
    name = "problem" if "problem" in records.columns else Source.model_fields["prompt_field"].default
    tasks = load_tasks(Source(path=str(path), prompt_field=name), "")
    rows = []
    for task, row, responses, where in zip(
        tasks, records.rows, column(records, "responses", list), records.places, strict=True
    ):
        if not responses or not all(isinstance(text, str) for text in responses):
            raise DataError(f"{where}: 'responses' must be a list of at least one text.")
        columns = []
        for key in ("logprobs", "lengths", "views"):
            given = row.get(key)
            if given is not None and (not isinstance(given, list) or len(given) != len(responses)):
                raise DataError(f"{where}: {key!r} must be a list of {len(responses)} numbers, one for each response.")
            columns.append(given or [None] * len(responses))
        samples = []
        for number, (text, logprob, length, view) in enumerate(zip(responses, *columns, strict=True)):
            answer = OutputParser().parse(text).answer
            sample = Sample(text, answer, logprob, length, prompt_variant=0 if view is None else view)
            _refuse_unsound(sample, f"{where}, response {number}")
            samples.append(sample)
        rows.append(TaskSamples("", SAMPLE, task, tuple(samples)))
    return SampleSet((tuple(rows),))


def _is_number(value: Any) -> bool:
    """Also where it has hundreds of digits, of which nothing floating can be made; not a number is within no bounds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _refuse_unsound(sample: Sample, where: str) -> None:
    """Raise `DataError` where a sample has numbers that no sampling gives."""
    if sample.logprob is not None and not _is_number(sample.logprob):
        raise DataError(f"{where}: its log-probability must be a number up to {LARGEST:g} in size.")
    if sample.tokens is not None and not (_is_number(sample.tokens) and 0 <= sample.tokens == int(sample.tokens)):
        raise DataError(f"{where}: its tokens must be a whole number from 0 to {LARGEST:g}.")
    if sample.prompt_variant not in VIEWS:
        raise DataError(f"{where}: its view must be 0 (answers the question) or 1 (answers its paraphrase).")


def _parsed(kind: type[T], line: bytes, where: str) -> T:
    try:
        return from_json(kind, line)
    except ValidationError as error:
        raise DataError(f"{where} cannot be read: {first_problem(error)}.") from None
