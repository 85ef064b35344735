"""64 environments, one slow episode in eight: what each way of waiting for it costs a step.

    python benchmarks/slow_episodes.py                  # 8 steps of 64 episodes, three rounds (12 minutes; needs the extra ray)
    python benchmarks/slow_episodes.py --pause 3 --rounds 2

Each arm trains the same policy in one environment whose first step waits in one episode of eight. A Ray cluster is of this machine alone; its
start is not counted.
"""

from __future__ import annotations

import argparse
from statistics import median

from async_training import timed_run

RAY = ["scale.address=local", "scale.workers=4", "scale.cpus_per_worker=0.25"]
ARMS = {
    "in turn: one environment after the other": ["rollout.mode=sync"],
    "at the same time: a thread each": ["rollout.mode=async"],
    "the same, 1 step ahead": ["rollout.mode=async", "rl.max_staleness=1"],
    "the same, 2 steps ahead": ["rollout.mode=async", "rl.max_staleness=2"],
    "Ray: 4 workers sample 4 prompts each": [*RAY, "rollout.mode=async", "rollout.prompts_per_batch=4"],
    "the same, 1 step ahead, on Ray": [*RAY, "rollout.mode=async", "rollout.prompts_per_batch=4", "rl.max_staleness=1"],
}
"""Name of an arm → its settings."""
STEPS = ["rl.steps=8", "rl.save_steps=8", "rl.prompts_per_step=16"]
"""64 episodes a step: 4 of each prompt."""


def main() -> None:
    """Measure and print a table, Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds that a slow episode waits")
    options = parser.parse_args()
    found = [
        {name: timed_run([*settings, *STEPS], options.pause, skip=1) for name, settings in ARMS.items()}
        for _ in range(options.rounds)
    ]
    print(table(found))


def table(rounds: list[dict[str, dict[str, float]]]) -> str:
    """One row an arm: medians over rounds, and the range of the ratios to the first arm of the same round."""
    columns = ("arm", "s a step", "relative to the first (range)", "CPU s a step, this process")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    first = next(iter(ARMS))
    for arm in ARMS:
        ratios = [each[arm]["seconds"] / each[first]["seconds"] for each in rounds]
        cells = (
            arm,
            f"{median(each[arm]['seconds'] for each in rounds):.2f}",
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{median(each[arm]['cpu_seconds'] for each in rounds):.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
