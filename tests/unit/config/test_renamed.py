"""Former names of keys and values: an error that names the present one in a user's config, read as they are in a run's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.config.load import InvalidConfigError
from skill_ttrl.config.renamed import RENAMED, VALUES, former_value, with_current_names
from skill_ttrl.config.section import section_at

REQUIRED: dict[str, dict[str, Any]] = {"endpoints": {"model": "m"}}


def nested(key: str, value: Any) -> dict[str, Any]:
    """Settings with one value at a dotted key."""
    *sections, name = key.split(".")
    found: dict[str, Any] = {name: value}
    if sections[:1] == ["endpoints"]:
        found |= {"model": "m"}
    for section in reversed(sections):
        found = {section: found}
    return found


@pytest.mark.parametrize(("former", "present"), RENAMED.items())
def test_a_former_key_is_answered_by_the_present_one(former: str, present: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        load_config(nested(former, None))
    assert f"  {former}: this key is now {present}." in str(refused.value).split("\n")


@pytest.mark.parametrize("key", [*RENAMED.values(), *VALUES])
def test_a_present_key_is_of_the_schema(key: str) -> None:
    *sections, name = key.split(".")
    section = section_at(SkillTTRLConfig, sections)
    assert section is not None and name in section.model_fields


@pytest.mark.parametrize("former", RENAMED)
def test_a_former_key_is_not_of_the_schema(former: str) -> None:
    *sections, name = former.split(".")
    section = section_at(SkillTTRLConfig, sections)
    assert section is not None and name not in section.model_fields


@pytest.mark.parametrize(
    ("key", "former", "present"),
    [
        *((key, former, present) for key, values in VALUES.items() for former, present in values.items()),
        ("data.train.path", "family:add", "synthetic:add"),
        ("skills.bank", "family:operators", "synthetic:operators"),
    ],
)
def test_a_former_value_is_answered_by_the_present_one(key: str, former: str, present: Any) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        load_config(nested(key, former))
    assert f"  {key}: {former_value(key, former)}" in str(refused.value)
    assert with_current_names(nested(key, former)) == nested(key, present)


def test_the_config_of_an_earlier_run_is_read_under_the_present_names(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "config.yaml").write_text(
        """
model: {path: embedded, embedded: {layers: 1}}
data: {train: {path: "family:add", split: train}}
sft: {order: given, schedule: constant, data: {path: "family:add"}}
rl: {mini_batch_prompts: 4, schedule: cosine, stop_rule: agreement, critic: {epochs: 2}}
rollout: {schedule: lockstep}
skills: {use: false, in_prompt: 2, bank: "family:operators"}
vllm: {mode: engine, updates: weights}
""",
        encoding="utf-8",
    )
    config = load_config(tmp_path, ["rl.steps=3"], trust=True)
    assert (config.model.path, config.model.builtin.layers) == ("builtin", 1)
    assert config.data.train is not None and config.data.train.path == "synthetic:add"
    assert (config.sft.shuffle, config.sft.lr_scheduler) == (False, "constant")
    assert (config.rl.mini_batch_size, config.rl.stop_rule, config.rl.steps) == (4, "majority_ratio", 3)
    assert config.rl.critic is not None and config.rl.critic.ppo_epochs == 2
    assert config.rollout.mode == "sync" and (config.vllm.mode, config.vllm.weight_sync) == ("colocate", "full")
    assert config.skills is not None and (config.skills.enabled, config.skills.prompt_top_k) == (False, 2)
    with pytest.raises(InvalidConfigError, match=r"rl\.mini_batch_prompts: this key is now rl\.mini_batch_size\."):
        load_config(tmp_path, ["rl.mini_batch_prompts=3"], trust=True)
