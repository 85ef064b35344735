"""The text optimizer on a scripted world whose best document is known, over seeds: benchmarks/results/optimize.md.

    python benchmarks/optimize.py parts      # with and without each part of the loop (five minutes on one core)
    python benchmarks/optimize.py short-steps  # some of them on steps of 10 items (five minutes)
    python benchmarks/optimize.py engines    # ours and gepa at the same budgets of rollouts (twenty minutes); --plot FILE.svg
    python benchmarks/optimize.py parts --seeds 10

The world and both scripted models are tests/rule_follower.py and tests/rule_optimizer.py: their docstrings say how they are built.
A document's score is its true one, without luck, on 400 items that no run has seen; the best is .9, an empty document's .08.
Intervals are Student's over seeds; a difference is paired by seed. Needs the extra `gepa`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median_high
from typing import Any

from skill_ttrl.errors import BudgetError
from skill_ttrl.optimize.record import OptimizeState, StepRecord
from skill_ttrl.statistics import repeats_interval, wilson_interval

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.speed_plot import draw
from tests.rule_follower import ScriptedTarget, expected_score, is_optimal, make_items
from tests.rule_optimizer import ScriptedOptimizer
from tests.rule_runs import RuleRun, Trace

SIZES = (160, 40, 0)
"""Training, selection and test items."""
UNSEEN = make_items(400, "unseen", seed=-1)
LOOP_ALONE: dict[str, Any] = {"slow_update": False}
PARTS: dict[str, dict[str, Any]] = {
    "everything": {},
    "no edit budget": {"lr_scheduler": "none"},
    "no gate": {"gate": {"rule": "none"}},
    "no slow update (skillrl 1.0.0's loop)": LOOP_ALONE,
    "one minibatch a step": {"minibatch_size": 40},
    "failures alone": {"failure_only": True},
    "random edits": {},
    "random edits, no gate": {"gate": {"rule": "none"}},
}
SHORT: dict[str, Any] = {"batch_size": 10, "minibatch_size": 5}
SHORT_PARTS: dict[str, dict[str, Any]] = {
    "everything": SHORT,
    "no edit budget": {**SHORT, "lr_scheduler": "none"},
    "no gate": {**SHORT, "gate": {"rule": "none"}},
    "no gate, no edit budget": {**SHORT, "gate": {"rule": "none"}, "lr_scheduler": "none"},
}
"""64 steps on 10 items each in place of 16 on 40: noisier evidence, and 16 steps an epoch."""
FIRST_SEED = {"parts": 1000, "short-steps": 1000, "engines": 3000}
"""Those below 1000 were looked at while the scripted models were written. Steps of 10 came out best on 1000 and up, so engines have others."""
BUDGETS = (200, 400, 800, 1600, 3200)
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "ours": ("skillopt", {}),
    "ours, the loop alone": ("skillopt", LOOP_ALONE),
    "ours, steps of 10": ("skillopt", SHORT),
    "gepa": ("gepa", {}),
}


@dataclass
class Marks(Trace):
    """Where a run stood after each step: (rollouts so far, best document)."""

    target: ScriptedTarget = field(default_factory=ScriptedTarget)
    marks: list[tuple[int, str]] = field(default_factory=list)

    def begin(self, state: OptimizeState, steps: int) -> None:
        super().begin(state, steps)
        self.marks.append((len(self.target.calls), state.best))

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        super().step(record, state)
        self.marks.append((len(self.target.calls), state.best))


@dataclass(frozen=True)
class Outcome:
    """One run."""

    score: float
    optimal: bool
    rollouts: int
    requests: int
    reached: int | None
    """Rollouts after which the best document was the optimum, to stay; None: never."""


def one_run(
    engine: str, seed: int, config: Mapping[str, Any], *, budget: int | None = None, blind: bool = False
) -> Outcome:
    """Optimize from an empty document, until the schedule or the budget of rollouts ends."""

    def within(done: int) -> None:
        if budget is not None and done >= budget:
            raise BudgetError("the budget of rollouts is spent")

    target, model = ScriptedTarget(seed=seed, before=within), ScriptedOptimizer(seed=seed, blind=blind)
    marks = Marks(target=target)
    run = RuleRun(engine, seed, SIZES, None, model, target, trace=marks)
    try:
        best = run(**config).state.best
    except BudgetError:
        best = marks.states[-1].best if marks.states else ""
    last_other = max((place for place, (_, text) in enumerate(marks.marks) if not is_optimal(text)), default=-1)
    reached = marks.marks[last_other + 1][0] if last_other + 1 < len(marks.marks) else None
    return Outcome(expected_score(best, UNSEEN), is_optimal(best), len(target.calls), len(model.calls), reached)


def parts(seeds: Sequence[int], arms: Mapping[str, dict[str, Any]]) -> str:
    """A table of the loop's parts."""
    rows = [
        "| | score | less than with everything | optimum found | rollouts | requests |",
        "|---|---|---|---|---|---|",
    ]
    base: list[Outcome] = []
    for name, config in arms.items():
        found = [one_run("skillopt", seed, config, blind=name.startswith("random")) for seed in seeds]
        base = base or found
        gains = [other.score - outcome.score for outcome, other in zip(found, base, strict=True)]
        rows.append(f"| {name} | {scores(found)} | {shown(gains) if found is not base else ''} | {_common(found)} |")
    return "\n".join(rows)


def engines(seeds: Sequence[int], plot: Path | None) -> str:
    """Tables of the engines at equal budgets, and of what each needs to find the best document."""
    rows = ["| rollouts | | score | optimum found | rollouts used | requests |", "|---|---|---|---|---|---|"]
    series: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in ENGINES}
    last: dict[str, list[Outcome]] = {}
    for budget in BUDGETS:
        for name, (engine, config) in ENGINES.items():
            found = [
                one_run(engine, seed, {**schedule(engine, budget, config), **config}, budget=budget) for seed in seeds
            ]
            last[name] = found
            series[name].append((budget, {"score": fmean(each.score for each in found)}))
            rows.append(f"| {budget} | {name} | {scores(found)} | {_common(found)} |")
    rows += ["", "| | optimum found | rollouts until then, median | quarter and three quarters |", "|---|---|---|---|"]
    for name, found in last.items():
        needed = sorted(each.reached if each.reached is not None else 10**9 for each in found)
        marks = [median_high(needed), needed[len(needed) // 4], needed[3 * len(needed) // 4]]
        texts = [f"{mark:.0f}" if mark < 10**9 else f"more than {BUDGETS[-1]}" for mark in marks]
        rows.append(f"| {name} | {share(found)} | {texts[0]} | {texts[1]} to {texts[2]} |")
    if plot is not None:
        kinds = {name: series[name] for name in series if name != "ours, the loop alone"}
        plot.write_text(draw("budget of rollouts", [("true score of the best document", "score", 1)], kinds), "utf-8")
    return "\n".join(rows)


def schedule(engine: str, budget: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """As many epochs as the budget may just be enough for; it ends the run."""
    train, selection, _ = SIZES
    if engine == "gepa":
        return {"epochs": max(1, -(-budget // train))}
    size = config.get("batch_size", 40)
    evaluated = 30 if size == 40 else 15  # selection rollouts of a step, about
    return {"epochs": max(1, round((budget - selection) / (train + evaluated * -(-train // size))))}


def _common(found: Sequence[Outcome]) -> str:
    means = (fmean(each.rollouts for each in found), fmean(each.requests for each in found))
    return " | ".join((share(found), *(f"{mean:.0f}" for mean in means)))


def scores(found: Sequence[Outcome]) -> str:
    """Mean score with its interval."""
    return shown([each.score for each in found], signed=False)


def share(found: Sequence[Outcome]) -> str:
    """Runs that ended with the best document, with Wilson's interval."""
    count = sum(each.optimal for each in found)
    low, high = wilson_interval(count, len(found))
    return f"{count} of {len(found)} [{low:.2f}, {high:.2f}]"


def shown(values: Sequence[float], *, signed: bool = True) -> str:
    """A mean with Student's interval."""
    interval = repeats_interval(values)
    form = "+.3f" if signed else ".3f"
    mean = format(fmean(values), form)
    return mean if interval is None else f"{mean} [{interval[0]:{form}}, {interval[1]:{form}}]"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["parts", "short-steps", "engines"])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    seeds = range(FIRST_SEED[asked.what], FIRST_SEED[asked.what] + asked.seeds)
    tables = {"parts": PARTS, "short-steps": SHORT_PARTS}
    print(parts(seeds, tables[asked.what]) if asked.what in tables else engines(seeds, asked.plot))


if __name__ == "__main__":
    main()
