"""SimpleQAEnv, SkillEnv and SkillOptConfig against skillrl's."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import skillrl
from hypothesis import given
from hypothesis import strategies as st
from skillrl.envs.qa import SimpleQAEnv as TheirEnv

from skill_ttrl import BaseLLMClient, SimpleQAEnv, SkillOptConfig
from skill_ttrl.errors import ConfigError


class Says(BaseLLMClient):
    """A scripted model that always says the same."""

    model = "scripted"

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[dict[str, Any]] = []

    def chat(self, **asked: Any) -> tuple[str, dict[str, Any]]:
        self.asked.append(asked)
        return self.text, {}


WORDS = st.lists(st.sampled_from(["Paris", "paris", "the", "Pacific", "Ocean", " ", "\n", ".", ""]), max_size=5).map(
    " ".join
)
ITEMS = st.fixed_dictionaries(
    {"question": WORDS, "answers": st.lists(WORDS, max_size=3) | WORDS | st.none()},
    optional={"id": st.integers(0, 9) | WORDS, "context": WORDS, "task_type": st.sampled_from(["geo", None])},
)


@given(ITEMS, WORDS, WORDS)
def test_questions_are_asked_and_scored_the_same(item: dict[str, Any], skill: str, answer: str) -> None:
    splits: dict[str, Any] = {"train_items": [item], "val_items": [], "test_items": []}
    mine, theirs, models = SimpleQAEnv(**splits), TheirEnv(**splits), (Says(answer), Says(answer))
    result = mine.rollout_one(item=item, skill=skill, target_client=models[0])
    expected = theirs.rollout_one(item=item, skill=skill, target_client=models[1])
    assert result.to_dict() == expected.to_dict()
    assert models[0].asked == models[1].asked
    assert mine.get_task_types() == theirs.get_task_types()


# --- the settings ---


def test_settings_have_the_same_keys_and_defaults() -> None:
    assert SkillOptConfig().to_dict() == skillrl.SkillOptConfig().to_dict()
    changed: dict[str, Any] = {
        "num_epochs": 2, "batch_size": 8, "edit_budget": 3, "lr_scheduler": "linear", "extras": {"a": 1},
    }  # fmt: skip
    assert SkillOptConfig(**changed).to_dict() == skillrl.SkillOptConfig(**changed).to_dict()
    config = SkillOptConfig(2, 8)
    assert (config.num_epochs, config.batch_size) == (2, 8)
    assert copy.deepcopy(config) == config and dataclasses.replace(config, seed=1).seed == 1


@pytest.mark.parametrize(
    ("given", "key", "theirs"),
    [
        ({"batch_size": 0}, "batch_size", True),
        ({"merge_batch_size": 1}, "merge_batch_size", True),
        ({"edit_budget": 1}, "min_edit_budget", True),
        ({"lr_scheduler": "cosin"}, "lr_scheduler.*Did you mean 'cosine'", True),
        ({"gate_mixed_weight": 1.5}, "gate_mixed_weight", True),
        ({"num_epochs": 0}, "num_epochs", False),
        ({"batch_size": "8"}, "batch_size: must be a valid integer", False),
        ({"gate_mixed_weight": float("nan")}, "gate_mixed_weight", False),
        ({"out_root": ""}, "out_root", False),
        ({"batch_size": 0, "lr_scheduler": "cosin"}, "batch_size.*; lr_scheduler", True),
    ],
)
def test_what_skillrl_refuses_and_what_it_fails_on_later_names_its_key(
    given: dict[str, Any], key: str, theirs: bool
) -> None:
    if theirs:
        with pytest.raises(ValueError):  # noqa: PT011
            skillrl.SkillOptConfig(**given)
    with pytest.raises(ConfigError, match=f"SkillOptConfig: .*{key}"):
        SkillOptConfig(**given)
