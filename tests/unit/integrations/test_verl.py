from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skill_ttrl.errors import ConfigError
from skill_ttrl.integrations.verl import Votes, compute_score, majority_vote_scores

SAID = [r"\boxed{4}", "The answer is 4.", "no idea", r"\boxed{5}"]


def test_a_response_is_graded() -> None:
    assert compute_score("sums", SAID[0], "4", {"split": "test"}) == {"score": 1.0, "acc": 1.0, "pred": "4"}
    assert compute_score("sums", "It is 4", "4", None, last_number=True)["score"] == 1
    assert compute_score("sums", SAID[2], None)["pred"] == ""


def test_the_responses_of_a_training_prompt_vote_and_others_are_graded() -> None:
    infos: list[dict[str, Any]] = [{"split": "train", "index": 0}] * 4 + [{"split": "test", "index": 0}] * 4
    scores = majority_vote_scores(["sums"] * 8, SAID * 2, ["5"] * 8, infos)
    assert [each["score"] for each in scores] == [1, 1, 0, 0, 0, 0, 0, 1]
    with pytest.raises(ConfigError, match=r"extra_info\.split"):
        majority_vote_scores(["sums"], SAID[:1], ["5"], [{"index": 0}])


def test_a_response_after_another_has_waited_too_long_still_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def score() -> float:
        votes = Votes(2)
        with pytest.raises(TimeoutError):
            await votes.add("a", "4")
        return await votes.add("a", "4")

    monkeypatch.setattr("skill_ttrl.integrations.verl.LONGEST_WAIT_S", 0.01)
    assert asyncio.run(score()) == 1


class Tokens:
    """A tokenizer of the places in `SAID`."""

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return SAID[int(ids[0])]


def batch(rows: list[tuple[int, str, dict[str, Any]]]) -> Any:
    """(place in `SAID`, uid, `extra_info`) of each response, as verl's rollout hands it over."""
    import numpy as np
    import torch
    from verl import DataProto

    said = torch.tensor([[row[0]] for row in rows])
    fields = {
        "uid": [row[1] for row in rows],
        "extra_info": [dict(row[2]) for row in rows],
        "data_source": ["sums"] * len(rows),
        "reward_model": [{"ground_truth": "5"} for _ in rows],
    }
    return DataProto.from_dict(
        tensors={"prompts": said, "responses": said, "attention_mask": torch.ones(len(rows), 2, dtype=torch.int64)},
        non_tensors={name: np.array(values, dtype=object) for name, values in fields.items()},
    )


def test_verls_own_loop_scores_by_our_vote() -> None:
    pytest.importorskip("verl")
    import ray
    from omegaconf import OmegaConf
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
    from verl.trainer.ppo.reward import load_reward_manager

    here = {"path": "pkg://skill_ttrl.integrations.verl"}
    reward = {
        "num_workers": 2,
        "reward_manager": {"source": "importlib", "name": "MajorityVoteManager", "module": here},
        "custom_reward_function": {"path": None},
        "reward_model": {"enable": False},
    }
    rollout = {"rollout": {"n": 4}}
    config = OmegaConf.create({"reward": reward, "actor_rollout_ref": rollout, "data": {"train_batch_size": 2}})
    train, test = {"split": "train", "index": 0}, {"split": "test", "index": 0}
    # The groups come mixed and in two workers, and with them one validation response without a group.
    rows = [(0, "a", train), (3, "b", train), (1, "a", train), (3, "b", train), (3, "c", test)]
    rows += [(2, "a", train), (0, "b", train), (3, "a", train), (3, "b", train)]

    async def score() -> list[dict[str, Any]]:
        async with asyncio.timeout(120):
            both = [batch(rows[:5]), batch(rows[5:])]
            parts = await asyncio.gather(*(worker().compute_score_batch(part) for part in both))
        return [each for part in parts for each in part]

    def worker() -> Any:
        made = RewardLoopWorker.__new__(RewardLoopWorker)  # without its tokenizer
        made.config, made.reward_manager = config, load_reward_manager(config, Tokens())
        return made

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        scores = [each["reward_score"] for each in asyncio.run(score())]
    finally:
        ray.shutdown()
    assert scores == [1, 1, 1, 1, 1, 0, 0, 0, 1]  # a: 4 4 none 5; b: 5 5 4 5; c is right
    config.data.train_batch_size = 1024
    with pytest.raises(ConfigError, match="at least 6"):
        load_reward_manager(config, Tokens())


def test_verls_own_manager_of_batches_calls_ours() -> None:
    pytest.importorskip("verl")
    from verl.workers.reward_manager.batch import BatchRewardManager

    rows = [(place, "a", {"split": "train", "index": 0}) for place in range(4)]
    found = BatchRewardManager(Tokens(), 0, majority_vote_scores)(batch(rows), return_dict=True)
    assert found["reward_tensor"].flatten().tolist() == [1, 1, 0, 0]
    assert found["reward_extra_info"]["pred"] == ["4", "4", "", "5"]
