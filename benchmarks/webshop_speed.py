"""How fast the shop is, and what many environments of it weigh.

    python benchmarks/webshop_speed.py                                  # the generated catalogue, about a minute
    python benchmarks/webshop_speed.py --data FOLDER --json speed.json  # official files, here the 1,000 products

Everything is measured in processes of its own, with a cache of its own, on one thread:

- speed: random shopping, every fifth step a search, each for other words (five of an instruction); `text` observations, then the
  other modes. "a core" is the time that the process computes, which other programs of the machine lengthen less than the clock's
- a search: of the index alone, and as a step of the environment with its page; words as above, none searched before
- reset: to a goal that was not met before
- opening: "cold" makes the catalogue from its files, "warm" is what every later process waits for; Python's start and the
  imports apart
- memory: each environment has played 50 steps. In one process, what is resident. In 64 processes (`make_vec_env(...,
  asynchronous=True)`), the sum of what is theirs alone and of their shares of what they share (PSS), the parent's included
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from skill_ttrl.envs import make_vec_env
from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue
from skill_ttrl.envs.webshop.env import WebShopEnv
from skill_ttrl.envs.webshop.shop import MODES

STEPS = 20_000
ROUNDS = 5
SEARCHES = 2_000
ENVIRONMENTS = 64
PLAYED = 50
NOT_CLICKED = ("search", "buy now", "back to search")
"""Nobody buys and nobody starts anew, so that the mix is one of pages."""


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the official files, see WebShopEnv; generated where it is not given")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--only", choices=[*MEASURES], help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = options.data or "generated"
    if options.only:
        print(json.dumps(MEASURES[options.only](data)))
        return
    with tempfile.TemporaryDirectory() as cache:
        figures: dict[str, Any] = {
            "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}",
            "load": os.getloadavg()[0],
            "opening": [_elsewhere("opening", data, cache) for _ in range(2)],
            **{name: _elsewhere(name, data, cache) for name in MEASURES if name != "opening"},
        }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    _print(figures)


class Shopper:
    """Random shopping that never ends, with one search in five steps."""

    def __init__(self, env: WebShopEnv, seed: int) -> None:
        self.env, self.rng = env, random.Random(seed)
        self.count = 0
        self.asked: set[str] = set()
        self.clicks: list[str] = []

    def search(self) -> str:
        """A search for other words than all before."""
        while True:
            goal = self.env.goals[self.rng.randrange(len(self.env.goals))]
            words = goal.instruction.split()
            query = " ".join(self.rng.sample(words, min(5, len(words))))
            if query not in self.asked:
                self.asked.add(query)
                return f"search[{query}]"

    def action(self) -> str:
        """The next one."""
        self.count += 1
        return self.search() if self.count % 5 == 1 or not self.clicks else f"click[{self.rng.choice(self.clicks)}]"

    def see(self, info: dict[str, Any]) -> None:
        """What the last action led to."""
        self.clicks = [name for name in info["available_actions"]["clickables"] if name not in NOT_CLICKED]


def _speed(data: str) -> dict[str, Any]:
    env = WebShopEnv(data, max_steps=10**9)
    shopper = Shopper(env, 0)
    env.reset(options={"goal": 0})
    rates, steps = _rates(env, shopper)
    others = {mode: WebShopEnv(data, observation_mode=mode, max_steps=10**9) for mode in MODES if mode != "text"}
    for other in others.values():
        other.reset(options={"goal": 0})
    modes = {mode: _rates(other, Shopper(other, 0))[0] for mode, other in others.items()}
    index = open_catalogue(data).store.search_index
    queries = [shopper.search()[7:-1].lower() for _ in range(SEARCHES)]
    alone = [_timed(lambda query=query: index.search(query)) for query in queries]
    goals = random.Random(1).sample(range(len(env.goals)), 1_000)
    resets = [_timed(lambda goal=goal: env.reset(options={"goal": goal})) for goal in goals]
    return {
        "products": len(open_catalogue(data).store),
        "steps/s": [rate for rate, _ in rates],
        "steps/s a core": [rate for _, rate in rates],
        **{f"steps/s a core, {mode}": [rate for _, rate in each] for mode, each in modes.items()},
        "search ms": _milliseconds(alone),
        "search step ms": _milliseconds(steps),
        "reset ms": _milliseconds(resets),
    }


def _rates(env: WebShopEnv, shopper: Shopper) -> tuple[list[tuple[float, float]], list[float]]:
    """Steps a second by the clock and of a core, for each round; and the seconds of each search step."""
    rates: list[tuple[float, float]] = []
    searches: list[float] = []
    for _ in range(ROUNDS):
        wall = core = 0.0
        for _ in range(STEPS // ROUNDS):
            action = shopper.action()
            computed, start = time.process_time(), time.perf_counter()
            info = env.step(action)[4]
            took, computed = time.perf_counter() - start, time.process_time() - computed
            wall, core = wall + took, core + computed
            if action.startswith("search"):
                searches.append(took)
            shopper.see(info)
        rates.append((STEPS / ROUNDS / wall, STEPS / ROUNDS / core))
    return rates, searches


def _opening(data: str) -> dict[str, Any]:
    return {"seconds": _timed(lambda: open_catalogue(data))}


def _one_process(data: str) -> dict[str, Any]:
    process = psutil.Process()
    begun = process.memory_info().rss
    kept, sizes = [], {}
    for number in range(ENVIRONMENTS):
        env = WebShopEnv(data, max_steps=10**9)
        kept.append(env)
        shopper = Shopper(env, number)
        env.reset(options={"goal": number})
        for _ in range(PLAYED):
            shopper.see(env.step(shopper.action())[4])
        if number in (0, ENVIRONMENTS - 1):
            sizes[number] = process.memory_info().rss
    return {"imports": begun / 2**20, "1": sizes[0] / 2**20, str(ENVIRONMENTS): sizes[ENVIRONMENTS - 1] / 2**20}


def _workers(data: str, count: int) -> dict[str, Any]:
    vector = make_vec_env("webshop", count, asynchronous=True, data=data, max_steps=10**9)
    # The words that they search for; the workers have their own catalogue.
    shoppers = [Shopper(WebShopEnv(data), number) for number in range(count)]
    vector.reset(seed=0)
    for _ in range(PLAYED):
        info = vector.step([shopper.action() for shopper in shoppers])[4]
        for number, shopper in enumerate(shoppers):
            shopper.see({"available_actions": {"clickables": info["available_actions"]["clickables"][number]}})
    process = psutil.Process()
    full = [each.memory_full_info() for each in (process, *process.children())]
    vector.close()
    return {
        "processes": len(full),
        "pss": sum(each.pss for each in full) / 2**20,
        "uss of a worker": statistics.median(each.uss for each in full[1:]) / 2**20,
        "rss of a worker": statistics.median(each.rss for each in full[1:]) / 2**20,
    }


def _bare_worker(data: str) -> dict[str, Any]:
    """What a process of a vector has of its own with an environment in it that has done nothing."""
    vector = make_vec_env("math", 8, asynchronous=True)
    uss = [each.memory_full_info().uss for each in psutil.Process().children()]
    vector.close()
    return {"uss": statistics.median(uss) / 2**20}


MEASURES: dict[str, Callable[[str], dict[str, Any]]] = {
    "speed": _speed,
    "opening": _opening,
    "one_process": _one_process,
    "one_worker": lambda data: _workers(data, 1),
    "bare_worker": _bare_worker,
    "many_workers": lambda data: _workers(data, ENVIRONMENTS),
}


def _timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _milliseconds(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3, "most": max(seconds) * 1e3}


def _elsewhere(what: str, data: str, cache: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--only", what, "--data", data]
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    return dict(json.loads(said))


def _print(figures: dict[str, Any]) -> None:
    speed = figures["speed"]
    print(f"{figures['machine']}, load {figures['load']:.1f}. {speed['products']:,} products.\n")
    print("| | median | least | most |\n|---|---|---|---|")
    for name in (name for name in speed if name.startswith("steps/s")):
        print(f"| {name} | " + " | ".join(f"{f(speed[name]):,.0f}" for f in (statistics.median, min, max)) + " |")
    print("\n| ms | p50 | p99 | most |\n|---|---|---|---|")
    for name in ("search ms", "search step ms", "reset ms"):
        print(f"| {name.removesuffix(' ms')} | " + " | ".join(f"{value:.3f}" for value in speed[name].values()) + " |")
    cold, warm = (each["seconds"] for each in figures["opening"])
    print(f"\nOpened in {cold:.2f} s the first time, then in {warm * 1e3:.0f} ms.")
    bare = figures["bare_worker"]["uss"]
    one, few, many = (figures[name] for name in ("one_process", "one_worker", "many_workers"))
    print("\n| environments | MB, one process (resident) | MB, a process each (PSS) |\n|---|---|---|")
    print(f"| 1 | {one['1']:.0f} | {few['pss']:.0f} |")
    print(f"| {ENVIRONMENTS} | {one[str(ENVIRONMENTS)]:.0f} | {many['pss']:.0f} |")
    print(f"| more | {one[str(ENVIRONMENTS)] - one['1']:.0f} | {many['pss'] - few['pss']:.0f} |")
    print(
        f"\nOf each of {ENVIRONMENTS} processes {many['uss of a worker']:.1f} MB are its own; {bare:.1f} MB are, of any environment's process."
    )


if __name__ == "__main__":
    main()
