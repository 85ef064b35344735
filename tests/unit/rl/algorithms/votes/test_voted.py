"""Algorithms that learn from votes, on rollouts: values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from skill_ttrl.compat.trainer import SkillTTRLTrainer
from skill_ttrl.config import load_config
from skill_ttrl.rl.algorithms import AdvantageEstimate, TrainingSamples, build_algorithm
from skill_ttrl.rl.algorithms.votes import AGREEING

Samples = Callable[..., TrainingSamples]


def estimate(samples: TrainingSamples, name: str, **options: Any) -> AdvantageEstimate:
    found = build_algorithm({"type": name, **options}).advantages(samples)
    assert isinstance(found, AdvantageEstimate)
    return found


def values(found: AdvantageEstimate) -> Sequence[Any]:
    assert not hasattr(found.advantages, "shape")
    return found.advantages


def test_ttpo_imitates_agreeing_samples_and_takes_a_tenth_of_grpo_of_the_others(voted: Samples) -> None:
    found = estimate(voted(["a", "a", "a", "b"]), "ttpo")
    assert [row[0] for row in values(found)] == pytest.approx([1, 1, 1, -0.15], abs=1e-5)
    assert found.metrics == {AGREEING: 0.75}
    nobody = estimate(voted([None, None]), "ttpo")
    assert [row[0] for row in values(nobody)] == [0, 0]


@pytest.mark.parametrize("name", ["grpo_nsr", "psr", "nsr", "w_reinforce", "ttpo"])
def test_advantages_of_texts_without_a_model(name: str) -> None:
    trainer = SkillTTRLTrainer(load_config({"rl": {"algorithm": name}}))
    found = trainer.train_offline(["6 times 7?"], [["\\boxed{42}", "\\boxed{42}", "\\boxed{41}"]])
    right, _, wrong = found["advantages"][0]
    assert right > wrong


def test_a_prompt_of_which_nothing_is_trained_on_is_passed_over(voted: Samples) -> None:
    assert list(values(estimate(voted(["a", "b"], trained=0), "ttpo"))) == []
