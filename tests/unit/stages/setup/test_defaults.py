"""Values that an algorithm brings, and what a config states itself."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.config import RLConfig, load_config
from skill_ttrl.rl.algorithms import ALGORITHMS
from skill_ttrl.stages.setup.defaults import with_algorithm_defaults


def brought(**rl: Any) -> RLConfig:
    return with_algorithm_defaults(load_config({"rl": rl})).rl


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_brings_values_that_a_config_can_have(name: str) -> None:
    assert brought(algorithm=name).algorithm == {"type": name}


def test_what_a_config_states_stays() -> None:
    assert brought(algorithm="dr_grpo").loss_aggregation == "seq-mean-token-sum-norm"
    assert brought(algorithm="dr_grpo", loss_aggregation="token-mean").loss_aggregation == "token-mean"
    assert (
        brought(algorithm="gae").whiten_advantages
        and not brought(algorithm="gae", whiten_advantages=False).whiten_advantages
    )


def test_of_a_loss_some_options_may_be_stated() -> None:
    assert brought(algorithm="dapo", loss={"clip_ratio": 0.1}).loss == {
        "type": "ppo_clip",
        "clip_ratio": 0.1,
        "clip_ratio_high": 0.28,
        "dual_clip": None,
    }
    assert brought(algorithm="dapo", loss="cispo").loss == {"type": "cispo"}
