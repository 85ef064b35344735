"""The plan of an optimization is what is used: exactly where the success is known, else within its bounds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls, Item, Reply
from skill_ttrl.optimize.engines import ENGINES
from skill_ttrl.optimize.record import OptimizeTask
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.stages.optimizing.plan import Counted, Sizes, count, count_gepa
from tests.rule_optimizer import ScriptedOptimizer

EXACT = {"gate": {"early_stop": False}, "reuse_rollouts": False}

ANSWERS: dict[str, tuple[str, str | int]] = {
    "slow_update": ("slow_update_content", "guidance"),
    "meta_skill": ("meta_skill_content", "lessons"),
    "rewrite_skill": ("new_skill", "a document"),
    "lr_autonomous": ("learning_rate", 99),
}
"""Key and text of the answer, by stage."""


class Succeeds:
    """A scripted target of which the same share of every batch succeeds, whatever the document says."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(
        self, document: str, items: Sequence[Item], *, seed: int, on_result: Callable[[int, RolloutResult], None]
    ) -> list[RolloutResult]:
        right = round(self.rate * len(items))
        results = [
            RolloutResult(str(item["id"]), int(place < right), float(place < right)) for place, item in enumerate(items)
        ]
        for place, result in enumerate(results):
            on_result(place, result)
        return results


class Fluent:
    """A scripted model whose every answer is a patch of new edits, or a ranking."""

    def __init__(self, edits: int) -> None:
        self.edits, self.count, self._lock = edits, 0, threading.Lock()

    def __call__(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
        with self._lock:
            self.count += 1
            number = self.count
        if stage == "ranking":
            return Reply(json.dumps({"selected_indices": [0, 1]}))
        if stage in ANSWERS:
            key, text = ANSWERS[stage]
            return Reply(json.dumps({key: text if isinstance(text, int) else f"{text} {number}"}))
        edits = [{"op": "append", "content": f"- rule {number}.{place}"} for place in range(self.edits)]
        suggestions = [{"type": "add_rule", "instruction": edit["content"]} for edit in edits]
        candidates = [{"new_skill": f"- rule {number}"}]
        patch = {"edits": edits, "revise_suggestions": suggestions, "skill_candidates": candidates}
        minibatches = user.count("### Minibatch ")
        return Reply(json.dumps({"patches": [patch] * minibatches} if minibatches else patch))


def used(config: OptimizeConfig, sizes: Sizes, target: object, chat: object) -> dict[str, int]:
    def items(role: str, size: int) -> list[Item]:
        return [{"id": f"{role}-{place}"} for place in range(size)]

    task = OptimizeTask(items("train", sizes.train), items("selection", sizes.selection), items("test", sizes.test))
    calls = Calls(chat, target, reuse_rollouts=bool(config.reuse_rollouts), workers=1)  # type: ignore[arg-type]  # scripted
    ENGINES.get(config.engine)(task, "", config, calls, Templates(base="optimize"), seed=3)
    return {stage: each.asked - each.reused for stage, each in calls.counts.items()}


def planned(counted: Counted) -> dict[str, float]:
    return {name: span.most for name, span in {**counted.rollouts(), **counted.calls()}.items() if span.most}


@pytest.mark.parametrize(
    ("settings", "sizes", "success"),
    [
        ({}, Sizes(40, 8, 8), 0.5),
        ({"epochs": 2, "batch_size": 17, "minibatch_size": 3, "merge_batch_size": 2}, Sizes(40, 5), 0.3),
        ({"batch_size": 9, "merge": "joint", "minibatch_size": 4, "lr_scheduler": "linear"}, Sizes(20, 4, 3), 0.6),
        ({"failure_only": True, "batch_size": 10, "lr_scheduler": "constant"}, Sizes(30, 6, 2), 0.9),
        ({"failure_only": True, "batch_size": 10}, Sizes(30, 6, 2), 1.0),
        ({"batch_size": 50, "minibatch_size": 1, "merge_batch_size": 3}, Sizes(50, 4, 2), 0.0),
        ({"epochs": 3, "slow_update": {"gate": False}, "accumulation": 2, "batch_size": 7}, Sizes(24, 4, 2), 0.4),
        ({"epochs": 3, "slow_update": {"pair_policy": "changed"}, "lr_control_mode": "none"}, Sizes(24, 4), 0.4),
        ({"meta_skill": False, "lr_control_mode": "autonomous", "batch_size": 10}, Sizes(20, 4), 0.4),
        ({"minibatch_size": 2, "minibatches_per_request": 3, "batch_size": 20}, Sizes(40, 4), 0.3),
        ({"update_mode": "suggestions", "slow_update": {"enabled": False}}, Sizes(20, 4), 0.4),
        ({"update_mode": "full_rewrite", "slow_update": {"enabled": False}, "meta_skill": False}, Sizes(20, 4), 0.4),
    ],
)
def test_with_a_known_success_the_plan_is_exact(settings: dict[str, object], sizes: Sizes, success: float) -> None:
    config = OptimizeConfig.model_validate({"epochs": 2, **EXACT, **settings})
    counted = count(config, sizes, success)
    found = used(config, sizes, Succeeds(success), Fluent(config.edit_budget))
    assert {name: number for name, number in found.items() if number} == planned(counted)
    assert all(span.least == span.most for span in {**counted.rollouts(), **counted.calls()}.values())
    assert counted.all_calls().most == sum(span.most for span in counted.calls().values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 12, "minibatches_per_request": 2},
        {"batch_size": 5, "accumulation": 2, "slow_update": {"gate": False, "pair_policy": "changed", "samples": 4}},
        {
            "batch_size": 12,
            "lr_control_mode": "autonomous",
            "skill_aware": {"enabled": True, "consolidate_threshold": 1},
        },
    ],
)
def test_without_it_what_is_used_lies_within_the_bounds(seed: int, reuse: bool, settings: dict[str, Any]) -> None:
    config = OptimizeConfig(epochs=3, minibatch_size=3, merge_batch_size=2, reuse_rollouts=reuse, **settings)
    sizes = Sizes(24, 10, 6)
    counted = count(config, sizes, reuses=reuse)
    found = used(config, sizes, Succeeds(0.2 + 0.3 * seed), ScriptedOptimizer(seed=seed, blind=True))
    bounds = {**counted.rollouts(), **counted.calls()}
    for name, number in found.items():
        assert number in bounds[name], name
    calls = sum(number for name, number in found.items() if name not in counted.rollouts())
    assert calls in counted.all_calls()


@pytest.mark.parametrize("reuse", [False, True])
def test_of_gepa_what_is_used_lies_within_the_bounds(reuse: bool) -> None:
    pytest.importorskip("gepa")
    config = OptimizeConfig(engine="gepa", epochs=2, reuse_rollouts=reuse)
    sizes = Sizes(8, 5, 4)
    counted = count_gepa(config, sizes, minibatch=3, iterations=6, reuses=reuse)
    found = used(config, sizes, Succeeds(0.4), ScriptedOptimizer(seed=1))
    bounds = {**counted.rollouts(), **counted.calls()}
    for name, number in found.items():
        assert number in bounds[name], name
