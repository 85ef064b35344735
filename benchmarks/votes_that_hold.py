"""Does a method of voting hold? `quickstart_pretrained` with each arm, over seeds and prompts a step, in one resumable folder.

    python benchmarks/votes_that_hold.py FOLDER --arms majority,anchored --seeds 0-3        # tune
    python benchmarks/votes_that_hold.py FOLDER --arms majority,anchored --seeds 10-17      # judge
    python benchmarks/votes_that_hold.py FOLDER3 --shots 3                                  # a weaker base
    python benchmarks/votes_that_hold.py FOLDER4 --family plus_one --prompts 8 --arms majority,verify,random,labels

A run that is there is not run again; its weights are deleted once it is measured. The arms of one seed share one evaluation before
training. The tables: each arm's gain in avg@K (mean over its runs, 95 % interval over runs), runs below their base, true votes; then every
run. K is `--samples`. `anchored` arms also sample `n_votes_per_prompt` answers of every prompt before training.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from skill_ttrl.data.families import FAMILIES
from skill_ttrl.statistics import student

ANCHORED = "vote.strategy=anchored"
ARMS: dict[str, list[str]] = {
    "majority": [ANCHORED, "vote.options.weight=0.0"],  # the majority, and how often it left the base's
    "anchored": [ANCHORED],
    "anchored .67": [ANCHORED, "vote.options.weight=0.67"],
    "anchored .5": [ANCHORED, "vote.options.weight=0.5"],
    "kl": ["rl.kl_coef=0.05"],
    "small steps": ["rl.learning_rate=5.0e-6"],
    "no deviation": ["rl.algorithm=dr_grpo"],
    "negatives": ["rl.algorithm=nsr"],
    "gated": ["vote.strategy=gated", "vote.options.threshold=0.6"],
    "soft": ["vote.strategy=soft"],
    "restrain": ["vote.strategy=restrain"],
    "guard": ["vote.strategy=guard"],
    "sequential": ["vote.strategy=sequential"],
    "sequential 4": ["vote.strategy=sequential", "vote.options.first=4"],
    "imitation": ["phases=[vote_sft]"],
    "verify": ["rl.reward=verify"],
    "random": ["rl.reward=random"],
    "labels": ["rl.reward=label"],
}


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", default="quickstart_pretrained", help="a shipped config that votes")
    parser.add_argument("--arms", default="majority,anchored", help=f"of {', '.join(ARMS)}")
    parser.add_argument(
        "--family", help="generated problems in place of the recipe's, with examples of them in the prompt"
    )
    parser.add_argument("--seeds", default="0-3", help="FIRST-LAST")
    parser.add_argument("--prompts", default="8,16", help="prompts a step")
    parser.add_argument(
        "--shots", type=int, default=4, help="examples in the prompt; a base with fewer is right less often"
    )
    parser.add_argument("--samples", type=int, default=8, help="of each held-out problem")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    cells = [
        (arm, prompts, seed)
        for seed in range(int(first), int(last or first) + 1)
        for prompts in map(int, options.prompts.split(","))
        for arm in options.arms.split(",")
    ]
    runs: list[dict[str, Any]] = []
    for arm, prompts, seed in cells:
        stored = options.folder / f"{arm.replace(' ', '_')}-{prompts}-{seed}.json"
        if not stored.exists() and not options.table:
            stored.parent.mkdir(parents=True, exist_ok=True)
            stored.write_text(json.dumps(run(options, arm, prompts, seed)))
            print(f"{arm}, {prompts} prompts, seed {seed}", file=sys.stderr, flush=True)
        if stored.exists():
            runs.append({"arm": arm, "prompts": prompts, "seed": seed} | json.loads(stored.read_text()))
    print(summary(runs))
    print(every(runs))


def run(options: argparse.Namespace, arm: str, prompts: int, seed: int) -> dict[str, Any]:
    """Train one cell in a process of its own; its figures."""
    output = options.folder / "run"
    shutil.rmtree(output, ignore_errors=True)
    settings = [
        f"rl.prompts_per_step={prompts}",
        f"eval.samples={options.samples}",
        f"runtime.threads={options.threads}",
        *ARMS[arm],
    ]
    if options.shots < 4 or options.family:
        examples = (files("skill_ttrl.prompts") / "next_number.md").read_text().split("\n\n")
        if options.family:
            settings += [f"data.{part}.path=synthetic:{options.family}" for part in ("train", "eval")]
            shown = FAMILIES.get(options.family).problems("demos", "")[:4]
            examples[:4] = [f"Question: {task.options['question']}\nAnswer: {task.ground_truth}" for task in shown]
        prompt = options.folder / "prompt.md"
        prompt.write_text("\n\n".join([*examples[: options.shots], examples[-1]]))
        settings.append(f"agent.template={prompt}")
    base = options.folder / f"base-{seed}"
    if base.exists():
        settings.append(f"run.baseline={base}")
    command = [
        sys.executable,
        "-m",
        "skill_ttrl.cli.main",
        "train",
        options.recipe,
        "--seed",
        str(seed),
        "-o",
        str(output),
    ]
    subprocess.run([*command, *(part for each in settings for part in ("--set", each))], check=True, stdout=sys.stderr)
    shutil.rmtree(output / "checkpoints")
    found = json.loads((output / "summary.json").read_text())
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    if not base.exists():
        shutil.copytree(output, base)
    rows = (json.loads(line) for line in (output / "trajectories.jsonl").read_text().splitlines())
    sampled = [len(step["completion"]["token_ids"]) for row in rows for step in row["steps"]]
    return {
        "tokens": sum(sampled),
        "before": found["accuracy_before"],
        "after": found["accuracy_after"],
        "change": found["intervals"]["accuracy_change"],
        "greedy": [found["greedy_before"], found["greedy_after"]],
        **{
            name: [step[key] for step in steps if key in step]
            for name, key in (
                ("true", "label_accuracy"),
                ("agreement", "majority_ratio"),
                ("left", "left_base"),
                ("distinct", "distinct_winners"),
            )
        },
    }


def summary(runs: list[dict[str, Any]]) -> str:
    """One line an arm and number of prompts."""
    lines = [
        "| arm | prompts | runs | gain, mean [95 % over runs] | worst | below the base | votes true | tokens sampled, mean |",
        "|---" * 8 + "|",
    ]
    for arm, prompts in dict.fromkeys((row["arm"], row["prompts"]) for row in runs):
        rows = [row for row in runs if (row["arm"], row["prompts"]) == (arm, prompts)]
        gains = [row["after"] - row["before"] for row in rows]
        gain = statistics.mean(gains)
        count = len(gains)
        wide = student(0.95, count - 1) * statistics.stdev(gains) / math.sqrt(count) if count > 1 else math.inf
        true = statistics.mean([value for row in rows for value in row["true"]] or [0.0])
        tokens = statistics.mean([row.get("tokens", math.nan) for row in rows])
        lines.append(
            f"| {arm} | {prompts} | {len(rows)} | {gain:+.3f} [{gain - wide:+.3f}, {gain + wide:+.3f}] | {min(gains):+.3f} "
            f"| {sum(gain < 0 for gain in gains)} | {true:.2f} | {tokens:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def every(runs: list[dict[str, Any]]) -> str:
    """One line a run."""
    lines = ["| arm | prompts | seed | avg | change [95 %] | left the base, by step |", "|---" * 6 + "|"]
    for row in runs:
        low, high = row["change"]
        left = " ".join(f"{value:.2f}" for value in row["left"])
        lines.append(
            f"| {row['arm']} | {row['prompts']} | {row['seed']} | {row['before']:.3f} → {row['after']:.3f} "
            f"| {row['after'] - row['before']:+.3f} [{low:+.3f}, {high:+.3f}] | {left} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
