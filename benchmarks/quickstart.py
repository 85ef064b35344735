"""Quickstart over seeds with its baseline and its controls, and the collapse example: the tables of benchmarks/results/quickstart.md.

    python benchmarks/quickstart.py                      # all runs, then the tables (about an hour on one core)
    python benchmarks/quickstart.py --tables-only        # the tables again from finished runs
    python benchmarks/quickstart.py --runs psr --seeds 0 # one of them

One cold start a seed, from which every run of that seed begins; runs start one after the other on one thread. The reinforcement by the
majority and its baseline are those of benchmarks/stopping.py, which reads the same folder. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from stopping import Difference, cold_start, run_seed, signed, skillttrl

from skill_ttrl.runs.folder import metric_rows
from skill_ttrl.runs.summary import Summary, read_summary
from skill_ttrl.statistics import paired_difference
from skill_ttrl.storage.jsonl import read_jsonl

PAIR = ("majority", "vote_sft")
"""The reinforcement as the recipe has it, and its baseline at equal samples: SFT on the majority answers."""
CONTROLS: dict[str, dict[str, tuple[str, ...]]] = {
    "quickstart": {
        "updates-1": ("phases=[rl]", "rl.mini_batch_size=null", "rl.lr_scheduler=constant"),
        "updates-8": ("phases=[rl]", "rl.mini_batch_size=4"),
        "psr": ("phases=[rl]", "rl.algorithm=psr"),
        "psr-random": ("phases=[rl]", "rl.algorithm=psr", "rl.reward=random"),
        "random": ("phases=[rl]", "rl.reward=random"),
        "vote_sft-random": ("phases=[vote_sft]", "rl.reward=random"),
        "label": ("phases=[rl]", "rl.reward=label"),
        "format": ("phases=[rl]", "rl.reward=format"),
        "psr-differing": (
            "phases=[rl]",
            "rl.algorithm=psr",
            "rl.dynamic_sampling=1",
        ),
    },
    "collapse": {
        "label": ("phases=[rl]", "rl.reward=label"),
        "kl": ("phases=[rl]", "rl.kl_coef=1.0"),
        "kl-random": ("phases=[rl]", "rl.kl_coef=1.0", "rl.reward=random"),
    },
}
"""By recipe, the other runs and their settings. The recipe makes 4 updates a step; `updates-1` is what it did before. `psr-differing` learns
nothing from groups whose samples all earn the same, as GRPO does."""
COLUMNS = (
    "seed", "run", "avg@32 before", "avg@32 after", "change (95 %)", "maj@32", "greedy",
    "votes true, last step", "flip rate", "warned",
)  # fmt: skip
CURVES = {"frac_reward_zero_std": "share of groups of one reward", "answer_entropy": "entropy of the answers"}
STEPS = (0, 4, 9, 14, 19)
Runs = Mapping[str, Mapping[int, Path]]
"""Folders of the finished runs, by name and seed."""


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-quickstart"))
    parser.add_argument("--recipes", nargs="+", choices=CONTROLS, default=list(CONTROLS))
    parser.add_argument("--runs", nargs="+", help="only these")
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for recipe in options.recipes:
        names = [name for name in (*PAIR, *CONTROLS[recipe]) if not options.runs or name in options.runs]
        if not options.tables_only:
            for seed in options.seeds:
                run_missing(recipe, seed, names, options.output)
        found = {name: finished(recipe, name, options.seeds, options.output) for name in names}
        found = {name: folders for name, folders in found.items() if folders}
        print(f"\n### {recipe}\n\n{table(found)}\n\n{totals(found)}\n\n{curves(found)}")


def run_missing(recipe: str, seed: int, names: Sequence[str], output: Path) -> None:
    """The runs of one seed that have not ended yet."""
    if {*names} & {*PAIR}:
        run_seed(recipe, seed, output, 1)
    for name in names:
        folder = run_folder(output, recipe, name, seed)
        if name not in PAIR and not (folder / "summary.json").exists():
            start = cold_start(recipe, seed, output)
            skillttrl("train", recipe, seed, folder, [start, *CONTROLS[recipe][name]])


def finished(recipe: str, name: str, seeds: Sequence[int], output: Path) -> dict[int, Path]:
    """Folders of a kind of run that have a summary, by seed."""
    folders = {seed: run_folder(output, recipe, name, seed) for seed in seeds}
    return {seed: folder for seed, folder in folders.items() if (folder / "summary.json").exists()}


def run_folder(output: Path, recipe: str, name: str, seed: int) -> Path:
    """Where a run is kept."""
    return output / (f"{recipe}-{seed}" if name == PAIR[0] else f"{recipe}-{seed}-{name}")


def table(found: Runs) -> str:
    """One row a run, Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for name, seed, folder in ((name, *each) for name, folders in found.items() for each in folders.items()):
        run = read_summary(folder)
        cells = (
            str(seed),
            name,
            f"{run.accuracy_before:.3f}",
            f"{run.accuracy_after:.3f}",
            signed((change(run), *run.intervals["accuracy_change"])),
            f"{run.majority_before:.3f} → {run.majority_after:.3f}",
            f"{run.greedy_before:.3f} → {run.greedy_after:.3f}",
            "-" if run.label_accuracy is None else f"{run.label_accuracy:.3f}",
            "-" if run.flip_rate is None else f"{run.flip_rate:.3f}",
            "yes" if run.warnings else "no",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def change(run: Summary) -> float:
    """avg@k after training less avg@k before."""
    return (run.accuracy_after or 0.0) - (run.accuracy_before or 0.0)


def totals(found: Runs) -> str:
    """Each kind of run over seeds: mean and range, and how it differs from its start and from the baseline."""
    columns = ("run", "seeds", "avg@32 before", "avg@32 after", "lowest", "highest", "change, pooled (95 %)",
               "less vote_sft, pooled (95 %)", "seeds above, within noise, below vote_sft", "entropy of the answers, after")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for name, folders in found.items():
        runs = [read_summary(folder) for folder in folders.values()]
        before, after = [run.accuracy_before or 0.0 for run in runs], [run.accuracy_after or 0.0 for run in runs]
        base = {seed: folder for seed, folder in found.get(PAIR[1], {}).items() if seed in folders}
        compared = name != PAIR[1] and base.keys() == folders.keys()
        cells = (
            name,
            str(len(runs)),
            f"{fmean(before):.3f}",
            f"{fmean(after):.3f}",
            f"{min(after):.3f}",
            f"{max(after):.3f}",
            signed(pooled(folders, "before", folders)),
            signed(pooled(base, "after", folders)) if compared else "-",
            seed_by_seed(base, folders) if compared else "-",
            f"{fmean(run.entropy_after or 0.0 for run in runs):.3f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def seed_by_seed(base: Mapping[int, Path], folders: Mapping[int, Path]) -> str:
    """Seeds whose interval lies above that of the baseline, holds 0, lies below."""
    found = [pooled({seed: base[seed]}, "after", {seed: folder}) for seed, folder in folders.items()]
    above, below = sum(low > 0 for _, low, _ in found), sum(high < 0 for *_, high in found)
    return f"{above}, {len(found) - above - below}, {below}"


def pooled(ones: Mapping[int, Path], when: str, others: Mapping[int, Path]) -> Difference:
    """avg@k of the others after training less that of the ones `before` or `after` it, paired over the problems of all seeds."""
    pairs = [(shares(ones[seed], when), shares(folder, "after")) for seed, folder in others.items()]
    assert all(one.keys() == other.keys() for one, other in pairs), "measured on other problems"
    return paired_difference(
        [one[task] for one, _ in pairs for task in one], [other[task] for one, other in pairs for task in one]
    )


def shares(folder: Path, label: str) -> dict[str, float]:
    """Share of right samples by problem."""
    line = next(line for line in read_jsonl(folder / "evaluations.jsonl") if line["label"] == label)
    return {result["task"]: result["correct"] / result["samples"] for result in line["results"]}


def curves(found: Runs) -> str:
    """Describe the samples of each step, mean over seeds: share of groups that earn the same throughout, entropy of the answers."""
    lines = [f"| run | figure | {' | '.join(f'step {step + 1}' for step in STEPS)} |", f"|{'---|' * (len(STEPS) + 2)}"]
    for name, folders in found.items():
        if name.startswith(PAIR[1]):
            continue
        rows = [[row for row in metric_rows(folder) if row["phase"] == "rl"] for folder in folders.values()]
        for key, shown in CURVES.items():
            means = (fmean(run[step][key] for run in rows) for step in STEPS)
            lines.append(f"| {name} | {shown} | {' | '.join(f'{value:.3f}' for value in means)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
