"""An agent of 40 lines (examples/agents/calculator.py) learns from votes through `--agent`, with controls; what a program costs a rollout.

    python benchmarks/agents.py learn --seeds 1 2 3             # cold starts of quickstart_tools, the variants, then the table
    python benchmarks/agents.py speed RUN --openai PYTHON       # rollouts/s with no program, with this one, and with the openai package

One cold start a seed; every variant begins from it. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from tools import RECIPE, runs, weights_of

from skill_ttrl.config import load_config
from skill_ttrl.data.tasks import MATH_ENV_ID, load_tasks
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.build import build_for_eval

EXAMPLES = Path(__file__).parents[1] / "examples" / "agents"
SMALL = [
    "rollout.n_votes_per_prompt=16", "rollout.n_samples_per_prompt=16", "rl.prompts_per_step=8", "rl.steps=20",
    "eval.samples=4", "eval.greedy=false",
]  # fmt: skip
"""The recipe with fewer rollouts."""
ALONE = ["agent.tools=[]", "agent.max_turns=1"]
"""The recipe gives no tools: the program brings its own."""


def with_program(python: str, script: str) -> list[str]:
    """Settings of a rollout that a program of examples/agents plays."""
    return [*ALONE, f"program.argv={shlex.join([*python.split(), str(EXAMPLES / script)])}"]


CALCULATOR = with_program(f"{sys.executable} -IS", "calculator.py")
VARIANTS: dict[str, list[str]] = {
    "majority": ["phases=[rl]", *CALCULATOR],
    "random": ["phases=[rl]", "rl.reward=random", *CALCULATOR],
    "vote_sft": ["phases=[vote_sft]", *CALCULATOR],
    "no program": ["phases=[rl]", *ALONE],
}
ROUNDS = 3
"""Of each side of the comparison of speed, in turn."""


def main() -> None:
    """Run the command on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("learn", "speed"))
    parser.add_argument("run", nargs="?", type=Path, help="a finished run of the recipe, for its policy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-agents"))
    parser.add_argument("--openai", help="a Python that has the openai package")
    options = parser.parse_args()
    if options.what == "learn":
        learn(options.seeds, options.output)
    else:
        speed(options.run, options.openai)


def learn(seeds: Sequence[int], output: Path) -> None:
    """Run what is missing, and print the table."""

    def settings(name: str, seed: int) -> list[str]:
        measured = [f"run.baseline={output / f'majority-{seed}'}"] if name in ("random", "vote_sft") else []
        return [*SMALL, *VARIANTS[name], *measured]

    rows = [f"| {name} | {seed} | {row(folder)} |" for name, seed, _, folder in runs(seeds, output, VARIANTS, settings)]
    print("\n| run | seed | avg@4 before | after | change (95 %) | two calls, first steps | last steps | s |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))


def row(folder: Path) -> str:
    """Accuracies of a run, and the share of its rollouts in which the model was called twice, over its first and last five steps."""
    run, rollouts = read_summary(folder), list(read_jsonl(folder / "trajectories.jsonl"))
    low, high = run.intervals["accuracy_change"]
    steps = sorted({each["step"] for each in rollouts})
    twice = [
        f"{fmean(len(each['steps']) > 1 for each in rollouts if each['step'] in part):.2f}"
        for part in (steps[:5], steps[-5:])
    ]
    change = f"{run.accuracy_after - run.accuracy_before:+.3f} [{low:+.3f}, {high:+.3f}]"
    seconds = f"{sum(each for name, each in run.seconds.items() if '.' not in name):.0f}"  # phases, not their parts
    return " | ".join([f"{run.accuracy_before:.3f}", f"{run.accuracy_after:.3f}", change, *twice, seconds])


def speed(run: Path | None, python: str | None) -> None:
    """Seconds of the same rollouts with and without programs."""
    sides = {"no program": ALONE, "urllib": CALCULATOR}
    if python:
        sides["openai package"] = with_program(python, "with_openai.py")
    tasks = load_tasks(load_config(RECIPE, []).eval_source, MATH_ENV_ID, split="test")[:16]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name, settings in sides.items():
            config = load_config(RECIPE, ["runtime.threads=1", *settings])
            worker, found = build_for_eval(config, {"test": tasks}, SilentProgress(), weights=weights_of(run))
            began = time.perf_counter()
            groups = worker.generate_rollouts(found["test"], 4, Sampling.of(config.rollout), seed=number)
            seconds[name].append(time.perf_counter() - began)
            calls = sum(len(each.steps) for group in groups for each in group.trajectories)
            print(f"{name}: {calls} calls of the model, {seconds[name][-1]:.1f} s")
    for name, each in seconds.items():
        print(f"| {name} | {64 / median(each):.1f} rollouts/s | {min(each):.1f} to {max(each):.1f} s for 64 |")


if __name__ == "__main__":
    main()
