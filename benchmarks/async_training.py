"""Rollouts that run ahead of the learner: wall time and accuracy against `rl.max_staleness`.

    python benchmarks/async_training.py time                      # seconds a step, one episode of eight is slow (3 minutes)
    python benchmarks/async_training.py accuracy                  # quickstart, three seeds (10 minutes on two idle cores)
    python benchmarks/async_training.py accuracy --tables-only    # the table again from finished runs

`time` trains in one process, one staleness after the other in each round, in an environment that lets one episode of eight wait. `accuracy` starts all
runs of a seed from one cold start; finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from quickstart import pooled
from stopping import cold_start, signed, skillttrl
from waiting_env import WAITING

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.runs.folder import metric_rows
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.storage.jsonl import read_jsonl

STEPS = 12
CURVE = (2, 4, 9, 19)
"""Steps whose rollouts are counted, of those that are right."""
CONFIG: dict[str, Any] = {
    "name": "slow",
    "phases": ["rl"],
    "env": {"id": WAITING, "train_split": "train", "eval_split": "test"},
    "data": {"max_prompt_tokens": 240},
    "agent": {
        "template": "episode", "prompts": "tiny", "context_mode": "window", "max_turns": 2, "action_parser": "action",
    },
    "model": {"path": "builtin", "builtin": {"hidden_size": 64, "layers": 2, "heads": 2, "max_positions": 256}},
    "rollout": {"n_votes_per_prompt": 4, "n_samples_per_prompt": 4, "max_new_tokens": 8, "mode": "async"},
    "rl": {
        "reward": "env", "steps": STEPS, "save_steps": STEPS, "prompts_per_step": 8, "mini_batch_size": None,
        "kl_coef": 0.0, "learning_rate": 1e-4,
    },
    "eval": {"samples": 1, "extra_temperatures": [], "greedy": False, "controls": []},
    "run": {"report_to": "none"},
    "runtime": {"device": "cpu", "threads": 1},
}  # fmt: skip
"""32 episodes a step, of two turns each."""


def main() -> None:
    """Measure and print a table, Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    timed = kinds.add_parser("time")
    timed.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    timed.add_argument("--rounds", type=int, default=3)
    timed.add_argument("--pause", type=float, default=1.0, help="seconds that a slow episode waits")
    timed.set_defaults(run=lambda options: print(time_table(options.staleness, options.rounds, options.pause)))
    accuracy = kinds.add_parser("accuracy")
    accuracy.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    accuracy.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    accuracy.add_argument("--output", type=Path, default=Path("runs/benchmark-async"))
    accuracy.add_argument("--tables-only", action="store_true")
    accuracy.set_defaults(run=measure_accuracy)
    options = parser.parse_args()
    options.run(options)


def time_table(values: list[int], rounds: int, pause: float) -> str:
    """One row a staleness: medians over rounds, and the range of the ratios to the first one of the same round."""
    found = [{value: timed_run([f"rl.max_staleness={value}"], pause) for value in values} for _ in range(rounds)]
    columns = (
        "rl.max_staleness",
        "s a step",
        "relative to the first (range)",
        "waited, s a step",
        "CPU s a step",
        "mean staleness",
    )
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for value in values:
        runs = [each[value] for each in found]
        ratios = [each[value]["seconds"] / each[values[0]]["seconds"] for each in found]
        cells = (
            str(value),
            f"{median(run['seconds'] for run in runs):.2f}",
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{median(run['wait_seconds'] for run in runs):.2f}",
            f"{median(run['cpu_seconds'] for run in runs):.2f}",
            f"{median(run['staleness'] for run in runs):.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def timed_run(settings: list[str], pause: float, skip: int = 0) -> dict[str, float]:
    """Means over the steps of one run, without the first ones. Without staleness the learner waits as long as is sampled."""
    kwargs = {"seconds": pause, "one_of": 8, "turns": 2}
    config = load_config(CONFIG | {"env": CONFIG["env"] | {"kwargs": kwargs}}, settings)
    with tempfile.TemporaryDirectory() as folder:
        train.run(config, Path(folder) / "run")
        steps = [row for row in read_jsonl(Path(folder) / "run" / "timings.jsonl") if row["phase"] == "rl"]
        ages = [row.get("staleness/mean", 0.0) for row in metric_rows(Path(folder) / "run") if row["phase"] == "rl"]
    steps = steps[skip:]
    waits = [row.get("wait_seconds", row["sample_seconds"]) for row in steps]
    means = {name: fmean(row[name] for row in steps) for name in ("seconds", "cpu_seconds")}
    return means | {"wait_seconds": fmean(waits), "staleness": fmean(ages)}


def measure_accuracy(options: argparse.Namespace) -> None:
    """Run what is missing and print the table."""
    options.output.mkdir(parents=True, exist_ok=True)
    folders = {
        value: {seed: options.output / f"quickstart-{seed}-staleness-{value}" for seed in options.seeds}
        for value in options.staleness
    }
    for seed, value in itertools.product(options.seeds, options.staleness):
        if not options.tables_only and not (folders[value][seed] / "summary.json").exists():
            settings = [cold_start("quickstart", seed, options.output), "phases=[rl]", "rl.save_steps=20"]
            skillttrl("train", "quickstart", seed, folders[value][seed], [*settings, f"rl.max_staleness={value}"])
    print(accuracy_table(folders))


def accuracy_table(folders: dict[int, dict[int, Path]]) -> str:
    """One row a staleness: avg@32 of each seed, and the difference to the first, paired over the problems of all seeds."""
    first = next(iter(folders.values()))
    columns = (
        "rl.max_staleness", *(f"seed {seed}" for seed in first), "mean", "difference to the first (95 %)", "mean staleness",
        "effective sample size, mean (lowest)", "mean absolute difference of log-probs", "CPU s a step",
        *(f"right samples, step {step + 1}" for step in CURVE),
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for value, runs in folders.items():
        after = [read_summary(folder).accuracy_after or 0.0 for folder in runs.values()]
        rows = [row for folder in runs.values() for row in metric_rows(folder) if row["phase"] == "rl"]
        times = [
            row for folder in runs.values() for row in read_jsonl(folder / "timings.jsonl") if row["phase"] == "rl"
        ]
        sizes = [row["rollout_corr/rollout_is_eff_sample_size"] for row in rows if value]
        cells = (
            str(value),
            *(f"{each:.3f}" for each in after),
            f"{fmean(after):.3f}",
            signed(pooled(first, "after", runs)) if value else "-",
            f"{fmean(row.get('staleness/mean', 0.0) for row in rows):.2f}",
            f"{fmean(sizes):.3f} ({min(sizes):.3f})" if sizes else "-",
            f"{fmean(row['sampling/logp_difference/mean'] for row in rows):.3f}" if value else "-",
            f"{fmean(row['cpu_seconds'] for row in times):.2f}",
            *(f"{fmean(row['ground_truth_ratio'] for row in rows if row['step'] == step):.3f}" for step in CURVE),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
