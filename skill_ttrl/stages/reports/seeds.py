"""A folder of runs under several seeds, and what they reach together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.stages.reports.summary_text import summary_rows
from skill_ttrl.statistics import Interval, repeats_interval
from skill_ttrl.storage.jsonl import parse_json

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
    confidence: float = 0.95
    before: dict[str, OverSeeds] = field(default_factory=dict)
    """By figure, as reports name it."""
    after: dict[str, OverSeeds] = field(default_factory=dict)
    change: dict[str, OverSeeds] = field(default_factory=dict)
    """After less before, seed by seed."""
    seconds: float = 0.0
    """Wall time of all together."""


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
    rows = [summary_rows(each) for each in ended]
    confidence = ended[0].confidence if ended else 0.95
    return Seeds(
        str(path),
        name,
        tuple(seeds),
        tuple(found),
        confidence,
        _together([{label: before for label, before, _ in each} for each in rows], confidence),
        _together([{label: after for label, _, after in each} for each in rows], confidence),
        _together([{label: _change(before, after) for label, before, after in each} for each in rows], confidence),
        sum(seconds for each in ended for phase, seconds in each.seconds.items() if "." not in phase),
    )


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _together(rows: Sequence[dict[str, float | None]], confidence: float) -> dict[str, OverSeeds]:
    """Figures that every seed has."""
    found = {}
    for label in rows[0] if rows else ():
        values = [value for row in rows if (value := row.get(label)) is not None]
        if len(values) == len(rows):
            spread = stdev(values) if len(values) > 1 else None
            interval = repeats_interval(values, confidence=confidence)
            found[label] = OverSeeds(fmean(values), spread, interval, tuple(values))
    return found


def named_seeds(path: Path) -> tuple[str, list[int]]:
    """Name and seeds of the runs in a folder of seeds.

    Raises:
        RunFolderError: it is none, or cannot be read.
    """
    try:
        found = parse_json((path / SEEDS).read_text(encoding="utf-8"))
        name, seeds = found["name"], found["seeds"]
        if not isinstance(name, str) or not all(type(seed) is int and seed >= 0 for seed in seeds):
            raise ValueError(f"name {name!r}, seeds {seeds!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"Cannot read the seeds in {path / SEEDS}: {error!r}.") from None
    return name, seeds
