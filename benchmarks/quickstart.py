"""Quickstart over seeds, with its controls and its baseline, and the collapse example: the tables of docs/quickstart-results.md.

    python benchmarks/quickstart.py                      # all runs, then the tables (about 40 minutes on 2 cores)
    python benchmarks/quickstart.py --tables-only        # the tables again from finished runs

Each run is one `skillttrl train` in a process of its own, one after the other, so that its wall times are those of an
idle machine. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import fmean

from skill_ttrl.runs.summary import Summary, read_summary
from skill_ttrl.stages.reports.summary_text import learned_by

RUNS = {
    "quickstart": ("majority", "vote_sft", "label", "random", "format"),
    "collapse": ("majority", "vote_sft", "label"),
}
"""By recipe, the rewards; `vote_sft` is the baseline in place of reinforcement: SFT on the majority answers."""
COLUMNS = (
    "seed", "learned by", "avg@32 before", "avg@32 after", "change (95 %)", "maj@32", "greedy",
    "votes true, last step", "flip rate", "warned", "cold start s", "then s",
)  # fmt: skip


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-quickstart"))
    parser.add_argument("--recipes", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--rewards", nargs="+", help="only these rewards")
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for recipe in options.recipes:
        rewards = [name for name in RUNS[recipe] if not options.rewards or name in options.rewards]
        found = []
        for reward in rewards:
            for seed in options.seeds:
                folder = run_folder(options.output, recipe, reward, seed)
                if not options.tables_only and not (folder / "summary.json").exists():
                    train(recipe, reward, seed, folder)
                if (folder / "summary.json").exists():
                    found.append(read_summary(folder))
        print(f"\n### {recipe}\n")
        print(table(found))
        print(totals(found))


def run_folder(output: Path, recipe: str, reward: str, seed: int) -> Path:
    """Where a run is kept; the baseline stands beside the majority's run, so that each shows the other."""
    return output / (f"{recipe}-majority-{seed}-vote_sft" if reward == "vote_sft" else f"{recipe}-{reward}-{seed}")


def train(recipe: str, reward: str, seed: int, folder: Path) -> None:
    """One run, as a user would start it."""
    command = [sys.executable, "-m", "skill_ttrl.cli.main", "train", recipe, "--seed", str(seed)]
    how = "phases=[sft, vote_sft]" if reward == "vote_sft" else f"rl.reward={reward}"
    command += ["--set", how, "--output", str(folder), "--resume", "auto"]
    print("$", " ".join(command[1:]), file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def table(found: list[Summary]) -> str:
    """One row a run, Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for run in found:
        low, high = run.intervals["accuracy_change"]
        cells = (
            str(run.seed),
            learned_by(run),
            f"{run.accuracy_before:.3f}",
            f"{run.accuracy_after:.3f}",
            f"{(run.accuracy_after or 0) - (run.accuracy_before or 0):+.3f} [{low:+.3f}, {high:+.3f}]",
            f"{run.majority_before:.3f} → {run.majority_after:.3f}",
            f"{run.greedy_before:.3f} → {run.greedy_after:.3f}",
            "-" if run.label_accuracy is None else f"{run.label_accuracy:.3f}",
            "-" if run.flip_rate is None else f"{run.flip_rate:.3f}",
            "yes" if run.warnings else "no",
            f"{run.seconds['sft']:.1f}",
            f"{after_cold_start(run):.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def after_cold_start(run: Summary) -> float:
    """Seconds of the reinforcement, or of the baseline in its place."""
    return run.seconds.get("rl", 0.0) + run.seconds.get("vote_sft", 0.0)


def totals(found: list[Summary]) -> str:
    """Mean and range over seeds of each reward."""
    lines = []
    for how in dict.fromkeys(map(learned_by, found)):
        runs = [run for run in found if learned_by(run) == how]
        after = [run.accuracy_after or 0.0 for run in runs]
        seconds = [run.seconds["sft"] + after_cold_start(run) for run in runs]
        lines.append(
            f"- {how}: avg@32 after, mean {fmean(after):.3f}, lowest {min(after):.3f}, highest {max(after):.3f} "
            f"over {len(runs)} seeds; cold start and training together {min(seconds):.1f} to {max(seconds):.1f} s"
        )
    return "\n" + "\n".join(lines)


if __name__ == "__main__":
    main()
