"""Settings that docs/coming-from.md names for those of TRL and verl: each exists and takes the stated value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.config.elsewhere import ELSEWHERE
from skill_ttrl.config.section import section_at
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms import ALGORITHMS, build_algorithm
from skill_ttrl.rl.correction import choose_correction
from skill_ttrl.rl.losses import LOSSES, build_loss

WHOLE_PAGE = (Path(__file__).parents[3] / "docs" / "coming-from.md").read_text(encoding="utf-8")
PAGE = WHOLE_PAGE[WHOLE_PAGE.index("## From TRL") : WHOLE_PAGE.index("## From GRPO-NSR")]
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 4]
NAMED = sorted(
    {name for row in ROWS for name in re.findall(r"`((?:rl|rollout|vllm|model|runtime|eval|run)\.[^`]+)`", row[1])}
)


def check(config: SkillTTRLConfig) -> None:
    build_algorithm(config.rl.algorithm)
    build_loss(config.rl.loss)
    choose_correction(config.rl, sampler_is_learner=False)


def test_the_tables_are_read() -> None:
    assert len(ROWS) > 60 and len(NAMED) > 90


@pytest.mark.parametrize("named", NAMED)
def test_a_setting_is_there_and_takes_its_value(named: str) -> None:
    check_setting(*named.partition(": "))


def check_setting(key: str, stated: str, value: str) -> None:
    parts = key.split(".")
    if stated:
        check(load_config({}, [f"{key}={value}"]))
    elif parts[:2] in (["rl", "algorithm"], ["rl", "loss"]) and len(parts) == 3:
        registry: Any = ALGORITHMS if parts[1] == "algorithm" else LOSSES
        assert any(parts[2] in registry.get(name).options_type.model_fields for name in registry)
    else:
        holder = section_at(SkillTTRLConfig, parts[:-1])
        assert holder is not None and parts[-1] in holder.model_fields


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_a_config_of_theirs_is_one_of_ours(text: str) -> None:
    check(load_config(yaml.safe_load(text)))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.n=8", "rollout.n: unknown key, by its name .* Set rollout.n_samples_per_prompt and"),
        ("actor_rollout_ref.actor.kl_loss_coef=0.1", r"actor_rollout_ref\.actor\.kl_loss_coef: .* Set rl.kl_coef"),
        ("actor_rollout_ref.model.path=x", "actor_rollout_ref: unknown key; it is a section of verl's"),
        ("algorithm.norm_adv_by_std_in_grpo=false", "Set rl.algorithm.scale_rewards=none"),
    ],
)
def test_keys_as_verl_nests_them_are_answered_with_ours(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config({}, [override])


def test_an_option_of_theirs_among_those_of_an_algorithm_is_answered_with_ours() -> None:
    with pytest.raises(
        ConfigError, match=r"'grpo': no option 'norm_adv_by_std_in_grpo', by its name .* Set rl\.algorithm"
    ):
        build_algorithm({"type": "grpo", "norm_adv_by_std_in_grpo": False})


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_of_theirs_is_answered_with_ours(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({}, [f"rl.{name}=1"])
    (instead,) = re.findall(
        rf"rl\.{name}: unknown key, by its name one of TRL's or verl's\. Set (.*) \(docs/", str(caught.value)
    )
    for setting in instead.split(" and "):
        check_setting(*setting.partition("="))
