"""Algorithms and losses side by side, with controls, at equal samples: the tables of benchmarks/results/algorithms.md.

    python benchmarks/algorithms.py --jobs 2                                 # all cells, then tables, JSON and plot
    python benchmarks/algorithms.py --recipes quickstart --seeds 0 --algorithms grpo psr
    python benchmarks/algorithms.py --tables-only                            # the tables again from finished cells

A cell is one run: a recipe, a seed and an arm (`algorithms_arms.py`: an algorithm, a loss, or a control). All arms of a recipe and a
seed reinforce the same cold start with the same prompts and as many samples, at the recipe's own learning rate: none is tuned for its
arm. Cells run recipe by recipe and seed by seed, and are appended to OUTPUT/cells.jsonl as they end; a cell whose settings are found
there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

from algorithms_arms import COIN, COLD, RECIPES, SEEDS, VOTE_SFT, arms_of
from algorithms_tables import BASE, Cell, lead_of, write_results

from skill_ttrl.commands.launch import Launch, Options, launch, launch_rl
from skill_ttrl.commands.reports.compare import HEADLINES
from skill_ttrl.commands.train import run
from skill_ttrl.errors import ConfigError, SkillTTRLError, did_you_mean
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.defaults import load_checked
from skill_ttrl.train.results import Evaluation, read_evaluations
from skill_ttrl.train.rules import Rules

CELLS = "cells.jsonl"


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument(
        "--algorithms", nargs="+", help="only these arms; another name or module:Class is `rl.algorithm`"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of 0 to 2, of collapse 0 to 3")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="of every cell, after its own")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each of one thread")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-algorithms"))
    parser.add_argument("--against", default=BASE, help="the arm that the others are compared with")
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    try:
        check(options)
    except SkillTTRLError as error:
        parser.error(str(error))
    options.output.mkdir(parents=True, exist_ok=True)
    failed = 0 if options.tables_only else fill(options)
    cells = asked_cells(options)
    if not cells:
        sys.exit(
            f"{options.output / CELLS} has no cell of these recipes, seeds and arms. Run without --tables-only first."
        )
    print(write_results(cells, options.output, options.against))
    if failed:
        sys.exit(f"{failed} cells failed, as said above. The same command runs them again.")


def check(options: argparse.Namespace) -> None:
    """Raise `SkillTTRLError` for an arm that no recipe has, or whose settings are wrong, before anything is run."""
    arms = {
        (recipe, arm): own for recipe in options.recipes for arm, own in arms_of(recipe, options.algorithms).items()
    }
    known = {arm for _, arm in arms}
    for name in (*(options.algorithms or ()), options.against):
        if name not in known and name != BASE:
            raise ConfigError(f"{' and '.join(options.recipes)} have no arm {name!r}.{did_you_mean(name, known)}")
    for (recipe, _), own in arms.items():
        Rules(load_checked(recipe, [*RECIPES[recipe], *own, *options.settings])).check()


def asked_cells(options: argparse.Namespace) -> list[Cell]:
    """The finished cells of these recipes, seeds and arms, in the order of the arms."""
    cells = read_cells(options.output)
    return [
        cell
        for recipe in options.recipes
        for arm in arms_of(recipe, options.algorithms)
        for seed in options.seeds or SEEDS[recipe]
        for cell in cells
        if (cell.recipe, cell.arm, cell.seed) == (recipe, arm, seed)
    ]


def fill(options: argparse.Namespace) -> int:
    """Run the cells that are missing; gives how many failed. Such a cell is reported and left out."""
    failed = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for recipe in options.recipes:
            wanted = missing(options, recipe)
            starts = {
                pool.submit(cold_start, recipe, seed, options.output) for seed in {seed for _, seed, *_ in wanted}
            }
            for done in as_completed(starts):
                print(done.result(), file=sys.stderr, flush=True)
            running = {pool.submit(run_cell, *cell): cell for cell in wanted}
            for number, finished in enumerate(as_completed(running), start=1):
                _, seed, arm, *_ = running[finished]
                failed += not record(finished, f"{number}/{len(running)} {recipe} {seed} {arm}", options.output)
    return failed


def record(finished: Future[Cell], name: str, output: Path) -> bool:
    """Append a cell that has ended to the file, or report its error and give False: one that fails must not end the others."""
    try:
        cell = finished.result()
    except Exception as error:
        print(f"{name}: {error!r}", file=sys.stderr, flush=True)
        return False
    with (output / CELLS).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(cell)) + "\n")
    reached = " -> ".join(f"{fmean(values[lead_of(values)]):.3f}" for values in (cell.before, cell.after))
    print(f"{name}: {reached}, {cell.samples} samples, {cell.seconds:.0f} s", file=sys.stderr, flush=True)
    return True


def missing(options: argparse.Namespace, recipe: str) -> list[tuple[str, int, str, tuple[str, ...], Path]]:
    """Cells of a recipe that have not been run with these settings, seed by seed."""
    done = {(cell.recipe, cell.seed, cell.arm, tuple(cell.settings)) for cell in read_cells(options.output)}
    found = []
    for seed in options.seeds or SEEDS[recipe]:
        for arm, own in arms_of(recipe, options.algorithms).items():
            settings = (*RECIPES[recipe], *own, *options.settings)
            if (recipe, seed, arm, settings) not in done:
                found.append((recipe, seed, arm, settings, options.output))
    return found


def read_cells(output: Path) -> list[Cell]:
    """The cells that have ended; of one that was run with several settings the latest."""
    path = output / CELLS
    rows = [Cell(**line) for line in read_jsonl(path)] if path.exists() else []
    return list({(cell.recipe, cell.seed, cell.arm): cell for cell in rows}.values())


def cold_start(recipe: str, seed: int, output: Path) -> str:
    """Train the model that all arms of this recipe and seed reinforce, unless there is one; gives a line about it."""
    folder = output / f"{recipe}-{seed}-cold"
    began = time.perf_counter()
    if not (folder / "summary.json").exists():
        phases = f"phases={COLD.get(recipe, '[sft]')}"
        start(launch(recipe, Options([phases, "runtime.threads=1"], seed=seed, output=folder, resume="auto")))
    return f"cold start of {recipe} {seed}: {time.perf_counter() - began:.0f} s"


def run_cell(recipe: str, seed: int, arm: str, settings: tuple[str, ...], output: Path) -> Cell:
    """Reinforce the cold start, or imitate its votes, and measure before and after."""
    cold, folder = output / f"{recipe}-{seed}-cold", output / f"cell-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    options = Options([*settings, "runtime.threads=1"], seed=seed, output=folder)
    if arm.removesuffix(COIN) == VOTE_SFT:
        weights = max((cold / "checkpoints").glob("sft-*")).resolve()
        options = replace(options, overrides=[*options.overrides, f"model.path={weights}"])
        found = launch(recipe, options, phase=VOTE_SFT)
    else:
        found = launch_rl(recipe, options, model=cold)
    began = time.perf_counter()
    start(found)
    seconds = time.perf_counter() - began
    before, after = (by_problem(each) for each in read_evaluations(folder) if each.label in ("before", "after"))
    warnings, samples = read_summary(folder).warnings, samples_drawn(folder)
    shutil.rmtree(folder)
    return Cell(recipe, seed, arm, list(settings), before, after, samples, seconds, list(warnings))


def samples_drawn(folder: Path) -> int:
    """Rollouts of a run's training: those that were recorded, dropped groups included."""
    drawn = folder / "trajectories.jsonl"
    with drawn.open("rb") as stream:
        return sum(1 for _ in stream)


def by_problem(evaluation: Evaluation) -> dict[str, list[float]]:
    """Each figure that was measured, one value a problem."""
    first = evaluation.results[0]
    there = {
        "accuracy": first.correct is not None,
        "majority": first.majority_correct is not None,
        "greedy": first.greedy_correct is not None,
        "score": first.score is not None,
    }
    return {
        name: [round(HEADLINES[name](result) or 0.0, 5) for result in evaluation.results]
        for name in there
        if there[name]
    }


def start(found: Launch) -> object:
    """Run what was launched."""
    config = found.load()
    return run(config, found.folder(config), resume=found.options.resume)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
