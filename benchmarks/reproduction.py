"""Reproducing what was published: one run with a seed that was not published, held against the interval of the published ones.

The loop of benchmarks/reproduce_alfworld.py and benchmarks/reproduce_webshop.py. One run of the recipe is trained and measured by the
ordinary commands (`skillttrl train`, `skillttrl evaluate`), so what is reproduced is what a user runs. A killed one goes on with the
same command. The published figures, their seeds, settings, versions and intervals lie in benchmarks/published/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reproduction_figures import (
    Figure,
    Published,
    change_figures,
    compare,
    control_figures,
    evaluation_figures,
    read_published,
    summarize_seeds,
    table,
    verdict,
    write_published,
)

from skill_ttrl.config import SkillTTRLConfig, load_config, settings_digest
from skill_ttrl.errors import ConfigError, DataError, EnvError, RunFolderError, SkillTTRLError
from skill_ttrl.runs.folder import read_run_json
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.storage.files import write_atomic
from skill_ttrl.train.defaults import with_defaults
from skill_ttrl.train.results import Evaluation, read_evaluations
from skill_ttrl.types import from_json

PUBLISHED = Path(__file__).parent / "published"
DISAGREES = 1
"""Exit code; a missing data set, folder or package has that of its error (docs/cli.md)."""
PHASES = {"before": "imitation", "after": ""}
"""Evaluations of a run that are compared, and what their figures are called beside the name of the tasks."""


@dataclass(frozen=True)
class Benchmark:
    """What is reproduced of a benchmark."""

    name: str
    recipe: str
    data: str
    """Environment variable that names the folder of its official data."""
    get_data: str
    """How to come by them."""
    tasks: str
    """The run's own evaluation: which tasks, and how it decodes."""
    further: Mapping[str, Sequence[str]]
    """By name, further evaluations of the finished run: the options of `skillttrl evaluate RUN`."""
    decides: Sequence[str]
    """Figures that say if the reproduction agrees (`reproduction_figures`)."""


def main(benchmark: Benchmark, words: Sequence[str] | None = None) -> int:
    """Reproduce or publish, as the command line says; gives the exit code."""
    options = parse(benchmark, words)
    try:
        refuse_missing_data(benchmark)
        if options.publish:
            return publish(benchmark, options)
        return reproduce(benchmark, options)
    except SkillTTRLError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code


def parse(benchmark: Benchmark, words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=f"Reproduces the published figures of {benchmark.name}: one run of {benchmark.recipe}."
    )
    parser.add_argument("--seed", type=int, help="default: the first that was not published")
    parser.add_argument("--output", type=Path, help=f"run folder; default: runs/reproduce-{benchmark.name}-SEED")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout, nothing else")
    parser.add_argument(
        "--published", type=Path, default=PUBLISHED / f"{benchmark.name}.json", help="the stored figures"
    )
    parser.add_argument(
        "--publish",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="store the figures of these finished runs, which differ in their seed",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        help="with --publish: what the runs have beside the recipe",
    )
    parser.add_argument(
        "--hardware",
        default="one of 2 cores of a virtual machine, no GPU",
        help="with --publish: where the runs were made",
    )
    options = parser.parse_args(words)
    if options.settings and not options.publish:
        parser.error("--set belongs to --publish: a reproduction has the settings that were published")
    return options


def refuse_missing_data(benchmark: Benchmark) -> None:
    """Say at once, before anything is trained, that the official data are not here."""
    folder = os.environ.get(benchmark.data, "")
    if not folder or not Path(folder).is_dir():
        found = f"it is {folder!r}, and there is no such folder" if folder else "it is not set"
        raise EnvError(
            f"The official data are needed: {benchmark.data} names their folder, and {found}. {benchmark.get_data}"
        )


def reproduce(benchmark: Benchmark, options: argparse.Namespace) -> int:
    """Train and measure one run, and print it beside what was published."""
    published, began = read_published(options.published), time.monotonic()
    expected = expected_config(published.recipe, published.settings)
    if settings_digest(expected) != published.config_digest:
        say(
            f"The recipe {published.recipe} is not the one that was published any more: the figures may differ for that."
        )
    seed = (
        next(number for number in range(1000) if number not in published.seeds)
        if options.seed is None
        else options.seed
    )
    folder = options.output or Path("runs") / f"reproduce-{benchmark.name}-{seed}"
    say(
        f"Reproducing {benchmark.name}: one run of {published.recipe}, seed {seed}, in {folder}; it took {max(published.minutes):.0f} minutes on {published.hardware}."
    )
    train(published.recipe, published.settings, seed, folder)
    refuse_other_run(folder, expected, seed)
    rows = compare(published, run_figures(benchmark, folder))
    minutes, differing = (time.monotonic() - began) / 60, differing_versions(published, folder)
    if options.json:
        raw = {
            "benchmark": benchmark.name,
            "run": str(folder),
            "seed": seed,
            "agrees": verdict(rows),
            "minutes": round(minutes, 1),
        }
        print(json.dumps({**raw, "figures": [asdict(row) for row in rows], "other_versions": differing}, indent=1))
    else:
        print(f"{table(rows, published)}\nSeed {seed}, {minutes:.0f} minutes, everything in {folder}.")
        if differing:
            print(
                "Other versions than published: "
                + ", ".join(f"{name} {here} ({there})" for name, (here, there) in differing.items())
                + "."
            )
    return 0 if verdict(rows) else DISAGREES


def publish(benchmark: Benchmark, options: argparse.Namespace) -> int:
    """Store the figures of finished runs."""
    expected = expected_config(benchmark.recipe, options.settings)
    seeds = [load_config(folder, trust=True).seed for folder in options.publish]
    if len({*seeds}) < len(seeds):
        raise ConfigError(
            f"Runs to publish differ in their seed, found {', '.join(map(str, seeds))}. Name each seed once."
        )
    for folder, seed in zip(options.publish, seeds, strict=True):
        refuse_other_run(folder, expected, seed)
    figures = summarize_seeds([run_figures(benchmark, folder) for folder in options.publish], benchmark.decides)
    published = Published(
        benchmark=benchmark.name,
        recipe=benchmark.recipe,
        settings=options.settings,
        config_digest=settings_digest(expected),
        seeds=seeds,
        command=f"python benchmarks/reproduce_{benchmark.name}.py",
        date=datetime.date.today().isoformat(),
        hardware=options.hardware,
        minutes=[round(minutes_of(folder), 1) for folder in options.publish],
        versions=versions_of(options.publish[0]),
        figures=figures,
    )
    write_published(options.published, published)
    for each in figures:
        say(f"{each.name}: {each.mean:.3f} [{each.interval[0]:.3f}, {each.interval[1]:.3f}]{' *' * each.decides}")
    say(f"Wrote {options.published}.")
    return 0


def expected_config(recipe: str, settings: Sequence[str]) -> SkillTTRLConfig:
    """The config that a run has to have, but for its seed."""
    return with_defaults(load_config(recipe, settings))


def train(recipe: str, settings: Sequence[str], seed: int, folder: Path) -> None:
    """Train the run, or go on with it; one that has ended is left alone."""
    if (folder / "summary.json").is_file():
        return
    chosen = [word for setting in settings for word in ("--set", setting)]
    skillttrl(["train", recipe, "--seed", str(seed), "--output", str(folder), "--resume", "auto", *chosen])


def refuse_other_run(folder: Path, expected: SkillTTRLConfig, seed: int) -> None:
    """Refuse a folder whose run has not ended, or was made with another seed or other settings."""
    if not (folder / "summary.json").is_file():
        raise RunFolderError(
            f"The run in {folder} has not ended. Go on with it: skillttrl train {folder} --resume auto."
        )
    found = load_config(folder, trust=True)
    if found.seed != seed:
        raise RunFolderError(f"The run in {folder} has the seed {found.seed}, not {seed}. Choose another --output.")
    other = sorted(differing_keys(found.model_dump(mode="json"), expected.model_dump(mode="json")))
    if other:
        raise RunFolderError(
            f"The run in {folder} was made with other settings ({', '.join(other)}). Choose another --output, or with --publish say them with --set."
        )


def differing_keys(found: Mapping[str, Any], expected: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of settings that differ, but for those that are none (the run's name, seed, folder)."""
    for key in {*found, *expected} - ({"name", "seed", "run", "verified", "requires"} if not prefix else set()):
        one, other = found.get(key), expected.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differing_keys(one, other, f"{prefix}{key}.")
        elif one != other:
            yield f"{prefix}{key}"


def run_figures(benchmark: Benchmark, folder: Path) -> dict[str, Figure]:
    """All figures of a finished run; further evaluations are made where they are missing, and kept beside it."""
    own = {each.label: each for each in read_evaluations(folder) if each.label in PHASES}
    found: dict[str, Figure] = {}
    for label, evaluation in own.items():
        name = f"{benchmark.tasks}, {PHASES[label]}" if PHASES[label] else benchmark.tasks
        found |= evaluation_figures(evaluation, name)
    found |= control_figures(own["after"], benchmark.tasks)
    if {*own} == {*PHASES}:
        found |= change_figures(own["before"], own["after"], f"{benchmark.tasks}, change")
    for name, options in benchmark.further.items():
        found |= evaluation_figures(measured(folder, name, options), name)
    return found


def measured(folder: Path, name: str, options: Sequence[str]) -> Evaluation:
    """A further evaluation of a run, read where it was made after the run had ended, else made."""
    file = folder.parent / f"{folder.name}.{re.sub(r'[^a-z0-9]+', '-', name.lower())}.json"
    if not file.is_file() or file.stat().st_mtime < (folder / "summary.json").stat().st_mtime:
        write_atomic(file, skillttrl(["evaluate", str(folder), *options, "--json"]))
    return from_json(Evaluation, file.read_bytes())


def skillttrl(words: Sequence[str]) -> bytes:
    """Run a command as a user would; its view goes to stderr, and what it prints is given.

    Raises:
        DataError: it failed; it has said why.
    """
    say(f"$ skillttrl {' '.join(words)}")
    done = subprocess.run([sys.executable, "-m", "skill_ttrl.cli.main", *words], check=False, stdout=subprocess.PIPE)
    if done.returncode:
        raise DataError(
            f"skillttrl {words[0]} ended with exit code {done.returncode}, see above. The same command goes on from there."
        )
    return done.stdout


def minutes_of(folder: Path) -> float:
    """Wall time of a run's phases."""
    return sum(seconds for phase, seconds in read_summary(folder).seconds.items() if "." not in phase) / 60


def versions_of(folder: Path) -> dict[str, str]:
    """Versions that a run was made with."""
    raw = read_run_json(folder)
    return {"python": raw["python"], **raw["libraries"]}


def differing_versions(published: Published, folder: Path) -> dict[str, tuple[str, str]]:
    """By package: (the version of this run, the published one) where they differ."""
    here = versions_of(folder)
    return {name: (here.get(name, "-"), there) for name, there in published.versions.items() if here.get(name) != there}


def say(text: str) -> None:
    """Tell the user on stderr: stdout is for the result."""
    print(text, file=sys.stderr, flush=True)
