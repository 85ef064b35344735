"""One bank, two optimizers: text edits and weight updates in turn, beside each alone. See benchmarks/results/optimize.md.

    python benchmarks/optimize_alternating.py                                    # cold starts (6 min a seed), then all runs
    python benchmarks/optimize_alternating.py --cold runs/qs_0 runs/qs_1         # runs that have a cold start of quickstart_skills

The task is that of `quickstart_skills`, but the bank is empty: what a name does stands nowhere. The 40 names that no demonstration has are
trained on with six of their digits each, and measured on the other four. The reward is the true answer (`rl.reward=label`), in all arms. Text
edits are those of `optimize.optimizer: induce`, on the rollouts that the weights learn from.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from speed_plot import draw

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.data.families import MODULUS, Operators
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.runs.folder import metric_rows
from skill_ttrl.runs.summary import Summary, read_summary
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.types import derive_seed

RECIPE = "quickstart_skills"
TRAINED_DIGITS, GATE_DIGITS = 6, 2
SHOWN_STEPS = (1, 2, 4, 8, 16, 24, 40)
EDITS = (
    "optimize.every=2",
    "optimize.optimizer=induce",
    "optimize.optimizer_options={grammar: 'skill_ttrl.data.families:OperatorGrammar'}",
    "optimize.batch_size=512",
    "optimize.edit_budget=8",
    "optimize.min_edit_budget=4",
)
"""20 text steps in 40 steps of the rl phase."""
ARMS: dict[str, tuple[str, ...]] = {
    "weights only": (),
    "text only": (*EDITS, "rl.learning_rate=1e-30"),
    "alternating": EDITS,
    "alternating, behind the gate": (
        *EDITS,
        "skills.gate={data: {path: GATE}, tasks: 80, rollouts_per_task: 2, every: 2, min_effect: 0.0}",
    ),
    "alternating, coin as reward": (*EDITS, "rl.reward=random"),
    "weights only, true bank (ceiling)": ("skills.bank=synthetic:operators", "skills.type_names={other: operator}"),
}


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cold", type=Path, nargs="+", help="run folders with a cold start, of seeds 0, 1, ...")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-optimize-alternating"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--figure", type=Path, help="an SVG of the first three arms, step by step")
    options = parser.parse_args()
    seeds = list(range(len(options.cold))) if options.cold else options.seeds
    for seed in seeds:
        cold = options.cold[seed] if options.cold else options.output / f"cold-{seed}"
        if not list((cold / "checkpoints").glob("sft-*")):
            train.run(load_config(RECIPE, ["phases=[sft]", f"seed={seed}"]), cold, resume="auto")
        for arm in options.arms:
            run_arm(arm, seed, max((cold / "checkpoints").glob("sft-*")), options.output)
    print(table(options.arms, seeds, options.output))
    if options.figure:
        options.figure.write_text(figure(seeds, options.output))


def run_arm(arm: str, seed: int, weights: Path, output: Path) -> None:
    """Reinforce from a cold start, where that is not done yet."""
    folder = folder_of(output, arm, seed)
    if (folder / "summary.json").exists():
        return
    files = problems(seed, output)
    gate = files.pop("gate")
    settings = [
        "phases=[rl]",
        f"seed={seed}",
        f"model.path={weights}",
        *(f"data.{role}={{path: '{path}'}}" for role, path in files.items()),
        "skills.bank=null",
        "skills.update=none",
        "rl.reward=label",
        "eval.greedy=false",
        "runtime.threads=1",
        *(setting.replace("GATE", f"'{gate}'") for setting in ARMS[arm]),
    ]
    train.run(load_config(RECIPE, settings), folder, resume="auto")


def problems(seed: int, output: Path) -> dict[str, Path]:
    """Files of the problems to train on and to measure on: every name is in both, each digit of it in one.

    The gate's are two of those to train on, which a run with a gate does not train on.
    """
    output.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[str]] = {"train": [], "eval": [], "gate": []}
    every = Operators().problems("test", MATH_ENV_ID)
    for start in range(0, len(every), MODULUS):
        own = every[start : start + MODULUS]
        random.Random(derive_seed(seed, "digits", own[0].id)).shuffle(own)
        for place, task in enumerate(own):
            row = {"id": task.id, "question": task.options["question"], "answer": task.ground_truth}
            rows["train" if place < TRAINED_DIGITS else "eval"].append(json.dumps(row))
            if place < GATE_DIGITS:
                rows["gate"].append(json.dumps(row))
    files = {role: output / f"{role}-{seed}.jsonl" for role in rows}
    for role, path in files.items():
        path.write_text("\n".join(rows[role]) + "\n")
    return files


def folder_of(output: Path, arm: str, seed: int) -> Path:
    """Where the run of an arm is."""
    return output / f"{''.join(each for each in arm if each.isalnum() or each == ' ').replace(' ', '-')}-{seed}"


def table(arms: Sequence[str], seeds: Sequence[int], output: Path) -> str:
    """Success on digits that were not trained on, over seeds."""
    rows = [
        "| arm | seed | success before | success after | change (95 %) | asks before → after | true rules in the bank, of 40 | bank off, after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        found = [read_summary(folder_of(output, arm, seed)) for seed in seeds]
        for seed, summary in zip(seeds, found, strict=True):
            rows.append(f"| {arm} | {seed} | {_cells(summary, folder_of(output, arm, seed))} |")
    means = (
        f"- {arm}: {fmean(each.accuracy_before or 0 for each in found):.3f} → {fmean(each.accuracy_after or 0 for each in found):.3f}"
        for arm in arms
        for found in [[read_summary(folder_of(output, arm, seed)) for seed in seeds]]
    )
    return "\n".join([*rows, "", *means])


def figure(seeds: Sequence[int], output: Path) -> str:
    """The training's rewards, and how often the bank is asked, as means over seeds."""
    series = {}
    for arm in list(ARMS)[:3]:
        runs = [metric_rows(folder_of(output, arm, seed)) for seed in seeds]
        steps = [[row for row in rows if row["phase"] == "rl" and "retrieve_rate" in row] for rows in runs]
        series[arm] = [
            (
                float(number),
                {name: fmean(rows[number - 1][name] for rows in steps) for name in ("score/mean", "retrieve_rate")},
            )
            for number in SHOWN_STEPS
        ]
    return draw("step", [("training reward", "score/mean", 1.0), ("samples that ask", "retrieve_rate", 1.0)], series)


def _cells(summary: Summary, folder: Path) -> str:
    family = Operators()
    with SkillBank.open(folder / "bank", read_only=True) as bank:
        texts = [skill.text.strip().split(" ") for skill in bank]
    right = sum(
        len(each) == 2 and all(_value(each[1], x) == family.rule(each[0]).apply(x) for x in range(MODULUS))
        for each in texts
        if each[0] in family.names["test"]
    )
    asks = [
        f"{use['retrieve_rate']:.3f}" if use else "-" for use in (summary.skill_use_before, summary.skill_use_after)
    ]
    gain = (summary.accuracy_after or 0) - (summary.accuracy_before or 0)
    low, high = summary.intervals["accuracy_change"]
    cells = [
        f"{summary.accuracy_before or 0:.3f}",
        f"{summary.accuracy_after or 0:.3f}",
        f"{gain:+.3f} [{low:+.3f}, {high:+.3f}]",
        " → ".join(asks),
        f"{right}/{len(texts)}",
        "-" if summary.accuracy_no_skills is None else f"{summary.accuracy_no_skills:.3f}",
    ]
    return " | ".join(cells)


def _value(rule: str, x: int) -> int:
    digit = int(rule[1:])
    return {"+": x + digit, "-": x - digit, "*": x * digit}[rule[0]] % MODULUS


if __name__ == "__main__":
    main()
