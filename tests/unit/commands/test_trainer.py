"""The Python face: `train_offline` by hand, `train` on records in memory, sampling for those who want text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl import SkillTTRLConfig, SkillTTRLTrainer, load_config
from skill_ttrl.config import VoteConfig
from skill_ttrl.errors import ConfigError, DataError


def test_a_step_on_responses_that_are_there() -> None:
    trainer = SkillTTRLTrainer(SkillTTRLConfig())
    found = trainer.train_offline(
        ["What is 2+2?", "What is 3*3?"],
        [[r"\boxed{4}", r"\boxed{4.0}", r"\boxed{5}", "no idea"], [r"\boxed{9}", r"\boxed{9}"]],
    )
    assert found["majority_answers"] == ["4", "9"]
    assert found["agreement_ratios"] == [0.5, 1.0] and found["mean_agreement"] == 0.75
    assert found["rewards"] == [[1, 1, 0, 0], [1, 1]] and found["mean_reward"] == pytest.approx(4 / 6)
    spread = math.sqrt(4 * 0.25 / 3)  # of 1, 1, 0, 0: unbiased
    assert found["advantages"][0] == pytest.approx([0.5 / spread] * 2 + [-0.5 / spread] * 2, abs=1e-4)
    assert found["advantages"][1] == [0.0, 0.0]  # all agree: nothing to learn


def test_a_step_votes_as_the_config_says() -> None:
    texts = [[r"\boxed{4}", r"\boxed{4}", r"\boxed{5}"], [r"\boxed{1}", r"\boxed{2}", r"\boxed{3}"]]
    vote = VoteConfig(strategy={"type": "sequential", "first": 2, "error": 0.4})
    found = SkillTTRLTrainer(SkillTTRLConfig(vote=vote)).train_offline(["p", "q"], texts)
    assert found["majority_answers"] == ["4", "1"] and found["rewards"][0] == [1, 1, 0]
    with pytest.raises(ConfigError, match="needs inputs that this ballot lacks"):
        SkillTTRLTrainer(SkillTTRLConfig(vote=VoteConfig(strategy="confidence"))).train_offline(["p"], texts[:1])


def test_training_on_records_in_memory(tiny_yaml: Path, tmp_path: Path) -> None:
    trainer = SkillTTRLTrainer(load_config(tiny_yaml, ["sft.steps=2", "rl.steps=1"]), tmp_path / "run")
    records: list[dict[str, Any]] = [{"prompt": f"Compute {a}+21.", "answer": a + 21} for a in range(10, 14)]
    summary = trainer.train(records, [{"question": "Compute 50+21.", "answer": "71"}])
    assert summary.problems == 1 and not summary.transductive and summary.steps == {"sft": 2, "rl": 1}
    transductive = SkillTTRLTrainer(trainer.config, tmp_path / "same")
    found = transductive.train(records)
    assert found.problems == 4 and found.transductive
    assert len((tmp_path / "same-data" / "train.jsonl").read_text().splitlines()) == 4
    with pytest.raises(DataError, match="has changed since this run started"):
        transductive.train(records[:3], resume="auto")


def test_a_bank_that_does_not_learn_stays_as_it_is_offline() -> None:
    said = ["<skill_ops><generate>Add the ones first.</generate></skill_ops><answer>4</answer>"] * 2
    for update, learns in (("merge", True), ("none", False)):
        config = SkillTTRLConfig.model_validate({"skills": {"embedder": "hash", "update": update}})
        trainer = SkillTTRLTrainer(config)
        found = trainer.train_offline(["What is 2+2?"], [said])
        assert trainer.skill_bank is not None and len(trainer.skill_bank) == learns == ("bank_update" in found)
