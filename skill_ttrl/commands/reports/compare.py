"""`skillttrl inspect`: the difference between policies, task by task.

What is compared: runs (their last evaluation), folders of runs under several seeds (each task's mean over them), and folders that
`skillttrl evaluate --output` has written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from skill_ttrl.commands.optimize_results import is_optimization
from skill_ttrl.commands.reports.summary_text import difference_in_words, short, summary_rows, with_interval
from skill_ttrl.errors import ConfigError, DataError, RunFolderError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.reader import read_run
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.statistics import Interval, paired_difference, repeats_interval, verdict
from skill_ttrl.storage.files import still_running
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.train.results import EVALUATION, Evaluation, ProblemResult, read_evaluations

FIGURES = {"accuracy": "avg@k", "majority": "maj@k", "greedy": "greedy", "score": "score"}
"""The metrics that are compared, and their names in a table."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One of the compared, task by task."""

    path: str
    label: str
    """Which evaluation: "after", "before", or the evaluated policy's name."""
    where: str | None
    """Where its tasks come from; None: not known."""
    samples: int
    values: Mapping[str, Mapping[str, float]]
    """By figure, the share of each task in [0, 1], by its id; only figures that every task has."""
    notes: tuple[str, ...] = ()
    """Of runs that have not ended."""
    runs: int = 0
    """Trainings that it is the mean of; 0: not known to be of any."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of two policies."""

    one: float
    other: float
    difference: float
    """`other` less `one`."""
    interval: Interval
    tasks: int
    """Number of tasks that both were measured on."""

    def cells(self) -> tuple[Any, ...]:
        """Both values, the difference with its interval, and the verdict."""
        change = with_interval(self.difference, self.interval, "+")
        return short(self.one), short(self.other), change, verdict(self.interval)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two policies."""

    one: str
    other: str
    figures: Mapping[str, Change] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def in_words(self) -> list[str]:
        """Say of each figure whether the difference may be chance."""
        one, other = Path(self.one), Path(self.other)
        name = other.name if other.name != one.name else str(other)
        return [
            difference_in_words(FIGURES[figure], name, found.difference, found.interval, found.tasks)
            for figure, found in self.figures.items()
        ]


def runs_in(folder: Path) -> list[Path]:
    """Run folders in `folder` and one level below it, such as `seed-0` of a folder of seeds, in the order of their names."""
    found = []
    for entry in sorted(folder.iterdir()):
        if RunFolder.exists(entry):
            found.append(entry)
        elif entry.is_dir() and not entry.is_symlink():
            found += [inner for inner in sorted(entry.iterdir()) if RunFolder.exists(inner)]
    return found


def compare(paths: Sequence[str | Path]) -> list[Comparison]:
    """Each of `paths` after the first against the first.

    Args:
        paths: at least two: runs, folders of seeds, or folders of `evaluate --output`.

    Raises:
        ConfigError: fewer than two were named.
        RunFolderError: one of them is none of these, or holds no evaluation.
        DataError: nothing was measured of both.
    """
    if len(paths) < 2:
        raise ConfigError("Name at least two: skillttrl inspect A B [C ...].")
    first, *others = [measured(path) for path in paths]
    return [compare_two(first, other) for other in others]


def compare_two(one: Measured, other: Measured) -> Comparison:
    """`other` against `one`.

    Raises:
        DataError: no figure was measured of both, or they share no task.
    """
    names = [name for name in FIGURES if name in one.values and name in other.values]
    if not names:
        raise DataError(f"Nothing was measured of both {one.path} and {other.path}: metrics need true answers.")
    if one.where is not None and other.where is not None and one.where != other.where:
        raise DataError(f"{one.path} and {other.path} were measured on different tasks: {one.where} and {other.where}.")
    shared = [task for task in one.values[names[0]] if task in other.values[names[0]]]
    counts = len(one.values[names[0]]), len(other.values[names[0]])
    if not shared:
        raise DataError(f"{one.path} and {other.path} share no task, so nothing can be compared task by task.")
    notes = [*one.notes, *other.notes]
    if counts != (len(shared), len(shared)):
        notes.append(f"Paired over the {len(shared)} tasks that both have, of {counts[0]} and {counts[1]}.")
    figures = {}
    for name in names:
        before, after = ([each.values[name][task] for task in shared] for each in (one, other))
        difference, low, high = paired_difference(before, after)
        figures[name] = Change(fmean(before), fmean(after), difference, (low, high), len(shared))
    if one.samples != other.samples:
        notes.append(f"avg@k of {one.samples} and of {other.samples} samples a task.")
    if 1 in (one.runs, other.runs):
        notes.append("Verdicts are over tasks: another seed of training may give another difference (train --seeds).")
    return Comparison(one.path, other.path, figures, notes)


def measured(path: str | Path) -> Measured:
    """The evaluation of a run, of a folder of seeds (each task's mean over them), or that `evaluate --output` has kept.

    Raises:
        RunFolderError: there is none.
    """
    path = Path(path)
    if RunFolder.exists(path):
        return _of_run(path)
    if (path / EVALUATION).is_file() or path.name == EVALUATION:
        file = path if path.is_file() else path / EVALUATION
        if not (parts := read_evaluations(file)):
            raise RunFolderError(f"{file} holds no evaluation.")
        return Measured(str(file.parent), parts[0].label, None, parts[0].samples, _values(parts))
    runs = [_of_run(run) for run in runs_in(path)] if path.is_dir() else []
    if not runs:
        raise RunFolderError(f"{path} is not a run, a folder of runs, or a folder of `skillttrl evaluate --output`.")
    ended = [run for run in runs if run.label == "after"] or runs
    left_out = ", ".join(run.path for run in runs if run not in ended)
    notes = [f"Left out, their training has not ended: {left_out}."] if left_out else []
    notes += [note for run in ended for note in run.notes]
    places = sorted({str(run.where) for run in ended})
    if len(places) > 1:
        raise RunFolderError(f"The runs in {path} were measured on different tasks: {', '.join(places)}.")
    first, means = ended[0], {}
    for name in [name for name in FIGURES if all(name in run.values for run in ended)]:
        tasks = [task for task in first.values[name] if all(task in run.values[name] for run in ended)]
        means[name] = {task: math.fsum(run.values[name][task] for run in ended) / len(ended) for task in tasks}
    label = f"mean of {len(ended)} runs"
    return Measured(str(path), label, first.where, first.samples, means, tuple(notes), len(ended))


def _of_run(path: Path) -> Measured:
    if is_optimization(path):
        raise RunFolderError(
            f"{path} holds an optimization, whose summary compares its first document with its best. Two such documents: skillttrl evaluate "
            "POLICY --document FILE --output FOLDER for each, then compare the folders."
        )
    known = {each.label: each for each in read_evaluations(path)}
    found = known.get("after") or known.get("before")
    if found is None:
        going = still_running(path)
        then = f"It is {going}" if going else "Continue the run with --resume auto"
        raise RunFolderError(f"{path} holds no evaluation yet. {then}.")
    config = read_run(path).config
    source = config.eval_source or config.train_source
    data = {} if source is None else {"data": source.path} | ({"revision": source.revision} if source.revision else {})
    kwargs = {name: value for name, value in config.env.kwargs.items() if name != "split"}
    settings = (
        f"{name} {json.dumps(value, sort_keys=True, default=str)}"
        for each in (kwargs, data)
        for name, value in sorted(each.items())
    )
    where = ", ".join([config.env.id, *settings, f"split {found.split}"])
    note = f"The training of {path} has not ended, so its evaluation before training is compared."
    notes = (note,) if found.label == "before" else ()
    return Measured(str(path), found.label, where, found.samples, _values([found]), notes, 1)


def _values(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, float]]:
    """Metrics that every evaluation reports, task by task: where nothing gives an answer there is no majority to compare."""
    results = [result for each in evaluations for result in each.results]
    found = {}
    for name, of in HEADLINES.items():
        values = {result.task: value for result in results if (value := of(result)) is not None and 0 <= value <= 1}
        if values and len(values) == len(results) and all(getattr(each, name) is not None for each in evaluations):
            found[name] = values
    return found


HEADLINES: dict[str, Callable[[ProblemResult], float | None]] = {
    "accuracy": lambda result: None if result.correct is None else result.correct / max(1, result.samples),
    "majority": lambda result: None if result.majority_correct is None else float(result.majority_correct),
    "greedy": lambda result: None if result.greedy_correct is None else float(result.greedy_correct),
    "score": lambda result: result.score,
}
"""The figures that are compared, each as what it is on one problem."""


SEEDS = "seeds.json"
"""Marks a folder of runs under several seeds, and says which."""


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """One figure over seeds."""

    mean: float
    spread: float | None
    """Standard deviation over seeds; None of one."""
    interval: Interval | None
    """Student's, of the mean over seeds; None of fewer than two, or where all are equal."""
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Seeds:
    """Figures of runs that differ only in their seed. Those that have not ended are left out of the figures."""

    path: str
    name: str
    seeds: tuple[int, ...]
    ended: tuple[int, ...]
    before: dict[str, OverSeeds] = field(default_factory=dict)
    """By figure, as reports name it."""
    after: dict[str, OverSeeds] = field(default_factory=dict)
    change: dict[str, OverSeeds] = field(default_factory=dict)
    """After less before, seed by seed."""
    seconds: float = 0.0
    """Wall time of all together."""

    def in_words(self) -> list[str]:
        """Say of each headline figure whether its change by training may be chance."""
        return [
            difference_in_words(label, "after training", each.mean, each.interval, len(each.values), "seeds")
            for label, each in self.change.items()
            if is_headline(label) and each.interval is not None
        ]


def is_headline(label: str) -> bool:
    """Tell whether a row of a table of figures is one of the headline metrics."""
    return "," not in label and label.startswith(("avg@", "maj@", "greedy", "score"))


def is_seeds(path: str | Path) -> bool:
    """Tell whether `path` is a folder that `run_seeds` has begun."""
    return Path(path, SEEDS).is_file()


def read_seeds(path: str | Path) -> Seeds:
    """Read the figures that the runs in a folder of seeds have so far.

    Raises:
        RunFolderError: it is none, or cannot be read.
    """
    path = Path(path)
    name, seeds = named_seeds(path)
    folders = {seed: path / f"seed-{seed}" for seed in seeds}
    found = {seed: read_summary(each) for seed, each in folders.items() if (each / "summary.json").is_file()}
    ended = list(found.values())
    rows = [
        [(label, one, two, None if one is None or two is None else two - one) for label, one, two in summary_rows(each)]
        for each in ended
    ]
    before, after, change = (
        _together([{row[0]: row[at] for row in each} for each in rows], shares=at < 3) for at in (1, 2, 3)
    )
    spent = sum(seconds for each in ended for phase, seconds in each.seconds.items() if "." not in phase)
    return Seeds(str(path), name, tuple(seeds), tuple(found), before, after, change, spent)


def _together(rows: Sequence[dict[str, Any]], *, shares: bool) -> dict[str, OverSeeds]:
    """Figures that every seed has; `shares`: they are values, most of them shares, and no changes."""
    found = {}
    for label in rows[0] if rows else ():
        values = [value for row in rows if (value := row.get(label)) is not None]
        if len(values) == len(rows):
            spread = stdev(values) if len(values) > 1 else None
            share = shares and not label.startswith(("entropy", "score"))
            interval = repeats_interval(values, within=(0.0, 1.0)) if share else repeats_interval(values)
            found[label] = OverSeeds(fmean(values), spread, interval, tuple(values))
    return found


def named_seeds(path: Path) -> tuple[str, list[int]]:
    """Name and seeds of the runs in a folder of seeds.

    Raises:
        RunFolderError: it is none, or cannot be read.
    """
    try:
        found = parse_json((path / SEEDS).read_text(encoding="utf-8"))
        return str(found["name"]), [int(seed) for seed in found["seeds"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"Cannot read the seeds in {path / SEEDS}: {error!r}.") from None
