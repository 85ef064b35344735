"""How often a gate lets noise in, and how often it lets a gain in: the tables of benchmarks/results/gate.md, by simulation.

    python benchmarks/gate.py --plot docs/gate.svg        # a minute on one core

A task succeeds with a probability of its own (Beta distributed); rollouts are independent given that, so `correlation` is that of
one rollout before and one after. A noise candidate changes no probability. The strict rule accepts where the mean is above that of
the present version, whose scores are those that it was accepted with (skillrl, SkillOpt). The paired rule is `optimize.paired.decide`
with both versions rolled out anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from speed_plot import Series, draw

from skill_ttrl.optimize.paired import PairedRule
from skill_ttrl.statistics import sign_flip_p_value

SIZES = (8, 16, 32, 64, 128, 200)
SUCCESS = (0.2, 0.5, 0.8)
CORRELATION = (0.0, 0.5, 0.9)
EFFECTS = (-0.1, -0.05, 0.05, 0.1, 0.2)
RUNS = (1, 8, 40)
ONE, MOST = (0.5, 0.5), "most over all"
STRICT, PAIRED, SHARED = "strict >", "paired, alpha .05", "paired, alpha .05 / 40"
RULES = {PAIRED: PairedRule(min_effect=0.02), SHARED: PairedRule(min_effect=0.02, alpha=0.05 / 40)}

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Tasks of a gate in many imagined runs: R runs, P tasks each."""

    before_R_P: Floats
    """Chance of success with the present version."""

    @classmethod
    def draw(cls, runs: int, tasks: int, success: float, correlation: float, rng: np.random.Generator) -> World:
        """Draw tasks whose mean chance is `success`."""
        if not correlation:
            return cls(np.full((runs, tasks), success))
        strength = 1 / correlation - 1
        return cls(rng.beta(success * strength, (1 - success) * strength, (runs, tasks)))

    def after(self, effect: float, success: float) -> Floats:
        """Chances with a candidate whose true effect on the mean is `effect`."""
        if effect >= 0:
            return self.before_R_P + effect * (1 - self.before_R_P) / (1 - success)
        return self.before_R_P * (1 + effect / success)


def roll_out(chance_R_P: Floats, rng: np.random.Generator) -> Bools:
    """One rollout of each task."""
    return np.asarray(rng.random(chance_R_P.shape) < chance_R_P)


def accepts(before_R_P: Bools, after_R_P: Bools, rule: PairedRule) -> Bools:
    """`decide(...).accept` of zeros and ones under `better`, for many runs at once."""
    won = (after_R_P & ~before_R_P).sum(1)
    lost = (before_R_P & ~after_R_P).sum(1)
    tails = _tails(before_R_P.shape[1])
    large = (won - lost) / before_R_P.shape[1] >= rule.min_effect - 1e-9
    return np.asarray(large & (tails[won + lost, won] <= rule.alpha + 1e-9))


def _tails(most: int) -> Floats:
    """[n, k]: chance of at least k heads in n throws."""
    chance = np.zeros((most + 1, most + 2))
    chance[0, 0] = 1.0
    for n in range(1, most + 1):
        chance[n] = 0.5 * (chance[n - 1] + np.concatenate([[0.0], chance[n - 1, :-1]]))
    return np.asarray(chance[:, ::-1].cumsum(1)[:, ::-1])


Gate = Callable[[Floats, Floats, np.random.Generator], Bools]


def strict(before_R_P: Floats, after_R_P: Floats, rng: np.random.Generator) -> Bools:
    """Accept where the mean of one rollout of each task is above that of the present version."""
    return np.asarray(roll_out(after_R_P, rng).mean(1) > roll_out(before_R_P, rng).mean(1))


def paired(rule: PairedRule) -> Gate:
    """The paired rule as such a gate."""

    def gate(before_R_P: Floats, after_R_P: Floats, rng: np.random.Generator) -> Bools:
        return accepts(roll_out(before_R_P, rng), roll_out(after_R_P, rng), rule)

    return gate


def noise_let_in(name: str, world: World, candidates: int, rng: np.random.Generator) -> tuple[float, float]:
    """Share of runs in which one of so many noise candidates is accepted, and the mean score less the true one that the run reports."""
    chance = world.before_R_P
    let_in = np.zeros(len(chance), dtype=bool)
    if name != STRICT:
        for _ in range(candidates):
            let_in |= paired(RULES[name])(chance, chance, rng)
        return float(let_in.mean()), float("nan")
    current = roll_out(chance, rng).mean(1)
    for _ in range(candidates):
        score = roll_out(chance, rng).mean(1)
        let_in |= score > current
        current = np.maximum(current, score)
    return float(let_in.mean()), float((current - chance.mean(1)).mean())


def simulate(
    runs: int, seed: int
) -> tuple[dict[tuple[str, int, int], list[float]], dict[tuple[str, int, float], list[float]], dict[int, float]]:
    """False accepts by (rule, tasks, candidates) and acceptances by (rule, tasks, effect), one for each world, the first that of `ONE`;
    and how much too high the strict rule's best of 40 noise candidates looks, by tasks.
    """
    rng = np.random.default_rng(seed)
    worlds = [ONE, *(each for each in product(SUCCESS, CORRELATION) if each != ONE)]
    noise: dict[tuple[str, int, int], list[float]] = {}
    power: dict[tuple[str, int, float], list[float]] = {}
    looks: dict[int, float] = {}
    for size, (success, correlation) in product(SIZES, worlds):
        world = World.draw(runs, size, success, correlation, rng)
        for name in (STRICT, *RULES):
            for candidates in RUNS:
                share, excess = noise_let_in(name, world, candidates, rng)
                noise.setdefault((name, size, candidates), []).append(share)
                if name == STRICT and candidates == RUNS[-1] and (success, correlation) == ONE:
                    looks[size] = excess
            gate = strict if name == STRICT else paired(RULES[name])
            for effect in EFFECTS:
                if 0 <= success + effect <= 1:
                    found = gate(world.before_R_P, world.after(effect, success), rng)
                    power.setdefault((name, size, effect), []).append(float(found.mean()))
    return noise, power, looks


def tables(
    noise: dict[tuple[str, int, int], list[float]],
    power: dict[tuple[str, int, float], list[float]],
    looks: dict[int, float],
) -> str:
    """All tables as Markdown."""
    rules = (STRICT, *RULES)
    lines = [
        "| tasks | rule | one noise candidate | one of 8 | one of 40 | most over all, one | of 40 | best of 40 looks better by |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for size, name in product(SIZES, rules):
        cells = [f"{noise[name, size, count][0]:.3f}" for count in RUNS]
        cells += [f"{max(noise[name, size, count]):.3f}" for count in (1, 40)]
        cells += [f"+{looks[size]:.3f}" if name == STRICT else ""]
        lines.append(f"| {size} | {name} | " + " | ".join(cells) + " |")
    lines += ["", "| tasks | rule | " + " | ".join(f"true effect {effect:+g}" for effect in EFFECTS) + " |"]
    lines += ["|---|---|" + "---|" * len(EFFECTS)]
    for size, name in product(SIZES, rules):
        cells = [f"{power[name, size, effect][0]:.3f}" for effect in EFFECTS]
        lines.append(f"| {size} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rollouts_table(runs: int, seed: int) -> str:
    """Acceptances with several rollouts of each task, by the true effect, as Markdown; in the world of `ONE`."""
    rng, rule = np.random.default_rng(seed), RULES[PAIRED]
    effects = (-0.1, 0.0, 0.05, 0.1, 0.2)
    lines = ["| tasks | rollouts of each | " + " | ".join(f"true effect {effect:+g}" for effect in effects) + " |"]
    lines += ["|---|---|" + "---|" * len(effects)]
    for size, count in product((40, 60), (1, 4, 16)):
        world = World.draw(runs, size, *ONE, rng)
        cells = []
        for effect in effects:
            after = rng.binomial(count, world.after(effect, ONE[0])) - rng.binomial(count, world.before_R_P)
            found = [
                row.mean() >= rule.min_effect - 1e-9 and sign_flip_p_value(row) <= rule.alpha for row in after / count
            ]
            cells.append(f"{np.mean(found):.3f}")
        lines.append(f"| {size} | {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(noise: dict[tuple[str, int, int], list[float]], power: dict[tuple[str, int, float], list[float]]) -> str:
    """False accepts in a run of 1, 8 and 40 noise candidates, and power at +0.1, by tasks."""
    series: Series = {
        name: [
            (size, {**{str(count): noise[name, size, count][0] for count in RUNS}, "power": power[name, size, 0.1][0]})
            for size in SIZES
        ]
        for name in (STRICT, *RULES)
    }
    panels: Sequence[tuple[str, str, float]] = [
        ("noise let in, one candidate (%)", "1", 100),
        ("noise let in, a run of 8 (%)", "8", 100),
        ("noise let in, a run of 40 (%)", "40", 100),
        ("a gain of .1 let in (%)", "power", 100),
    ]
    return draw("tasks of the gate", panels, series)


def main() -> None:
    """Simulate, print the tables and write the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000, help="imagined runs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    noise, power, looks = simulate(options.runs, options.seed)
    print(tables(noise, power, looks))
    print("\n" + rollouts_table(options.runs // 4, options.seed))
    if options.plot:
        options.plot.write_text(plot(noise, power), encoding="utf-8")


if __name__ == "__main__":
    main()
