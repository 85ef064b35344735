"""Figures of a benchmark's runs, and the published ones that they are held against (benchmarks/published/*.json)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skill_ttrl.errors import DataError
from skill_ttrl.statistics import Interval, paired_difference, student
from skill_ttrl.storage.files import write_atomic
from skill_ttrl.train.results import Evaluation, ProblemResult

CONFIDENCE = 0.95
"""Chance that all figures that decide lie in their intervals, where nothing differs but the seed; of any other figure its own."""
CONTROL = "control"
PROBLEMS_WORTH = 2
"""Degrees of freedom of the variance from the problems, in the pool with that of the repetitions."""
COLUMNS = ("figure", "published", "interval for one seed", "reproduced", "agrees")


@dataclass(frozen=True)
class Figure:
    """A figure of one run."""

    value: float
    interval: Interval
    """Over its problems."""


@dataclass(frozen=True)
class PublishedFigure:
    """A figure of several runs that differ in their seed."""

    name: str
    values: list[float]
    """One a seed, in the order of `Published.seeds`."""
    interval: Interval
    """In which a run with another seed is expected (`prediction_interval`)."""
    decides: bool
    """It says if a reproduction agrees; the others are shown beside it."""

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


@dataclass(frozen=True)
class Published:
    """What was published of a benchmark, as its JSON file has it."""

    benchmark: str
    recipe: str
    settings: list[str]
    """Of the runs, beside the recipe's own (`--set`)."""
    config_digest: str
    seeds: list[int]
    command: str
    date: str
    hardware: str
    minutes: list[float]
    """Wall time of each run."""
    versions: dict[str, str]
    confidence: float = CONFIDENCE
    figures: list[PublishedFigure] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A published figure beside the reproduced one."""

    name: str
    published: float
    interval: Interval
    reproduced: float | None
    """None: it was not measured."""
    agrees: bool
    decides: bool


def evaluation_figures(found: Evaluation, name: str) -> dict[str, Figure]:
    """Success by way of sampling, and scores where there are any; `name` says on what and how."""
    ways = {f"T = {found.temperature:g}": (found.accuracy, found.accuracy_interval)}
    ways |= {_sampled(way): (each.accuracy, each.interval) for way, each in found.by_sampling.items()}
    scores = {
        f"T = {found.temperature:g}, score": (found.score, found.score_interval),
        "greedy, score": (found.greedy_score, found.greedy_score_interval),
    }
    return {
        f"{name}: {way}": Figure(value, interval)
        for way, (value, interval) in {**ways, **scores}.items()
        if value is not None and interval is not None
    }


def control_figures(found: Evaluation, name: str) -> dict[str, Figure]:
    """Success of the scripted agents on the same tasks."""
    return {
        f"{name}: {CONTROL} {agent}": Figure(each.accuracy, each.interval) for agent, each in found.controls.items()
    }


def change_figures(before: Evaluation, after: Evaluation, name: str) -> dict[str, Figure]:
    """Success after less success before on the same problems, paired; `name` says of what."""
    kinds = {f"T = {after.temperature:g}": _success, "greedy": _greedy, f"T = {after.temperature:g}, score": _score}
    found = {}
    for way, read in kinds.items():
        first, second = ({each.task: read(each) for each in one.results} for one in (before, after))
        if first.keys() != second.keys() or any(value is None for value in (*first.values(), *second.values())):
            continue
        difference, low, high = paired_difference(list(first.values()), [second[task] for task in first])
        found[f"{name}: {way}"] = Figure(difference, (low, high))
    return found


def prediction_interval(values: ArrayLike, intervals: Sequence[Interval], *, confidence: float = 0.95) -> Interval:
    """Interval of one further repetition of a whole experiment on the same problems, such as training with another seed.

    Student's, around the mean of the repetitions. Few of them say little of their own spread: two or three may agree by chance. So
    the variance is pooled with the one that the problems alone would give, which counts as `PROBLEMS_WORTH` degrees of freedom
    (moderated t, Smyth 2004, doi:10.2202/1544-6115.1027). That one takes the problems for drawn anew, and they are the same: where
    seeds matter little the interval is too wide rather than too narrow. Simulated in tests/unit/benchmarks/test_reproduction.py.

    Args:
        values: One value a repetition.
        intervals: Interval of each over its problems, at the level 0.95.
        confidence: Level of the result, in (0, 1).

    Returns:
        (low, high), not cut off at the ends of a scale.

    Raises:
        ValueError: there are no values, or not as many intervals.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.size == 0 or found.size != len(intervals):
        raise ValueError(
            f"Found {found.size} values and {len(intervals)} intervals; one of each a repetition is needed."
        )
    by_problems = float(np.mean([((high - low) / (2 * NormalDist().inv_cdf(0.975))) ** 2 for low, high in intervals]))
    freedom = found.size - 1 + PROBLEMS_WORTH
    pooled = (PROBLEMS_WORTH * by_problems + float(((found - found.mean()) ** 2).sum())) / freedom
    half = student(confidence, freedom) * math.sqrt(pooled * (1 + 1 / found.size))
    return float(found.mean()) - half, float(found.mean()) + half


def summarize_seeds(found: Sequence[Mapping[str, Figure]], decides: Sequence[str]) -> list[PublishedFigure]:
    """The figures that all runs have, those that decide first; controls decide besides, and are to be as low as they were.

    Raises:
        DataError: a figure that is to decide is not there.
    """
    names = [name for name in found[0] if all(name in each for each in found)]
    if missing := [name for name in decides if name not in names]:
        raise DataError(f"The runs have no {missing[0]!r}, which is to decide. Found: {', '.join(names)}.")
    own = 1 - (1 - CONFIDENCE) / len(decides)  # Bonferroni
    published = []
    for name in sorted(names, key=lambda name: (name not in decides, f": {CONTROL} " not in name, names.index(name))):
        figures, control = [each[name] for each in found], f": {CONTROL} " in name
        low, high = prediction_interval(
            [each.value for each in figures],
            [each.interval for each in figures],
            confidence=own if name in decides else CONFIDENCE,
        )
        bounds = (low, high) if min(each.interval[0] for each in figures) < 0 else (max(0.0, low), min(1.0, high))
        published.append(PublishedFigure(name, [each.value for each in figures], bounds, control or name in decides))
    return published


def compare(published: Published, found: Mapping[str, Figure]) -> list[Row]:
    """One row a published figure."""
    return [
        Row(
            each.name,
            each.mean,
            each.interval,
            value,
            value is not None and _inside(value, each.interval),
            each.decides,
        )
        for each in published.figures
        for value in [found[each.name].value if each.name in found else None]
    ]


def verdict(rows: Sequence[Row]) -> bool:
    """True if every figure that decides agrees."""
    return all(row.agrees for row in rows if row.decides)


def table(rows: Sequence[Row], published: Published) -> str:
    """The rows as text in columns, and below them what they come to."""
    cells = [COLUMNS, *map(_cells, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    others = [row for row in rows if not row.decides]
    outside = sum(not row.agrees for row in others)
    words = (
        f"The figures that decide (*) {'agree' if verdict(rows) else 'DO NOT AGREE'} with those published ({len(published.seeds)} seeds). "
        f"Of the {len(others)} others {outside} lie outside of their intervals; about 1 in 20 may."
    )
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", words])


def read_published(path: Path) -> Published:
    """Read the stored figures of a benchmark.

    Raises:
        DataError: there is no such file, or it is no such file.
    """
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        figures = [PublishedFigure(**{**each, "interval": tuple(each["interval"])}) for each in raw.pop("figures")]
        return Published(**raw, figures=figures)
    except FileNotFoundError:
        raise DataError(f"Nothing is published at {path} yet. --publish RUN RUN RUN makes it.") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} cannot be read ({error}). --publish RUN RUN RUN makes it again.") from None


def write_published(path: Path, published: Published) -> None:
    """Write the stored figures of a benchmark, six digits each."""
    raw = asdict(published)
    raw["figures"] = [
        {
            **each,
            "values": [round(value, 6) for value in each["values"]],
            "interval": [round(v, 6) for v in each["interval"]],
        }
        for each in raw["figures"]
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(raw, indent=1) + "\n").encode())


def _sampled(way: str) -> str:
    return way if way == "greedy" else f"T = {float(way):g}"


def _success(result: ProblemResult) -> float | None:
    return None if result.correct is None else result.correct / result.samples


def _greedy(result: ProblemResult) -> float | None:
    return None if result.greedy_correct is None else float(result.greedy_correct)


def _score(result: ProblemResult) -> float | None:
    return result.score


def _inside(value: float, interval: Interval) -> bool:
    return interval[0] - 1e-6 <= value <= interval[1] + 1e-6  # the file has six digits


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name + " *" * row.decides,
        f"{row.published:.3f}",
        f"[{row.interval[0]:.3f}, {row.interval[1]:.3f}]",
        "not measured" if row.reproduced is None else f"{row.reproduced:.3f}",
        "yes" if row.agrees else "NO",
    )
