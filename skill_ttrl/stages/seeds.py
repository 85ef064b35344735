"""`skillttrl train --seeds 0,1,2`: one run a seed in a folder, and what they reach together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.intervals import Interval, repeats_interval
from skill_ttrl.runs.identity import config_differences
from skill_ttrl.runs.reader import read_run
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.stages.reports.summary_text import summary_rows
from skill_ttrl.stages.setup.env_defaults import with_env_defaults
from skill_ttrl.storage.files import wrap_os_errors, write_atomic

if TYPE_CHECKING:
    from skill_ttrl.config import SkillTTRLConfig
    from skill_ttrl.progress import Progress
    from skill_ttrl.stages.setup.open_run import Resume

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


def run_seeds(
    config: SkillTTRLConfig,
    output: str | Path,
    seeds: Sequence[int],
    *,
    resume: Resume | None = None,
    progress: Callable[[Path], Progress] | None = None,
    source: str | None = None,
) -> Seeds:
    """Run `config` once under each seed, one after another, into `output/seed-N`.

    Args:
        config: what to do; its own seed is not looked at.
        output: folder of the runs; new, or one of the same seeds with `resume`.
        seeds: which, each once.
        resume: "auto" goes on: seeds that have ended under these very settings are left as they are. See `stages.train.run`.
        progress: makes the progress of each run, from its folder.
        source: text of the config file, kept with each run.

    Raises:
        ConfigError: no seed, or one twice, was named.
        RunFolderError: `output` holds other seeds or something else.
        SkillTTRLError: see `stages.train.run`; what was done is kept.
    """
    from skill_ttrl.stages.train import run

    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"Name each seed once, such as 0,1,2; found {', '.join(map(str, seeds)) or 'none'}.")
    output = Path(output)
    _begin(output, config.name, seeds, resume)
    for seed in seeds:
        folder = output / f"seed-{seed}"
        mine = config.model_copy(update={"seed": seed}, deep=True)
        if resume is not None and _has_ended(folder, mine):
            continue
        run(mine, folder, resume=resume, progress=progress(folder) if progress else None, source=source)
    return read_seeds(output)


def is_seeds(path: str | Path) -> bool:
    """Tell whether `path` is a folder that `run_seeds` has begun."""
    return Path(path, SEEDS).is_file()


def read_seeds(path: str | Path) -> Seeds:
    """Read the figures that the runs in a folder of seeds have so far.

    Raises:
        RunFolderError: it is none, or cannot be read.
    """
    path = Path(path)
    name, seeds = _read(path)
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


def _has_ended(folder: Path, config: SkillTTRLConfig) -> bool:
    """Tell whether nothing is left to do: other settings lengthen the run or are refused, as they are without `--seeds`."""
    if not (folder / "summary.json").is_file():
        return False
    return not config_differences(read_run(folder).config, with_env_defaults(config))


def _begin(output: Path, name: str, seeds: Sequence[int], resume: str | None) -> None:
    if is_seeds(output):
        before = _read(output)[1]
        if resume is None:
            raise RunFolderError(
                f"{output} already holds runs of the seeds {', '.join(map(str, before))}. Go on with them with --resume auto, or "
                "choose another --output."
            )
        if before != list(seeds):
            raise RunFolderError(
                f"{output} was begun with the seeds {', '.join(map(str, before))}, asked were {', '.join(map(str, seeds))}. Ask for "
                "the same ones, or choose another --output."
            )
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunFolderError(f"{output} is not empty and no folder of seeds. Choose another --output.")
    with wrap_os_errors("make", output):
        output.mkdir(parents=True, exist_ok=True)
        write_atomic(output / SEEDS, json.dumps({"name": name, "seeds": list(seeds)}, indent=2).encode() + b"\n")


def _read(path: Path) -> tuple[str, list[int]]:
    try:
        found = json.loads((path / SEEDS).read_text(encoding="utf-8"))
        name, seeds = found["name"], found["seeds"]
        if not isinstance(name, str) or not all(type(seed) is int and seed >= 0 for seed in seeds):
            raise ValueError(f"name {name!r}, seeds {seeds!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"Cannot read the seeds in {path / SEEDS}: {error!r}.") from None
    return name, seeds
