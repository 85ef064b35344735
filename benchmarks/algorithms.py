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
from concurrent.futures import ProcessPoolExecutor, as_completed
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
WEAK = ("collapse",)
ANSWERS = (*VOTED, *WEAK)
EVERYWHERE = (*ANSWERS, *EPISODES)
RECIPES: dict[str, tuple[str, ...]] = {
    "quickstart": (
        "rl.mini_batch_prompts=4",
        "rl.mini_batch_by=samples",
        "rl.schedule=cosine",
        "rl.min_lr_ratio=0.1",
        "rl.steps=12",
        "eval.samples=16",
        "eval.extra_temperatures=[]",
    ),
    "quickstart_skills": ("rl.steps=10", "eval.samples=4"),
    "collapse": ("eval.samples=16", "eval.extra_temperatures=[]"),
    "quickstart_webshop": ("rl.steps=20", "evolve=null"),
}
"""By recipe, what every cell of it sets; fewer steps than the recipe's, so that all cells fit an afternoon."""
COLD = {"quickstart_webshop": "[collect,distill,sft]"}
"""Phases of a cold start, where they are not the supervised one alone."""
VOTE_SFT = "vote_sft"
CELLS = "cells.jsonl"
CONTROLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "grpo": ((), EVERYWHERE),
    "grpo, random reward": (("rl.reward=random",), EVERYWHERE),
    "psr, random reward": (("rl.reward=random", "rl.algorithm=psr"), EVERYWHERE),
    "grpo, true labels": (("rl.reward=label",), ANSWERS),
    VOTE_SFT: ((), ANSWERS),
}
"""By control, its settings and its recipes. A coin as reward shows what an algorithm does by itself; true labels are the ceiling of a
vote's reward; `vote_sft` imitates the samples that agree (docs/baselines.md)."""


def _algorithm(options: str, *more: str) -> tuple[str, ...]:
    return (f"rl.algorithm={options}", *more)


def _loss(options: str, aggregation: str = "seq-mean-token-mean") -> tuple[str, ...]:
    return (f"rl.loss={options}", f"rl.loss_aggregation={aggregation}")


SETTINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "grpo, one update a step": (("rl.mini_batch_prompts=null", "rl.schedule=constant"), ("quickstart",)),
    "grpo, whole prompts": (("rl.mini_batch_by=prompts",), ("quickstart",)),
    "grpo, KL 1": (("rl.kl_coef=1.0",), WEAK),
    "grpo, KL 3": (("rl.kl_coef=3.0",), WEAK),
    "grpo, KL 1, random reward": (("rl.kl_coef=1.0", "rl.reward=random"), WEAK),
    "grpo, learning rate / 10": (("rl.learning_rate=3.0e-5",), WEAK),
    "grpo, entropy 0.01": (("rl.entropy_coef=0.01",), WEAK),
    "grpo, 64 votes": (("rollout.n_votes_per_prompt=64",), WEAK),
    "grpo, T 0.6": (("rollout.temperature=0.6",), WEAK),
    "grpo, votes by confidence": (("vote.strategy=confidence",), WEAK),
    "grpo, guard": (("vote.strategy=guard",), WEAK),
    "grpo, restrain": (("vote.strategy=restrain",), WEAK),
    "grpo, gated": (("vote.strategy=gated",), WEAK),
    "psr, KL 1": (("rl.algorithm=psr", "rl.kl_coef=1.0"), WEAK),
    "nsr, KL 1": (("rl.algorithm=nsr", "rl.kl_coef=1.0"), WEAK),
}
"""GRPO as it was and with what keeps a weak base from falling: settings beside the algorithm. 64 votes draw twice the samples."""
ARMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "grpo, mean only": (_algorithm("{type: grpo, scale_rewards: none}"), EVERYWHERE),
    "dr_grpo": (_algorithm("dr_grpo", "rl.loss_aggregation=seq-mean-token-sum-norm"), ANSWERS),
    "maxrl": (_algorithm("maxrl"), ANSWERS),
    "rloo": (_algorithm("rloo"), EVERYWHERE),
    "remax": (_algorithm("remax"), ANSWERS),
    "opo": (_algorithm("opo"), ANSWERS),
    "grpo_passk": (_algorithm("grpo_passk"), ANSWERS),
    "gpg": (_algorithm("gpg"), ANSWERS),
    "reinforce_plus_plus": (_algorithm("reinforce_plus_plus"), EVERYWHERE),
    "reinforce_plus_plus_baseline": (_algorithm("reinforce_plus_plus_baseline"), ANSWERS),
    "gae, value head": (_algorithm("gae", "rl.critic={}"), EVERYWHERE),
    "gae, critic apart": (_algorithm("gae", "rl.critic={model: policy, learning_rate: 3.0e-4}"), ANSWERS),
    "dapo": (_algorithm("dapo", "rl.loss={clip_ratio_high: 0.28, dual_clip: null}"), EVERYWHERE),
    "psr": (_algorithm("psr"), EVERYWHERE),
    "nsr": (_algorithm("nsr"), EVERYWHERE),
    "w_reinforce": (_algorithm("w_reinforce"), EVERYWHERE),
    "grpo_nsr, right x 0.1": (_algorithm("{type: grpo_nsr, positive_weight: 0.1}"), EVERYWHERE),
    "grpo_nsr, wrong x 0.3": (_algorithm("{type: grpo_nsr, negative_weight: 0.3}"), ANSWERS),
    "gdpo, format x 0.1": (_algorithm("gdpo", "rl.extra_rewards={format: 0.1}"), ANSWERS),
    "gmae": (_algorithm("gmae"), ANSWERS),
    "scrl": (_algorithm("scrl"), ANSWERS),
    "ttpo": (_algorithm("ttpo"), ANSWERS),
    "evol_rl": (_algorithm("evol_rl", "rl.loss={clip_ratio_high: 0.28, dual_clip: null}"), ANSWERS),
    "gspo": (_algorithm("gspo", *_loss("{type: gspo, clip_ratio: 3.0e-4, clip_ratio_high: 4.0e-4}")), EVERYWHERE),
    "cispo": (_algorithm("cispo", *_loss("cispo", "token-mean")), EVERYWHERE),
    "sapo": (_algorithm("sapo", *_loss("sapo")), EVERYWHERE),
    "gigpo": (_algorithm("gigpo"), EPISODES),
    "graphgpo": (_algorithm("graphgpo"), EPISODES),
}
"""By algorithm, its settings and its recipes. The recipes state a loss of their own, so an algorithm's own is stated here too."""


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
        fill(options)
    asked = {
        arm: settings for recipe in options.recipes for arm, settings in arms_of(recipe, options.algorithms).items()
    }
    cells = [
        each
        for each in read_cells(options.output)
        if each.recipe in options.recipes and each.seed in options.seeds and each.arm in asked
    ]
    print(write_results(cells, options.output))


def fill(options: argparse.Namespace) -> None:
    """Run the cells that are missing. One that is refused is said and left out, and asked for again by the next call."""
    with ProcessPoolExecutor(options.jobs) as pool:
        starts = [(recipe, seed, options.output) for recipe in options.recipes for seed in options.seeds]
        list(pool.map(cold_start, *zip(*starts, strict=True)))
        wanted = {pool.submit(run_cell, *cell): cell for cell in missing(options)}
        for number, done in enumerate(as_completed(wanted), start=1):
            recipe, seed, arm, *_ = wanted[done]
            said = f"{number}/{len(wanted)} {recipe} {seed} {arm}"
            try:
                cell = done.result()
            except Exception as error:  # one arm that fails must not end the others
                print(f"{said}: {error!r}", file=sys.stderr, flush=True)
                continue
            with (options.output / CELLS).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(cell)) + "\n")
            reached = " -> ".join(f"{fmean(each['accuracy']):.3f}" for each in (cell.before, cell.after))
            print(f"{said}: {reached}, {cell.seconds:.0f} s", file=sys.stderr, flush=True)


def arms_of(recipe: str, names: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """Arms of a recipe with their settings: those of these names, or all."""
    known = {name: settings for name, (settings, recipes) in (CONTROLS | SETTINGS | ARMS).items() if recipe in recipes}
    if names is None:
        return known
    elsewhere = CONTROLS.keys() | SETTINGS.keys() | ARMS.keys()
    own = {name: (f"rl.algorithm={name}",) for name in names if name not in elsewhere}
    return {name: settings for name, settings in known.items() if name in names} | own


def missing(options: argparse.Namespace) -> list[tuple[str, int, str, tuple[str, ...], Path]]:
    """Cells that have not been run with these settings, recipe by recipe and seed by seed."""
    done = {(cell.recipe, cell.seed, cell.arm, tuple(cell.settings)) for cell in read_cells(options.output)}
    found = []
    for recipe in options.recipes:
        for seed in options.seeds:
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
