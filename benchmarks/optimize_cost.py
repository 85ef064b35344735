"""Requests, rollouts and tokens of the text optimizer and of PyPI's skillrl 1.0.0 for the same schedule: benchmarks/results/optimize.md.

    python benchmarks/optimize_cost.py              # all schedules over 100 seeds (five minutes on one core)
    python benchmarks/optimize_cost.py --seeds 4    # a look

Both run the paper's schedule (4 epochs, batches of 40, minibatches of 8, edit budget 4 to 2 by a cosine, strict gate) on the same
items with the same scripted models (tests/rule_follower.py, tests/rule_optimizer.py). The target is deterministic, as one that is
sampled greedily: the same document on the same item has the same result. Tokens are a quarter of the characters. A difference is
of means over seeds, with Student's interval. "Killed once" is killed after half of the steps and started again: the sums are of both. Needs the extra `test`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.statistics import repeats_interval

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(sys.path.pop(1))  # this folder, which has a skillrl.py of its own, comes last
from skillrl import SkillOptConfig, SkillOptTrainer
from skillrl.envs.base import SkillEnv
from skillrl.llm.base import BaseLLMClient
from skillrl.types import RolloutResult as TheirResult

from tests.rule_follower import ScriptedTarget, expected_score, make_items, roll_out_one  # the repository's own
from tests.rule_optimizer import ScriptedOptimizer
from tests.rule_runs import SPLITS, RuleRun

SCHEDULES = {"40 / 20 / 40": (40, 20, 40), "80 / 40 / 40": (80, 40, 40), "160 / 40 / 40": (160, 40, 40)}
"""Training, selection and test items: 4, 8 and 16 steps."""
SAME: dict[str, Any] = {"slow_update": False}
"""1.0.0 has none."""
SAVING = "ours, early stop and rollouts reused"
OURS = {"ours, early stop": False, SAVING: True}
STAGES = ("analysts", "merges", "ranking", "training", "selection", "test")
UNSEEN = make_items(400, "unseen", seed=-1)


@dataclass(frozen=True)
class Cost:
    """What one optimization asked for, by stage, and the true score of its document."""

    done: Mapping[str, int]
    tokens: int
    score: float

    @property
    def requests(self) -> int:
        return sum(self.done[stage] for stage in STAGES[:3])

    @property
    def evaluations(self) -> int:
        return self.done["selection"] + self.done["test"]

    @property
    def rollouts(self) -> int:
        return self.done["training"] + self.evaluations


class Greedy(ScriptedTarget):
    """A target whose rollout of a document on an item is always the same."""

    def __call__(self, document: str, items: Sequence[Mapping[str, Any]], *, seed: int, on_result: Any) -> list[Any]:
        return super().__call__(document, items, seed=0, on_result=on_result)


class TheirEnv(SkillEnv):  # type: ignore[misc]  # the package has no types
    """The scripted world as skillrl sees one."""

    name = "rules"

    def __init__(self, seed: int, sizes: tuple[int, int, int], kill_at: int | None) -> None:
        self.kill_at = kill_at
        self.splits = {name: make_items(count, name, seed=seed) for name, count in zip(SPLITS, sizes, strict=True)}
        self.seed, self.done = seed, Counter[str]()

    def get_initial_skill(self) -> str:
        return ""

    def get_task_types(self) -> list[str]:
        return []

    def get_items(self, split: str) -> list[dict[str, Any]]:
        return self.splits[split]

    def rollout_one(self, *, item: dict[str, Any], skill: str, target_client: object) -> TheirResult:
        if self.kill_at is not None and item["id"].startswith("train") and self.done["train"] >= self.kill_at:
            self.kill_at = None
            raise KeyboardInterrupt
        self.done[str(item["id"]).split("-")[0]] += 1
        return TheirResult.from_dict(roll_out_one(skill, item, seed=self.seed).to_dict())


class TheirClient(BaseLLMClient):  # type: ignore[misc]
    """The scripted optimizer as skillrl asks one."""

    def __init__(self, model: ScriptedOptimizer) -> None:
        self.scripted = model

    def chat(self, *, system: str, user: str, max_completion_tokens: int = 0, stage: str = "", **_: Any) -> Any:
        reply = self.scripted(system, user, max_tokens=max_completion_tokens, stage=stage)
        return reply.text, {}


def half(sizes: tuple[int, int, int]) -> int:
    """Training rollouts of half of the steps: 4 epochs, each item once."""
    return 2 * sizes[0]


def theirs(seed: int, sizes: tuple[int, int, int], *, killed: bool = False) -> Cost:
    """skillrl 1.0.0; `killed` after half of the steps, and started again."""
    env = TheirEnv(seed, sizes, half(sizes) if killed else None)
    client = TheirClient(ScriptedOptimizer(seed=seed))
    with tempfile.TemporaryDirectory() as folder:
        config = SkillOptConfig(out_root=folder, verbose=False, workers=1, seed=seed)
        for _ in range(2 if killed else 1):
            trainer = SkillOptTrainer(config=config, env=env, optimizer_client=client, target_client=client)
            with suppress(KeyboardInterrupt):
                trainer.train()
    done = {"training": env.done["train"], "selection": env.done["val"], "test": env.done["test"]}
    stages = Counter(stage for stage, _, _ in client.scripted.calls)
    done |= {"analysts": stages["analyst"], "merges": stages["merge"], "ranking": stages["ranking"]}
    return Cost(done, client.scripted.tokens, expected_score(trainer.best_skill, UNSEEN))


def ours(seed: int, sizes: tuple[int, int, int], reuse_rollouts: bool, *, killed: bool = False) -> Cost:
    """Ours; `killed` after half of the steps, and started again."""
    kills = [half(sizes)] if killed else []

    def kill(_: int) -> None:
        if kills and sum(item.startswith("train") for _, item, _ in target.calls) >= kills[0]:
            kills.clear()
            raise KeyboardInterrupt

    target, model = Greedy(seed=seed, before=kill), ScriptedOptimizer(seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        run = RuleRun(
            seed=seed,
            sizes=sizes,
            journal=Path(folder) / "journal",
            optimizer=model,
            target=target,
            reuse_rollouts=reuse_rollouts,
        )
        if killed:
            with suppress(KeyboardInterrupt):
                run(**SAME)
        found = run(**SAME)
    splits = Counter(item.split("-")[0] for _, item, _ in target.calls)
    stages = Counter(stage.split("_")[0] for stage, _, _ in model.calls)
    done = {"training": splits["train"], "selection": splits["val"], "test": splits["test"]}
    done |= {"analysts": stages["analyst"], "merges": stages["merge"], "ranking": stages["ranking"]}
    return Cost(done, model.tokens, expected_score(found.state.best, UNSEEN))


def main() -> None:
    """Print one table a schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    seeds = range(1000, 1000 + parser.parse_args().seeds)
    for name, sizes in SCHEDULES.items():
        base = [theirs(seed, sizes) for seed in seeds]
        rows = {"skillrl 1.0.0": base}
        rows |= {arm: [ours(seed, sizes, reuse_rollouts) for seed in seeds] for arm, reuse_rollouts in OURS.items()}
        rows["skillrl 1.0.0, killed once"] = [theirs(seed, sizes, killed=True) for seed in seeds]
        rows[f"{SAVING}, killed once"] = [ours(seed, sizes, True, killed=True) for seed in seeds]
        print(f"\n{name} items, {len(seeds)} seeds\n")
        heads = (*STAGES, "requests", "evaluations", "rollouts", "tokens", "score", "score less skillrl's")
        print("| | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
        for arm, costs in rows.items():
            print(f"| {arm} | {' | '.join(cells(costs, base))} |")


def cells(costs: Sequence[Cost], base: Sequence[Cost]) -> list[str]:
    """One row of the table: means, and for the sums how many times less than skillrl's."""
    shown = [f"{fmean(cost.done[stage] for cost in costs):.1f}" for stage in STAGES]
    sums: tuple[Callable[[Cost], float], ...] = (
        lambda cost: cost.requests,
        lambda cost: cost.evaluations,
        lambda cost: cost.rollouts,
        lambda cost: cost.tokens,
    )
    for of in sums:
        mean, before = fmean(map(of, costs)), fmean(map(of, base))
        shown.append(f"{mean:.0f}" if costs is base else f"{mean:.0f} ({before / mean:.2f}×)")
    shown.append(f"{fmean(cost.score for cost in costs):.3f}")
    gains = [cost.score - before.score for cost, before in zip(costs, base, strict=True)]
    interval = repeats_interval(gains)
    shown.append("" if interval is None else f"{fmean(gains):+.3f} [{interval[0]:+.3f}, {interval[1]:+.3f}]")
    return shown


if __name__ == "__main__":
    main()
