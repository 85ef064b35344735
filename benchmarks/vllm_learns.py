"""Does a run learn the same with vLLM as its sampler? The recipe quickstart_vllm with both backends, over seeds.

    python benchmarks/vllm_learns.py                 # needs vLLM in this environment (docs/models.md); about 6 minutes a seed
    python benchmarks/vllm_learns.py --tables-only   # the table again from finished runs

The third row of each seed leaves the gap between sampler and learner uncorrected. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

from skill_ttrl.runs.summary import read_summary

KINDS = {
    "hf": ["rollout.backend=hf"],
    "vllm": ["rollout.backend=vllm"],
    "vllm, uncorrected": ["rollout.backend=vllm", "rl.rollout_correction=none"],
}
COLUMNS = (
    "seed",
    "sampler",
    "avg@32 before",
    "avg@32 after",
    "change (95 %)",
    "gap, mean",
    "gap, largest",
    "rl s",
    "of it sync s",
)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-vllm"))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in options.seeds:
        for kind in options.kinds:
            folder = options.output / f"{kind.replace(', ', '-')}-{seed}"
            if not options.tables_only and not (folder / "summary.json").exists():
                train(KINDS[kind], seed, folder)
            if (folder / "summary.json").exists():
                rows.append(row(kind, seed, folder))
    print(f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *rows, sep="\n")


def train(how: list[str], seed: int, folder: Path) -> None:
    """One run, as a user would start it."""
    command = [sys.executable, "-m", "skill_ttrl.cli.main", "train", "quickstart_vllm", "--seed", str(seed)]
    command += [word for each in how for word in ("--set", each)] + ["--output", str(folder), "--resume", "auto"]
    print("$", " ".join(command[1:]), file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def row(kind: str, seed: int, folder: Path) -> str:
    """One run as a line of the table."""
    run = read_summary(folder)
    low, high = run.intervals["accuracy_change"]
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    gaps = [step for step in steps if step.get("sampling/logp_difference/mean") is not None]
    cells = (
        str(seed),
        kind,
        f"{run.accuracy_before:.3f}",
        f"{run.accuracy_after:.3f}",
        f"{(run.accuracy_after or 0) - (run.accuracy_before or 0):+.3f} [{low:+.3f}, {high:+.3f}]",
        f"{fmean(step['sampling/logp_difference/mean'] for step in gaps):.1e}" if gaps else "not measured",
        f"{max(step['sampling/logp_difference/max'] for step in gaps):.1e}" if gaps else "not measured",
        f"{run.seconds['rl']:.1f}",
        f"{run.seconds.get('rl.sync', 0.0):.1f}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
