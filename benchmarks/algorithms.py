"""Algorithms and losses side by side, with controls, at equal samples: the tables of docs/algorithms-results.md.

    python benchmarks/algorithms.py                                          # all cells, then tables, JSON and plot
    python benchmarks/algorithms.py --recipes quickstart --seeds 0 --algorithms grpo psr
    python benchmarks/algorithms.py --tables-only                            # the tables again from finished cells

A cell is one run: a recipe, a seed and an arm (an algorithm, a loss, or a control). All arms of a recipe and a seed reinforce the
same cold start with the same prompts and as many samples, at the recipe's own learning rate: none is tuned for its arm. Cells are
appended to OUTPUT/cells.jsonl as they end; a cell whose settings are found there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

from algorithms_tables import Cell, write_results

from skill_ttrl.runs.summary import read_summary
from skill_ttrl.stages.evaluation.results import Evaluation
from skill_ttrl.stages.launch import Launch, Options, launch, launch_rl
from skill_ttrl.stages.reports.summarize import HEADLINES, read_evaluations
from skill_ttrl.stages.train import run
from skill_ttrl.storage.jsonl import read_jsonl

VOTED, EPISODES = ("quickstart", "quickstart_skills"), ("quickstart_webshop",)
RECIPES: dict[str, tuple[str, ...]] = {
    "quickstart": ("eval.extra_temperatures=[]",),
    "quickstart_skills": ("rl.steps=12",),
    "quickstart_webshop": ("rl.steps=20", "evolve=null"),
}
"""By recipe, what every cell of it sets: shorter runs than the recipe's, so that all cells fit an afternoon."""
COLD = {"quickstart_webshop": "[collect,distill,sft]"}
"""Phases of a cold start, where they are not the supervised one alone."""
VOTE_SFT = "vote_sft"
CONTROLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "random reward": (("rl.reward=random",), (*VOTED, *EPISODES)),
    "true labels": (("rl.reward=label",), VOTED),
    VOTE_SFT: ((), VOTED),
}
"""By control, its settings and its recipes. The first must not rise, the second is the ceiling of a vote's reward, the third imitates
the samples that agree (docs/baselines.md)."""
ARMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "grpo": ((), (*VOTED, *EPISODES)),
}
"""By algorithm or loss, its settings and its recipes."""


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument(
        "--algorithms", nargs="+", help="only these arms; another name or module:Class is `rl.algorithm`"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", dest="settings", action="append", default=[], help="of every cell, after its own")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each of one thread")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-algorithms"))
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.tables_only:
        starts = [(recipe, seed, options.output) for recipe in options.recipes for seed in options.seeds]
        with ProcessPoolExecutor(options.jobs) as pool:
            list(pool.map(cold_start, *zip(*starts, strict=True)))
            wanted = list(missing(options))
            for number, cell in enumerate(pool.map(run_cell, *zip(*wanted, strict=True)) if wanted else (), start=1):
                with (options.output / "cells.jsonl").open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(asdict(cell)) + "\n")
                print(
                    f"{number}/{len(wanted)} {cell.recipe} {cell.seed} {cell.arm}: {fmean(cell.before['accuracy']):.3f} -> "
                    f"{fmean(cell.after['accuracy']):.3f}, {cell.seconds:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    asked = {
        arm: settings for recipe in options.recipes for arm, settings in arms_of(recipe, options.algorithms).items()
    }
    cells = [
        each
        for each in read_cells(options.output)
        if each.recipe in options.recipes and each.seed in options.seeds and each.arm in asked
    ]
    print(write_results(cells, options.output))


def arms_of(recipe: str, names: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """Arms of a recipe with their settings: those of these names, or all."""
    known = {name: settings for name, (settings, recipes) in (CONTROLS | ARMS).items() if recipe in recipes}
    if names is None:
        return known
    elsewhere = CONTROLS.keys() | ARMS.keys()
    own = {name: (f"rl.algorithm={name}",) for name in names if name not in elsewhere}
    return {name: settings for name, settings in known.items() if name in names} | own


def missing(options: argparse.Namespace) -> list[tuple[str, int, str, tuple[str, ...], Path]]:
    """Cells that have not been run with these settings, seed by seed, so that a stopped table has whole seeds."""
    done = {(cell.recipe, cell.seed, cell.arm, tuple(cell.settings)) for cell in read_cells(options.output)}
    found = []
    for seed in options.seeds:
        for recipe in options.recipes:
            for arm, own in arms_of(recipe, options.algorithms).items():
                settings = (*RECIPES[recipe], *own, *options.settings)
                if (recipe, seed, arm, settings) not in done:
                    found.append((recipe, seed, arm, settings, options.output))
    return found


def read_cells(output: Path) -> list[Cell]:
    """The cells that have ended; of one that was run with several settings the latest."""
    path = output / "cells.jsonl"
    rows = [Cell(**line) for line in read_jsonl(path)] if path.exists() else []
    return list({(cell.recipe, cell.seed, cell.arm): cell for cell in rows}.values())


def cold_start(recipe: str, seed: int, output: Path) -> None:
    """Train the model that all arms of this recipe and seed reinforce."""
    folder = output / f"{recipe}-{seed}-cold"
    if (folder / "summary.json").exists():
        return
    phases = f"phases={COLD.get(recipe, '[sft]')}"
    began = time.perf_counter()
    start(launch(recipe, Options([phases, "runtime.threads=1"], seed=seed, output=folder, resume="auto")))
    print(f"cold start of {recipe} {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def run_cell(recipe: str, seed: int, arm: str, settings: tuple[str, ...], output: Path) -> Cell:
    """Reinforce the cold start, or imitate its votes, and measure before and after."""
    cold, folder = output / f"{recipe}-{seed}-cold", output / f"cell-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    options = Options([*settings, "runtime.threads=1"], seed=seed, output=folder)
    if arm == VOTE_SFT:
        weights = max((cold / "checkpoints").glob("sft-*")).resolve()
        options = replace(options, overrides=[*options.overrides, f"model.path={weights}"])
        found = launch(recipe, options, phase=VOTE_SFT)
    else:
        found = launch_rl(recipe, options, model=cold)
    began = time.perf_counter()
    start(found)
    seconds = time.perf_counter() - began
    before, after = (by_problem(each) for each in read_evaluations(folder) if each.label in ("before", "after"))
    with (folder / "trajectories.jsonl").open("rb") as stream:
        samples = sum(1 for _ in stream)
    warnings = read_summary(folder).warnings
    shutil.rmtree(folder)
    return Cell(recipe, seed, arm, list(settings), before, after, samples, seconds, list(warnings))


def by_problem(evaluation: Evaluation) -> dict[str, list[float]]:
    """Each figure that was measured, one value a problem."""
    first = evaluation.results[0]
    there = {
        "accuracy": first.correct is not None,
        "majority": first.majority_correct is not None,
        "greedy": first.greedy_correct is not None,
        "score": first.score is not None,
    }
    return {name: [round(HEADLINES[name](result), 5) for result in evaluation.results] for name in there if there[name]}


def start(found: Launch) -> object:
    """Run what was launched."""
    config = found.load()
    return run(config, found.folder(config), resume=found.options.resume)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
