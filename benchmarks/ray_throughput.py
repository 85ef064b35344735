"""Episodes a second on the workers of a Ray cluster, as a ratio to one process, where an environment waits.

    python benchmarks/ray_throughput.py                  # needs the extra ray; about 8 minutes on 2 cores

A scripted agent plays an environment whose every step takes 50 ms and computes nothing, so that only what is around the episodes is
measured: their way to a worker and back. The arms take turns, `--rounds` times. The rate is that of the episodes after the first tenth, so
without the start of the workers, which stands apart: seconds from the call to the first episode. Every arm writes the same bytes, which is
checked. Run it from the root of the repository: the workers import `benchmarks.waiting_env`.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, os.getcwd())

from benchmarks.waiting_env import WAITING
from skill_ttrl.commands.collect import TaskSelection, run
from skill_ttrl.config import ScaleConfig
from skill_ttrl.cores import cores
from skill_ttrl.progress import SilentProgress


class Clock(SilentProgress):
    """The time of each episode."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.ended: list[float] = []

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        self.ended.append(time.perf_counter())

    @property
    def rate(self) -> float:
        first = len(self.ended) // 10
        return (len(self.ended) - 1 - first) / (self.ended[-1] - self.ended[first])


@dataclass(frozen=True)
class Measured:
    """One arm of one round."""

    rate: float
    start: float
    whole: float
    written: bytes


def measure(workers: int, options: argparse.Namespace) -> Measured:
    """Play all episodes on so many workers; 0: in this process."""
    scale = None
    if workers:
        scale = ScaleConfig(address="local", workers=workers, cpus_per_worker=cores() / max(cores(), workers))
    kwargs = {
        "seconds": options.pause, "turns": options.steps, "tasks": options.episodes, "actions": ["wait", "look"],
    }  # fmt: skip
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "out.jsonl")
        jobs = None if workers else 1
        run(TaskSelection(WAITING, kwargs=kwargs), agent="random", jobs=jobs, scale=scale, output=path, progress=clock)
        whole = time.perf_counter() - clock.began
        return Measured(clock.rate, clock.ended[0] - clock.began, whole, path.read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help="of an episode")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds of a step")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    import ray

    print(
        f"{platform.machine()}, {cores()} cores, Python {platform.python_version()}, Ray {ray.__version__}; {options.episodes} episodes of "
        f"{options.steps} steps of {options.pause:g} s, {options.rounds} rounds\n"
    )
    arms = [0, *options.workers]
    rounds = [{workers: measure(workers, options) for workers in arms} for _ in range(options.rounds)]
    same = len({found.written for each in rounds for found in each.values()}) == 1
    print(
        "| workers | episodes a second | ratio to one process | of each round | first episode after | whole command |"
    )
    print("|---|---|---|---|---|---|")
    for workers in arms:
        rates = [each[workers].rate for each in rounds]
        ratios = [each[workers].rate / each[0].rate for each in rounds]
        start, whole = (
            statistics.median(getattr(each[workers], name) for each in rounds) for name in ("start", "whole")
        )
        name = f"Ray, {workers}" if workers else "one process"
        print(
            f"| {name} | {statistics.median(rates):.2f} | {statistics.median(ratios):.2f} | "
            f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} | {start:.1f} s | {whole:.1f} s |"
        )
    print(f"\nAll arms wrote the same bytes: {'yes' if same else 'no'}.")


if __name__ == "__main__":
    main()
