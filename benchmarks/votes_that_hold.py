"""Does a method of voting hold? `quickstart_pretrained` with each arm, over seeds and prompts a step, in one resumable folder.

    python benchmarks/votes_that_hold.py FOLDER --arms recipe,majority --seeds 0-3        # tune
    python benchmarks/votes_that_hold.py FOLDER --arms recipe,random --seeds 10-17        # judge
    python benchmarks/votes_that_hold.py FOLDER2 --shots 2                                # a weaker base
    python benchmarks/votes_that_hold.py FOLDER3 --family plus_one --prompts 8 --arms majority,verify,random,labels

A run that is there is not run again; its weights are deleted once it is measured. The arms of one seed share one evaluation before
training. The tables: each arm's gain in avg@K (mean over its runs, 95 % interval over runs), runs below their base, true votes; the gain of the first
arm less that of each other one, paired; then every run. K is `--samples`. `anchored` arms also sample `n_votes_per_prompt` answers of every prompt before training.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from curve_plot import Curve, Panel, draw

from skill_ttrl.data.families import FAMILIES
from skill_ttrl.statistics import repeats_interval
from skill_ttrl.train.metrics import stop_step

ANCHORED = "vote.strategy.type=anchored"
TO_THE_END = "rl.stop_rule=null"
COUNTED = ["env.kwargs.copies=true", TO_THE_END]
"""Answers that copy the question count, as in TTRL."""
ARMS: dict[str, list[str]] = {
    "recipe": [],
    "no copies": [TO_THE_END],
    "stopped": ["env.kwargs.copies=true"],
    "majority": [*COUNTED, ANCHORED, "vote.strategy.weight=0.0"],  # the majority, and how often it left the base's
    "anchored": [*COUNTED, ANCHORED],
    "anchored .67": [*COUNTED, ANCHORED, "vote.strategy.weight=0.67"],
    "anchored .5": [*COUNTED, ANCHORED, "vote.strategy.weight=0.5"],
    "kl": [*COUNTED, "rl.kl_coef=0.05"],
    "small steps": [*COUNTED, "rl.learning_rate=5.0e-6"],
    "no deviation": [*COUNTED, "rl.algorithm=dr_grpo"],
    "negatives": [*COUNTED, "rl.algorithm=nsr"],
    "sequential": [*COUNTED, "vote.strategy.type=sequential"],
    "sequential 4": [*COUNTED, "vote.strategy.type=sequential", "vote.strategy.first=4"],
    "imitation": ["phases=[vote_sft]"],
    "verify": [*COUNTED, "rl.reward=verify"],
    "random": ["rl.reward=random"],
    "labels": [*COUNTED, "rl.reward=label"],
}


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", default="quickstart_pretrained", help="a shipped config that votes")
    parser.add_argument("--arms", default="recipe,majority", help=f"of {', '.join(ARMS)}")
    parser.add_argument(
        "--family", help="generated problems in place of the recipe's, with examples of them in the prompt"
    )
    parser.add_argument("--seeds", default="0-3", help="FIRST-LAST")
    parser.add_argument("--prompts", default="8,16", help="prompts a step; 0: the recipe's")
    parser.add_argument(
        "--shots", type=int, default=4, help="examples in the prompt; a base with fewer is right less often"
    )
    parser.add_argument("--samples", type=int, default=8, help="of each held-out problem")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a further setting of every run"
    )
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="run nothing; draw the winners, a panel a run")
    parser.add_argument(
        "--signs", action="store_true", help="run nothing; what each sign finds in the runs of these folders"
    )
    options = parser.parse_args()
    if options.signs:
        print(signs([json.loads(path.read_text()) for path in sorted(options.folder.glob("**/*-[0-9]*.json"))]))
        return
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
        if not stored.exists() and not (options.table or options.plot):
            stored.parent.mkdir(parents=True, exist_ok=True)
            stored.write_text(json.dumps(run(options, arm, prompts, seed)))
            print(f"{arm}, {prompts} prompts, seed {seed}", file=sys.stderr, flush=True)
        if stored.exists():
            runs.append({"arm": arm, "prompts": prompts, "seed": seed} | json.loads(stored.read_text()))
    if options.plot:
        options.plot.write_text(plot(runs), encoding="utf-8")
        return
    print(summary(runs))
    print(every(runs))


def run(options: argparse.Namespace, arm: str, prompts: int, seed: int) -> dict[str, Any]:
    """Train one cell in a process of its own; its figures."""
    output = options.folder / "run"
    shutil.rmtree(output, ignore_errors=True)
    settings = [
        *([f"rl.prompts_per_step={prompts}"] if prompts else []),
        f"eval.samples={options.samples}",
        f"runtime.threads={options.threads}",
        *ARMS[arm],
        *options.set,
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
    base = options.folder / f"base-{'counted-' * (COUNTED[0] in ARMS[arm])}{seed}"
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
                ("winners", "winners"),
                ("abstained", "abstained"),
                ("copied", "copied_winners"),
                ("flips", "flip_rate"),
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
        true = statistics.mean([value for row in rows for value in row["true"]] or [0.0])
        tokens = [row["tokens"] for row in rows if "tokens" in row]
        lines.append(
            f"| {arm} | {prompts} | {len(rows)} | {_mean(gains)} | {min(gains):+.3f} "
            f"| {sum(gain < 0 for gain in gains)} | {true:.2f} | {f'{statistics.mean(tokens):,.0f}' if tokens else ''} |"
        )
    gain = {(row["arm"], row["prompts"], row["seed"]): row["after"] - row["before"] for row in runs}
    first = runs[0]["arm"] if runs else ""
    for arm in dict.fromkeys(row["arm"] for row in runs if row["arm"] != first):
        pairs = [gain[key] - gain[arm, *key[1:]] for key in gain if key[0] == first and (arm, *key[1:]) in gain]
        if len(pairs) > 1:
            lines.append(f"\n`{first}` gains {_mean(pairs)} more than `{arm}`, paired over {len(pairs)} runs.")
    return "\n".join(lines) + "\n"


def _mean(values: list[float]) -> str:
    """The mean, and its interval over runs."""
    bounds = repeats_interval(values)
    return f"{statistics.mean(values):+.3f}" + (f" [{bounds[0]:+.3f}, {bounds[1]:+.3f}]" if bounds else "")


def every(runs: list[dict[str, Any]]) -> str:
    """One line a run."""
    lines = [
        "| arm | prompts | seed | avg | change [95 %] | agreement, first and last step | winners that copy, first and last step |",
        "|---" * 7 + "|",
    ]
    for row in runs:
        low, high = row["change"]
        ends = [f"{row[name][0]:.2f}, {row[name][-1]:.2f}" if row.get(name) else "" for name in ("agreement", "copied")]
        lines.append(
            f"| {row['arm']} | {row['prompts']} | {row['seed']} | {row['before']:.3f} → {row['after']:.3f} "
            f"| {row['after'] - row['before']:+.3f} [{low:+.3f}, {high:+.3f}] | {ends[0]} | {ends[1]} |"
        )
    return "\n".join(lines)


def plot(runs: list[dict[str, Any]]) -> str:
    """Agreement and the winners' two rules over the steps of each run, as an SVG image."""
    names = {"true": "true winners", "copied": "winners that copy the question", "agreement": "agreement"}
    panels = [
        Panel(
            f"step (seed {row['seed']}: {row['before']:.2f} → {row['after']:.2f})",
            [Curve(name, [], list(enumerate(row[key], 1))) for key, name in names.items()],
        )
        for row in runs
    ]
    return draw(panels, "Share of a step's prompts")


def signs(runs: list[dict[str, Any]]) -> str:
    """Table of what each sign finds, in runs that ended below their base and in runs that ended above it, both beyond chance."""
    bad, good = [row for row in runs if row["change"][1] < 0], [row for row in runs if row["change"][0] > 0]

    def latest(name: str, steps: int) -> Callable[[dict[str, Any]], list[float]]:
        """Means of a figure over the latest `steps` steps, after each step."""
        return lambda row: [statistics.mean(row[name][end - steps : end]) for end in range(steps, len(row[name]) + 1)]

    scores: dict[str, tuple[int, Callable[[dict[str, Any]], list[float]]]] = {
        "winners that copy the question, 2 steps": (2, latest("copied", 2)),
        "first agreement low, 3 steps": (3, lambda row: [-statistics.mean(row["agreement"][:3])]),
        "agreement's rise in 2 steps": (
            3,
            lambda row: [b - a for a, b in zip(row["agreement"], row["agreement"][2:], strict=False)],
        ),
        "left the base's winner, 3 steps": (3, latest("left", 3)),
        "flips, 5 steps": (5, latest("flips", 5)),
        "fewer distinct winners, 3 steps": (3, lambda row: [-value for value in latest("distinct", 3)(row)]),
    }
    lines = [
        f"{len(bad)} runs below their base, {len(good)} above.\n",
        "| sign | area under the curve | best threshold with at most 5 % false alarms | bad runs found | false alarms | step, median |",
        "|---" * 6 + "|",
    ]
    for name, (window, score) in scores.items():
        found, alarms = [max(score(row) or [-9.0]) for row in bad], [max(score(row) or [-9.0]) for row in good]
        area = statistics.mean((one > other) + (one == other) / 2 for one in found for other in alarms)
        limit = sorted(alarms, reverse=True)[int(0.05 * len(alarms))]  # above it are at most 5 %
        hit = [
            next(step for step, value in enumerate(score(row), window) if value > limit)
            for row, top in zip(bad, found, strict=True)
            if top > limit
        ]
        lines.append(
            f"| {name} | {area:.2f} | above {limit:.2f} | {len(hit)} of {len(bad)} | {sum(each > limit for each in alarms)} of {len(good)} "
            f"| {statistics.median(hit) if hit else '-'} |"
        )
    stops = [[stop_step(rows_of(row), "collapse") for row in part] for part in (bad, good)]
    fired = [[step for step in part if step is not None] for part in stops]
    lines.append(
        f"| **`rl.stop_rule: collapse`** | | its defaults | {len(fired[0])} of {len(bad)} | {len(fired[1])} of {len(good)} "
        f"| {statistics.median(fired[0]) if fired[0] else '-'} |"
    )
    return "\n".join(lines) + "\n"


def rows_of(row: dict[str, Any]) -> list[dict[str, float]]:
    """A run's metrics as its stopping rule read them. Cells of earlier versions lack some."""
    names = {
        "agreement": "majority_ratio",
        "copied": "copied_winners",
        "distinct": "distinct_winners",
        "winners": "winners",
        "abstained": "abstained",
    }
    known = {name: row[key] for key, name in names.items() if row.get(key)}
    steps = [dict(zip(known, values, strict=True)) for values in zip(*known.values(), strict=True)]
    late = len(steps) - len(row["flips"])  # a prompt comes round again only in later steps
    return [
        step if number < late else step | {"flip_rate": row["flips"][number - late]}
        for number, step in enumerate(steps)
    ]


if __name__ == "__main__":
    main()
