"""The benchmark over algorithms: every registered one has an arm that a run would take, and the tables pair seeds and problems."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.rl.algorithms import ALGORITHMS
from skill_ttrl.train.defaults import load_checked, with_defaults

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OTHER_NAMES = {"ppo": "gae"}
"""Algorithms that have an arm by their other name."""


@pytest.fixture
def algorithms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("algorithms")


def test_every_registered_algorithm_has_an_arm(algorithms: ModuleType) -> None:
    settings = [each for recipe in algorithms.RECIPES for each in algorithms.arms_of(recipe, None).values()]
    measured = {load_config("quickstart", list(each)).rl.algorithm["type"] for each in settings}
    assert {name for name in measured if ":" not in name} == set(ALGORITHMS) - set(OTHER_NAMES)


def test_an_arm_is_followed_by_its_control_whose_reward_is_a_coin(algorithms: ModuleType) -> None:
    arms = algorithms.arms_of("quickstart", None)
    names = list(arms)
    coins = [name for name in names if name.endswith(algorithms.COIN)]
    assert {"grpo, random reward", "psr, random reward", "vote_sft, random reward", "ttpo, random reward"} <= {*coins}
    for coin in coins:
        arm = coin.removesuffix(algorithms.COIN)
        assert names.index(coin) == names.index(arm) + 1
        assert arms[coin][: len(arms[arm])] == arms[arm] and "rl.reward=random" in arms[coin]


def test_every_arm_is_a_config_that_a_run_takes_with_the_loss_that_its_algorithm_brings(algorithms: ModuleType) -> None:
    for recipe, own in algorithms.RECIPES.items():
        for arm, settings in algorithms.arms_of(recipe, None).items():
            rl = with_defaults(load_checked(recipe, [*own, *settings])).rl
            brought = ALGORITHMS.get(rl.algorithm["type"]).defaults
            for key, value in brought.items():
                found, value = getattr(rl, key), getattr(type(rl)(**{key: value}), key)
                if key == "loss":
                    assert {**found, "dual_clip": None} == {**value, "dual_clip": None}, (recipe, arm)
                elif key != "kl_coef" and not {f"rl.{key}=null", f"rl.{key}=0"} & {*settings}:
                    assert found == value, (recipe, arm, key)
