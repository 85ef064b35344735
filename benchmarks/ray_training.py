"""Seconds that a training step samples for, on the workers of a Ray cluster, as a ratio to one process, where games and policy compute.

    python benchmarks/ray_training.py                  # needs the extras ray and alfworld; about 8 minutes on 2 cores

`quickstart_alfworld` from random weights, RL alone: 16 generated games of at most 50 steps, 8 times each, in batches of 4 games, one thread a process.
The arms take turns, `--rounds` times; the first two steps, in which workers start and games are loaded, are left out. Every arm must write the same
trajectories.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import tempfile
from pathlib import Path
from statistics import fmean, median

from skill_ttrl.commands import collect, train
from skill_ttrl.config import load_config
from skill_ttrl.cores import cores
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.tasks import TaskSelection

RAY = ["scale.address=local"]
ARMS = {
    "one process": [],
    "Ray, 1 worker samples": [*RAY, "scale.workers=1"],
    "Ray, 2 workers sample": [*RAY, "scale.workers=2"],
}
"""Name of an arm → its settings."""
SETTINGS = [
    "phases=[rl]", "rl.steps=6", "rl.save_steps=6", "rollout.prompts_per_batch=4", "env.eval_tasks=4", "eval.greedy=false",
    "eval.controls=[]", "runtime.threads=1", "run.report_to=none",
]  # fmt: skip


def measure(settings: list[str], episodes: Path) -> tuple[float, float, str]:
    """Seconds of sampling and of a whole step, means over steps, and a digest of all trajectories; the policy takes its words from `episodes`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        words = f"demonstrations.trajectories={episodes}"
        train.run(load_config("quickstart_alfworld", [words, *SETTINGS, *settings]), folder)
        steps = [row for row in read_jsonl(folder / "timings.jsonl") if row["phase"] == "rl"][2:]
        written = hashlib.sha256((folder / "trajectories.jsonl").read_bytes()).hexdigest()
    return fmean(row["sample_seconds"] for row in steps), fmean(row["seconds"] for row in steps), written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        episodes = Path(folder) / "episodes.jsonl"
        games = TaskSelection("alfworld", kwargs={"data": "generated:2000", "max_steps": 50}, episodes=200)
        collect.run(games, agent="expert", output=episodes)
        rounds = [{arm: measure(settings, episodes) for arm, settings in ARMS.items()} for _ in range(options.rounds)]
    print(f"{platform.machine()}, {cores()} cores, Python {platform.python_version()}, {options.rounds} rounds\n")
    print("| arm | s of sampling a step | rate, as a ratio to one process | of each round | s a step |")
    print("|---|---|---|---|---|")
    for arm in ARMS:
        ratios = [each["one process"][0] / each[arm][0] for each in rounds]
        print(
            f"| {arm} | {median(each[arm][0] for each in rounds):.2f} | {median(ratios):.2f} | "
            f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} | {median(each[arm][1] for each in rounds):.2f} |"
        )
    same = len({each[arm][2] for each in rounds for arm in ARMS}) == 1
    print(f"\nAll arms wrote the same trajectories: {'yes' if same else 'no'}.")


if __name__ == "__main__":
    main()
