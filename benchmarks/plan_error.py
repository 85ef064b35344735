"""Predicted and measured seconds of RL steps on this CPU: `skillttrl plan` is calibrated on one run and predicts others.

    python benchmarks/plan_error.py                      # some ten minutes on 2 idle cores
    python benchmarks/plan_error.py --only quickstart    # one of the recipes
    python benchmarks/plan_error.py --tables-only        # the table again from finished runs

Each run is one `skillttrl train` or `rl` in a process of its own, and finished ones are not repeated. A prediction has the first run of its recipe
and the settings of the predicted one, never its times; the row calibrated on another recipe has the lengths, too. Runs have one thread, so that CPU time is
the time of an idle machine. The first step, which warms up, is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from waiting_env import WAITING

from skill_ttrl.llm.models.model_config import load_model_config
from skill_ttrl.runs.reader import read_run
from skill_ttrl.stages.plan import PlanOptions, pose
from skill_ttrl.stages.planning.calibrate import calibrated
from skill_ttrl.stages.planning.simulate import simulate
from skill_ttrl.stages.planning.workload import MeasuredStep, measured_run
from skill_ttrl.storage.jsonl import read_jsonl

HERE = Path(__file__).parent
QUICK = ["runtime.threads=1", "eval.samples=1", "eval.greedy=false", "eval.extra_temperatures=[]"]
WAITS = f"env.id={WAITING}"
GAMES = (
    "env.kwargs={data: 'generated:60', max_steps: 20}",
    "env.eval_tasks=4",
    "agent.max_turns=20",
    "eval.controls=[]",
)


@dataclass(frozen=True)
class Arm:
    """One run to predict."""

    name: str
    settings: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    """Of the plan, beyond the settings."""
    own_lengths: bool = False
    """The prediction is given the mean tokens and turns of the predicted run."""


@dataclass(frozen=True)
class Recipe:
    """Runs of one config; the first is what the plan is calibrated on."""

    config: str
    settings: tuple[str, ...]
    arms: tuple[Arm, ...]
    start: tuple[str, ...]
    """Settings of the run before, once, with whose policy all arms begin."""


RECIPES = {
    "quickstart": Recipe(
        "quickstart",
        ("rl.steps=9",),
        (
            Arm("32 prompts x 32 (calibration)"),
            Arm("16 prompts x 32", ("rl.prompts_per_step=16",)),
            Arm("64 prompts x 32", ("rl.prompts_per_step=64",)),
            Arm("32 prompts x 64", ("rollout.n_votes_per_prompt=64", "rollout.n_samples_per_prompt=64")),
            Arm("32 prompts x 64 votes, 32 trained", ("rollout.n_votes_per_prompt=64",)),
            Arm("environment steps of 10 ms, sync", (WAITS, "env.kwargs={seconds: 0.01}"), {"env_seconds": 0.01}),
            Arm(
                "environment steps of 1 s, async, 5 % of them 5 times as slow",
                (
                    WAITS,
                    "env.kwargs={seconds: 1.0, slow_fraction: 0.05, slow_factor: 5.0}",
                    "rollout.mode=async",
                ),
                {"env_seconds": 1.0, "slow_fraction": 0.05, "slow_factor": 5.0},
            ),
            Arm("32 prompts x 32, again"),
        ),
        start=("phases=[sft]",),
    ),
    "alfworld": Recipe(
        "quickstart_alfworld",
        ("rl.steps=5", *GAMES),
        (
            Arm("8 games x 8 (calibration)", ("rl.prompts_per_step=8",)),
            Arm("4 games x 8", ("rl.prompts_per_step=4",)),
            Arm("16 games x 8", ("rl.prompts_per_step=16",)),
            Arm(
                "8 games x 16",
                ("rl.prompts_per_step=8", "rollout.n_votes_per_prompt=16", "rollout.n_samples_per_prompt=16"),
            ),
        ),
        start=("phases=[collect,sft]", "sft.steps=60", "collect.rollouts_per_task=1", *GAMES),
    ),
}


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-plan"))
    parser.add_argument("--only", choices=tuple(RECIPES))
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    chosen = [options.only] if options.only else list(RECIPES)
    if not options.tables_only:
        for name in chosen:
            make_runs(RECIPES[name], options.output / name)
    print("| run | wall s, predicted | measured | error | CPU s, predicted | measured | error |")
    print("|---|---|---|---|---|---|---|")
    errors: list[list[float]] = []
    for name in chosen:
        recipe, folder = RECIPES[name], options.output / name
        first, base = recipe.arms[0], run_folder(folder, 0)
        print(compared(replace(first, name=f"{first.name}, not calibrated"), base, None)[0])
        for place, arm in enumerate(recipe.arms):
            row, error = compared(arm, run_folder(folder, place), base)
            errors += [error] if place else []
            print(row)
        other = run_folder(options.output / "quickstart", 0)
        if name == "alfworld" and other.is_dir():
            crossed = replace(first, name=f"{first.name}, calibrated on quickstart", own_lengths=True)
            print(compared(crossed, base, other)[0])
    for place, clock in enumerate(("wall", "CPU")):
        known = [each[place] for each in errors if len(each) > place]
        print(
            f"\nError of {len(known)} predictions in {clock} time: median {median(known):.0%}, largest {max(known):.0%}."
        )


def run_folder(folder: Path, place: int) -> Path:
    return folder / f"{place:02d}"


def make_runs(recipe: Recipe, folder: Path) -> None:
    start = folder / "start"
    if not (start / "summary.json").is_file():
        skillttrl("train", recipe.config, *chosen_by(recipe.start), "-o", str(start))
    for place, arm in enumerate(recipe.arms):
        target = run_folder(folder, place)
        if not (target / "summary.json").is_file():
            skillttrl(
                "rl",
                recipe.config,
                "--policy",
                str(start),
                *chosen_by((*recipe.settings, *arm.settings)),
                "-o",
                str(target),
            )


def chosen_by(settings: Sequence[str]) -> list[str]:
    """The options of a command for these settings."""
    return [word for each in (*QUICK, *settings) for word in ("--set", each)]


def skillttrl(*arguments: str) -> None:
    """One command in a process of its own; raises where it fails."""
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "skill_ttrl.cli.main", *arguments, "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths})


def compared(arm: Arm, target: Path, calibration: Path | None) -> tuple[str, list[float]]:
    """A row of the table, and the errors in wall time and CPU time, without their signs; no CPU time where environments wait."""
    _, found = measured_run(target)
    own = {"tokens": found.lengths.response, "turns": found.lengths.turns} if arm.own_lengths else {}
    options = PlanOptions(gpu="cpu", **{"env_seconds": 0.0, **arm.options, **own})
    problem = pose(read_run(target).config, options, [])
    row, errors = [arm.name], list[float]()
    for clock in (wall_clock,) if problem.env_seconds or calibration is None else (wall_clock, cpu_clock):
        other = problem
        if calibration is not None:
            config = read_run(calibration).config
            other = calibrated(problem, config, load_model_config(config.model), clock(calibration), 0.0)
        predicted, measured = simulate(other.loop()).step_seconds, clock(target).seconds
        errors.append(abs(predicted / measured - 1))
        row += [f"{predicted:.2f}", f"{measured:.2f}", f"{predicted / measured - 1:+.0%}"]
    return f"| {' | '.join(row + [''] * (7 - len(row)))} |", errors


def wall_clock(folder: Path) -> MeasuredStep:
    """Medians of wall times."""
    return measured_run(folder)[1]


def cpu_clock(folder: Path) -> MeasuredStep:
    """The median of the steps' processor time, its parts as the shortest wall times of each are to each other."""
    _, found = measured_run(folder)
    rows = [row for row in read_jsonl(folder / "timings.jsonl") if row["phase"] == "rl"][1:]
    least = {name: min(row[f"{name}_seconds"] for row in rows) for name in ("sample", "update", "sync")}
    rest = min(row["seconds"] - row["sample_seconds"] - row["update_seconds"] - row["sync_seconds"] for row in rows)
    spent = median(row["cpu_seconds"] for row in rows)
    scale = spent / (sum(least.values()) + rest)
    return replace(found, seconds=spent, **{name: seconds * scale for name, seconds in least.items()})


if __name__ == "__main__":
    main()
