"""Success where a search is long: versions of validation games in which what the task needs lies elsewhere (`envs/alfworld/env.py`).

    python benchmarks/alfworld_moved.py RUN [RUN …]                                   # two versions of each game of valid_seen
    python benchmarks/alfworld_moved.py RUN --data generated:2000 --split valid_unseen # generated games, in other rooms

No table of results is made of such games, and no run sees them: they are what settings may be chosen on, so that the games that are
reported need not be looked at. Greedy and at the temperatures that are named, constrained as the run's config says; beside them the expert.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.commands.resolve import resolve_target
from skill_ttrl.envs import make_env
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.progress import SilentProgress
from skill_ttrl.rollout.rollout import run_scripted_episode
from skill_ttrl.statistics import wilson_interval
from skill_ttrl.train.build import build_for_eval
from skill_ttrl.types import Task


def main() -> None:
    """Play them and print a line for each run and temperature."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--data", default="official", help="as env.kwargs.data")
    parser.add_argument("--split", default="valid_seen")
    parser.add_argument("--versions", type=int, default=2, help="of each game; 0: the games as they are")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--expert", action="store_true", help="the expert too")
    options = parser.parse_args()
    tasks = versions(options.data, options.split, options.versions)
    if options.expert:
        print(json.dumps({"run": "expert", **expert(tasks, options.data)}), flush=True)
    for run in options.runs:
        for row in measure(run, tasks, options.data, options.temperatures):
            print(json.dumps({"run": run, **row}), flush=True)


def versions(data: str, split: str, count: int) -> list[Task]:
    """Each game of a split in so many versions; as it is where there are none."""
    games = make_env("alfworld", data=data, split=split).unwrapped.tasks()
    if not count:
        return games
    return [
        replace(task, id=f"{task.id}~{number}", options={**task.options, "moved": number})
        for task in games
        for number in range(count)
    ]


def expert(tasks: Sequence[Task], data: str) -> dict[str, Any]:
    """How the demonstrator does."""
    env = make_env("alfworld", data=data)
    player = make_scripted_agent("expert", env.unwrapped.spec.id if env.unwrapped.spec else "SkillTTRL/ALFWorld-v0")
    played = [run_scripted_episode(env, task, player, seed=0) for task in tasks]
    return counted([each.is_success for each in played], sum(len(each.steps) for each in played))


def measure(run: str, tasks: Sequence[Task], data: str, temperatures: Sequence[float]) -> list[dict[str, Any]]:
    """How a policy does at each temperature."""
    target = resolve_target(run)
    config = target.config.model_copy(deep=True)
    config.env.kwargs = {**config.env.kwargs, "data": data, "moved": 0}
    worker, _ = build_for_eval(config, {"": list(tasks)}, SilentProgress(), weights=target.weights)
    rows = []
    for temperature in temperatures:
        sampling = Sampling(temperature=temperature, max_new_tokens=config.rollout.max_new_tokens)
        played = [group.trajectories[0] for group in worker.generate_rollouts(tasks, 1, sampling, 0)]
        lost = [each.task.id for each in played if not each.is_success]
        steps = sum(len(each.steps) for each in played)
        rows.append({"temperature": temperature, **counted([each.is_success for each in played], steps), "lost": lost})
    worker.close()
    return rows


def counted(won: Sequence[bool], steps: int) -> dict[str, Any]:
    """Success with its Wilson interval."""
    low, high = wilson_interval(sum(won), len(won))
    return {
        "won": sum(won),
        "of": len(won),
        "success": round(sum(won) / len(won), 3),
        "interval": [round(low, 3), round(high, 3)],
        "steps": round(steps / len(won), 1),
    }


if __name__ == "__main__":
    main()
