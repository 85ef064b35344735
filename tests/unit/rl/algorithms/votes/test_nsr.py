"""The algorithms of negative sample reinforcement on rollouts: which samples learn, by how much, and what is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.algorithms import TrainingSamples, build_algorithm
from skill_ttrl.rl.algorithms.negative import POSITIVE, POSITIVE_TOKENS
from skill_ttrl.rl.batch import RolloutBatch, pack
from skill_ttrl.rl.learner import UpdateRule
from skill_ttrl.types import Group
from tests.sampled import per_item

Groups = Callable[..., list[Group]]


def estimate(groups: list[Group], algorithm: dict[str, Any]) -> tuple[RolloutBatch, dict[str, float], UpdateRule]:
    batch = pack(groups)
    rule = UpdateRule(RLConfig(algorithm=algorithm), sampler_is_learner=True)
    found, metrics = rule.estimate(TrainingSamples(groups, None, 0.0, batch), batch)
    return found, dict(metrics), rule


def rewarded(make_groups: Groups, *rewards: float) -> list[Group]:
    return [group.with_rewards(list(rewards)) for group in make_groups(prompts=1, tries=len(rewards))]


def test_grpo_nsr_weighs_the_halves_and_reports_their_shares(make_groups: Groups) -> None:
    groups = rewarded(make_groups, 1.0, 0.0, 0.0, 0.0)
    batch, metrics, rule = estimate(groups, {"type": "grpo_nsr", "positive_weight": 0.1, "negative_weight": 2.0})
    assert per_item(batch) == pytest.approx([0.15, -1.0, -1.0, -1.0], abs=1e-5)
    assert metrics[POSITIVE] == 0.25
    tokens = batch.trained_tokens_N.tolist()
    assert metrics[POSITIVE_TOKENS] == pytest.approx(tokens[0] / sum(tokens))
    assert rule.record is not None and rule.record.scores == [1, 0, 0, 0]
    assert [row[0] for row in rule.record.advantages] == pytest.approx([0.15, -1.0, -1.0, -1.0], abs=1e-5)


EXTRAS: list[tuple[dict[str, Any], list[float]]] = [
    # Correct and wrong with the format bonus, then both without it: totals 1.8, 0.8, 1, 0, of mean 0.9.
    (
        {"type": "grpo_nsr", "positive_weight": 0.1, "negative_weight": 2.0, "norm_by_std": False},
        [0.09, -0.2, 0.01, -1.8],
    ),
    ({"type": "psr"}, [1.8, 0, 1, 0]),
    ({"type": "nsr"}, [0, -0.2, 0, -1]),
    ({"type": "w_reinforce"}, [0.18, -0.2, 0.1, -1]),
]


@pytest.mark.parametrize(("algorithm", "expected"), EXTRAS, ids=[each["type"] for each, _ in EXTRAS])
def test_a_wrong_answer_with_a_bonus_stays_wrong(
    algorithm: dict[str, Any], expected: list[float], make_groups: Groups
) -> None:
    parts = [{"majority": vote, "format": form} for form in (1.0, 0.0) for vote in (1.0, 0.0)]
    totals = [part["majority"] + 0.8 * part["format"] for part in parts]
    groups = [group.with_rewards(totals, parts) for group in make_groups(prompts=1, tries=4)]
    batch, metrics, _ = estimate(groups, algorithm)
    assert per_item(batch) == pytest.approx(expected, abs=1e-6)
    assert metrics.get(POSITIVE, 0.5) == 0.5
    rows: Any = build_algorithm(algorithm).advantages(TrainingSamples(groups)).advantages  # type: ignore[union-attr]
    assert [row[0] for row in rows] == pytest.approx(expected, abs=1e-6), "texts without tokens learn the same"
