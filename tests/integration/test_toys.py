"""Every registered algorithm and loss reaches the optimum of a bandit and of a task of two turns."""

from __future__ import annotations

import random
from typing import Any

import pytest

from skill_ttrl.rl.algorithms import ALGORITHMS, build_algorithm, requirements
from skill_ttrl.rl.losses import LOSSES
from skill_ttrl.types import Group
from tests.toys import TOYS, train, warm_start

STEPS = 150
WARM: dict[str, str] = {
    "nsr": "it only lowers what failed: where nearly all fails, that is also the right first step of a failed episode",
    "w_reinforce": "a success weighs a tenth of a failure: as nsr",
}
"""Algorithms that begin the two turns where success is not rare, and why. Those that learn from votes always do: a majority has to be
right."""
CRITIC: dict[str, Any] = {"critic": {"learning_rate": 0.05}}
SETTINGS: dict[str, dict[str, Any]] = {"gae": CRITIC, "ppo": CRITIC}
"""Further settings of an algorithm."""


ALIKE = frozenset("dr_grpo rloo reinforce_plus_plus_baseline w_reinforce cispo ttpo gspo".split())
"""Algorithms that differ from one of the others in a formula that golden tests hold."""


def cases() -> list[Any]:
    """(algorithm, toy); those that need episodes learn the one of two turns alone, the others learn it in the slow tests."""
    needs = {name: requirements(build_algorithm({"type": name})) for name in ALGORITHMS}
    return [
        pytest.param(
            name,
            toy,
            marks=()
            if toy == ("two turns" if "episodes" in needs[name] else "bandit") and name not in ALIKE
            else pytest.mark.slow,
        )
        for name in ALGORITHMS
        for toy in TOYS
        if toy != "bandit" or "episodes" not in needs[name]
    ]


@pytest.mark.parametrize(("name", "toy"), cases())
def test_every_algorithm_reaches_the_optimum(name: str, toy: str) -> None:
    rl: dict[str, Any] = {"algorithm": name, **SETTINGS.get(name, {})}
    weights = warm_start(toy) if name in WARM and toy != "bandit" else None
    if "votes" in requirements(build_algorithm({"type": name})):
        # A first large step for one task may cost another its majority.
        rl, weights = {"reward": "majority", "learning_rate": 0.005, **rl}, warm_start(toy)
    reached, updates, _ = train(TOYS[toy], rl, steps=STEPS, weights=weights)
    assert reached >= 0.9, f"{name}: success {reached:.3f} after {updates} updates"
    assert updates > 0


@pytest.mark.parametrize("name", list(LOSSES))
def test_every_loss_reaches_the_optimum(name: str) -> None:
    # In the second pass the policy is no longer the one that sampled, so that the ratio counts.
    reached, updates, _ = train(TOYS["bandit"], {"loss": name, "ppo_epochs": 2}, steps=STEPS)
    assert reached >= 0.9, f"{name}: success {reached:.3f} after {updates} updates"


def test_random_rewards_teach_nothing() -> None:
    def drawn(group: Group, draw: random.Random) -> list[float]:
        return [float(draw.random() < 0.5) for _ in group.trajectories]

    reached, updates, _ = train(TOYS["bandit"], {}, steps=25, rewards=drawn)
    assert updates == 25 and reached < 0.5  # twice what the learning ones need
