"""Values that an algorithm brings, and what a config states itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import RLConfig, load_config
from skill_ttrl.rl.algorithms import ALGORITHMS
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.train.defaults import load_checked, with_algorithm_defaults, with_defaults


def brought(**rl: Any) -> RLConfig:
    return with_algorithm_defaults(load_config({"rl": rl}).rl)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_brings_values_that_a_config_can_have(name: str) -> None:
    assert brought(algorithm=name).algorithm == {"type": name}


def test_what_a_config_states_stays() -> None:
    assert brought(algorithm="dr_grpo").loss_aggregation == "seq-mean-token-sum-norm"
    assert brought(algorithm="dr_grpo", loss_aggregation="token-mean").loss_aggregation == "token-mean"


def test_of_a_loss_some_options_may_be_stated() -> None:
    assert brought(algorithm="dapo", loss={"clip_ratio": 0.1}).loss == {
        "type": "ppo_clip",
        "clip_ratio": 0.1,
        "clip_ratio_high": 0.28,
        "dual_clip": None,
    }
    assert brought(algorithm="dapo", loss="cispo").loss == {"type": "cispo"}


def test_options_without_a_type_are_of_the_algorithm_s_loss() -> None:
    assert brought(algorithm="gspo", loss={"clip_ratio": 0.1}).loss == {
        "type": "gspo",
        "clip_ratio": 0.1,
        "clip_ratio_high": 4e-4,
    }
    assert brought(algorithm="gspo", loss={"type": "ppo_clip", "clip_ratio": 0.1}).loss["type"] == "ppo_clip"
    assert brought(loss={"clip_ratio": 0.1}).loss == {"type": "ppo_clip", "clip_ratio": 0.1}


def full(**rl: Any) -> dict[str, Any]:
    """The config of a run, which states every key."""
    config = load_config({"rl": rl})
    return config.model_copy(update={"rl": with_algorithm_defaults(config.rl)}).model_dump(mode="json")


@pytest.mark.parametrize("before", ["grpo", "dapo", "gspo", "gae"])
@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo", "reinforce_plus_plus"])
def test_another_algorithm_for_a_run_s_config_has_its_own_defaults(before: str, name: str) -> None:
    said: list[str] = []
    found = with_algorithm_defaults(load_checked(full(algorithm=before), [f"rl.algorithm={name}"], said.append).rl)
    assert found == brought(algorithm=name)
    old, new = (brought(algorithm=each).model_dump(exclude={"algorithm"}) for each in (before, name))
    assert len(said) == (old != new)


def test_a_choice_outlasts_another_algorithm() -> None:
    said: list[str] = []
    changes = ["rl.algorithm=dapo", "rl.overlong_penalty=0", "rl.loss.clip_ratio=0.1"]
    found = with_algorithm_defaults(load_checked(full(kl_coef=0.05), changes, said.append).rl)
    assert (found.kl_coef, found.overlong_penalty, found.dynamic_sampling) == (0.05, 0.0, 10)
    assert "rl.loss, rl.dynamic_sampling." in said[0]


@pytest.mark.parametrize(
    ("stated", "embedder"), [({}, "hash"), ({"embedder": "openai"}, "openai"), ({"retrieval": "keyword"}, "hash")]
)
@pytest.mark.parametrize("where", ["bank", "run/bank"])
def test_a_bank_is_searched_by_its_own_embedder(
    stated: dict[str, Any], embedder: str, where: str, tmp_path: Path
) -> None:
    """A bank made with `hash` needs no download where a run begins with it."""
    SkillBank(tmp_path / where, BankSettings(embedder="hash", index="memory")).close()
    named = tmp_path / where.split("/")[0]
    config = load_config({"env": {"id": "math"}, "skills": {"bank": str(named), **stated}})
    skills = with_defaults(config).skills
    assert skills is not None and config.skills is not None
    assert skills.embedder == embedder == BankSettings.from_config(config.skills).embedder
    assert with_defaults(load_config({"env": {"id": "math"}, "skills": {}})).skills.embedder == "sentence-transformers"  # type: ignore[union-attr]
