"""Tools: learning when and how to call a calculator, with controls; the cost of tool turns; the start of MCP servers.

    python benchmarks/tools.py learn --seeds 1 2 3      # quickstart_tools and its controls, then the tables
    python benchmarks/tools.py speed RUN                # tokens/s of tool rollouts and of plain chat, by the policy of a run
    python benchmarks/tools.py start RUN                # seconds to the first step, with the calculator here and in an MCP server

One cold start a seed; every variant begins from it. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from stopping import skillttrl

from skill_ttrl.config import load_config
from skill_ttrl.data.tasks import MATH_ENV_ID, load_tasks
from skill_ttrl.envs import TextEnv
from skill_ttrl.envs.tools import ToolEnv, calculator
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.progress import SilentProgress
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout
from skill_ttrl.runs.summary import read_summary
from skill_ttrl.statistics import mean_interval, paired_difference
from skill_ttrl.train.build import build_for_eval, build_policy
from skill_ttrl.types import Group, Task

RECIPE = "quickstart_tools"
VARIANTS: dict[str, tuple[str, ...]] = {
    "majority": ("phases=[rl]",),
    "no tool": ("phases=[rl]", "agent.tools=[]"),
    "random": ("phases=[rl]", "rl.reward=random"),
    "vote_sft": ("phases=[vote_sft]",),
}
SAMPLES = 16
ROUNDS = 7
"""Of the two sides of a comparison of speed, in turn."""


def main() -> None:
    """Run the command on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("learn", "speed", "start"))
    parser.add_argument("run", nargs="?", type=Path, help="a finished run of the recipe, for its policy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-tools"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.what == "learn":
        learn(options.seeds, options.output)
    elif options.what == "speed":
        speed(options.run)
    else:
        start(options.run, options.output)


def weights_of(run: Path | None) -> Path:
    """The last checkpoint of a run."""
    if run is None:
        sys.exit("Name RUN, a finished run of quickstart_tools, whose policy is measured.")
    return max((run / "checkpoints").iterdir(), key=lambda each: each.stat().st_mtime)


def runs(
    seeds: Sequence[int], output: Path, names: Iterable[str], settings: Callable[[str, int], Sequence[str]]
) -> Iterator[tuple[str, int, Path, Path]]:
    """Run what is missing. Yields name and seed of each variant, the folder of its cold start, and its own."""
    for seed in seeds:
        cold = output / f"cold-{seed}"
        if not (cold / "summary.json").exists():
            skillttrl("sft", RECIPE, seed, cold, [])
        for name in names:
            folder = output / f"{name.replace(' ', '-')}-{seed}"
            if not (folder / "summary.json").exists():
                skillttrl("train", RECIPE, seed, folder, [*settings(name, seed), f"model.path={weights_of(cold)}"])
            yield name, seed, cold, folder


def learn(seeds: Sequence[int], output: Path) -> None:
    """Run what is missing, sample from each policy, and print the tables."""
    rows, calls = [], []
    for name, seed, cold, folder in runs(seeds, output, VARIANTS, lambda name, _: VARIANTS[name]):
        run = read_summary(folder)
        before, after = measured(cold, folder), measured(folder, folder)
        change, low, high = paired_difference([each["right"] for each in before], [each["right"] for each in after])
        rows.append(
            f"| {name} | {seed} | {fmean(each['right'] for each in before):.3f} | {fmean(each['right'] for each in after):.3f} | "
            f"{change:+.3f} [{low:+.3f}, {high:+.3f}] | {run.greedy_after:.3f} | {sum(run.seconds.values()):.0f} |"
        )
        for kind in ("product", "words"):
            pair = [[each for each in side if each["kind"] == kind] for side in (before, after)]
            cells = [shown([each[what] for each in side]) for what in ("right", "called", "rightly") for side in pair]
            calls.append(f"| {name} | {seed} | {kind} | {' | '.join(cells)} |")
    print("\n| run | seed | avg@16 before | after | change (95 %) | greedy after | s |\n|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    print(
        "\n| run | seed | problems | right before | after | calls before | after | calls without error before | after |"
    )
    print(f"|{'---|' * 9}")
    print("\n".join(calls))


def shown(values: Sequence[float]) -> str:
    """A mean over problems, with its interval."""
    low, high = mean_interval(values)
    return f"{fmean(values):.3f} [{low:.3f}, {high:.3f}]"


def measured(run: Path, settings: Path) -> list[dict[str, Any]]:
    """For each test problem, under the settings of a run: the shares of a policy's samples that are right, that call, and call without error."""
    file = settings / f"looked-at-{run.name}.json"
    if not file.exists():
        config = load_config(settings / "config.yaml", [])
        tasks = load_tasks(config.eval_source, MATH_ENV_ID, split="test")
        worker, found = build_for_eval(config, {"test": tasks}, SilentProgress(), weights=weights_of(run))
        groups = worker.generate_rollouts(found["test"], SAMPLES, Sampling.of(config.rollout), seed=7)
        file.write_text(json.dumps([shares_of(group) for group in groups]))
    return list(json.loads(file.read_text()))


def shares_of(group: Group) -> dict[str, Any]:
    """The shares of one problem."""
    calls = [[call for step in each.steps for call in step.calls] for each in group.trajectories]
    return {
        "kind": group.task.task_type,
        "right": fmean(each.env_return for each in group.trajectories),
        "called": fmean(bool(row) for row in calls),
        "rightly": fmean(bool(row) and not any(call.error for call in row) for row in calls),
    }


class PlainChat(TextEnv):
    """The calculator as a plain conversation: the environment reads the call, and its result is the next observation."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._turns = 0
        return str((options or {})["question"]), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turns += 1
        factors = [word for word in action.replace('"', " ").split() if "*" in word]
        return calculator(factors[0]) if factors else "?", 0.0, self._turns == 2, False, {}


def speed(run: Path | None) -> None:
    """Sampled tokens a second, of episodes with a call and of the same episodes as plain chat."""
    config = load_config(RECIPE, ["runtime.threads=1"])
    parts = build_policy(config, weights=weights_of(run), tools=ToolEnv(PlainChat(), ["calculator"]).schemas)
    tasks = [Task(f"{a}", "tools", {"question": f"Compute {a}*47."}) for a in range(36, 68)]
    sides = {
        "tools": (parts.agent, EnvPool(lambda: ToolEnv(PlainChat(), ["calculator"]))),
        "plain chat": (plain(parts.agent), EnvPool(PlainChat)),
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(ROUNDS + 1):
        for name, (agent, envs) in sides.items():
            settings = RolloutSettings(Sampling.of(config.rollout), number, max_turns=2)
            began = time.perf_counter(), time.process_time()
            groups = wait_for(rollout(tasks, SAMPLES, envs=envs, agent=agent, backend=parts.backend, settings=settings))
            wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
            steps = [step for group in groups for each in group.trajectories for step in each.steps]
            tokens = sum(len(step.completion.token_ids) for step in steps if step.completion)
            if number:  # the first warms up
                rates[name].append((tokens / wall, tokens / cpu))
            called = sum(bool(step.calls) for step in steps)
            print(
                f"{name}: {tokens} tokens in {len(steps)} turns, {called} with calls, {wall:.2f} s, {cpu:.2f} s of CPU"
            )
    for place, clock in enumerate(("s", "s of CPU")):
        for name, found in rates.items():
            each = [pair[place] for pair in found]
            print(f"| {name} | {median(each):.0f} tokens/{clock} | {min(each):.0f} to {max(each):.0f} |")
        ratios = [a[place] / b[place] for a, b in zip(rates["tools"], rates["plain chat"], strict=True)]
        print(f"ratio of pairs: median {median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


def plain(agent: Any) -> Any:
    """The agent without tools; their names stand in a system message, so that it still writes calls."""
    formatter = type(agent.formatter)("plain", "calculator\n")
    return replace(agent, tools=(), formatter=formatter, memory="episode")


SERVER = """from mcp.server.mcpserver import MCPServer
from skill_ttrl.envs.tools import calculator
server = MCPServer("calculator")
server.tool()(calculator)
server.run("stdio")
"""


def start(run: Path | None, output: Path) -> None:
    """Seconds of a command whose only work is one small step, and of its parts with a server."""
    script = output / "calculator_server.py"
    script.write_text(SERVER)
    small = ["phases=[rl]", "rl.steps=1", "rl.mini_batch_size=null", "rl.prompts_per_step=2", "rollout.n_votes_per_prompt=4", "rollout.n_samples_per_prompt=4",
             "data.eval.limit=1", "eval.samples=1", "eval.greedy=false"]  # fmt: skip
    for name, tools in (("here", "[calculator]"), ("MCP", json.dumps([{"mcp": [sys.executable, str(script)]}]))):
        times = []
        for number in range(3):
            folder = output / f"start-{name}-{time.time_ns()}-{number}"
            began = time.perf_counter()
            settings = [*small, f"agent.tools={tools}", f"model.path={weights_of(run)}"]
            skillttrl("train", RECIPE, 0, folder, settings)
            times.append(time.perf_counter() - began)
        print(f"| {name} | {median(times):.1f} s | {min(times):.1f} to {max(times):.1f} |")


if __name__ == "__main__":
    main()
