"""Reward functions for verl: an answer graded against the true one, and a majority vote that needs none."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from skill_ttrl.answers import compute_reward, extract
from skill_ttrl.errors import ConfigError
from skill_ttrl.integrations.votes import vote_in_groups

MOST_WAITING = 800
"""Responses of a batch for each of verl's workers: Ray runs at most 1,000 calls of an actor at once, and they are drawn at random."""
LONGEST_WAIT_S = 3600.0
"""Longest time between an answer and the last one of its group. verl drops a group of which a rollout has failed."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | None,
    extra_info: Mapping[str, Any] | None = None,
    *,
    last_number: bool = False,
    **others: Any,
) -> dict[str, Any]:
    """Grade one response against the true answer (`custom_reward_function.name`).

    Args:
        data_source: not looked at.
        solution_str: the response.
        ground_truth: the true answer; without one the score is 0.
        extra_info: not looked at.
        last_number: take the last number of a response that gives no answer in any other way.
        others: what else verl passes; not looked at.

    Returns:
        `score` and, the same, `acc`; `pred`, the answer as the vote reads it, empty for none.
    """
    score = compute_reward(solution_str, ground_truth, last_number=last_number)["score"] if ground_truth else 0.0
    return {"score": score, "acc": score, "pred": extract(solution_str, last_number=last_number) or ""}


def majority_vote_scores(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[str | None],
    extra_infos: Sequence[Mapping[str, Any]],
    **options: Any,
) -> list[dict[str, Any]]:
    """`compute_score` of a whole batch, whose training responses are scored by the vote among those of their prompt.

    For verl up to 0.6 with `reward_model.reward_manager=batch`; see `MajorityVoteManager` for later ones. A prompt is named by
    `extra_info.index` and its data source.

    Raises:
        ConfigError: an `extra_info` lacks its `split` or `index`.
    """
    rows = zip(data_sources, solution_strs, ground_truths, strict=True)
    scores = [compute_score(*row, **options) for row in rows]
    train = [place for place, info in enumerate(extra_infos) if is_trained(info)]
    names = [(data_sources[place], of(extra_infos[place], "index")) for place in train]
    rewards, _ = vote_in_groups(names, [scores[place]["pred"] for place in train])
    for place, reward in zip(train, rewards, strict=True):
        scores[place]["score"] = reward
    return scores


class MajorityVoteManager:
    """A reward manager of verl 0.7.1 to 0.9: the responses of a training prompt wait for each other and vote, others are graded.

    verl scores each response alone, in one of `reward.num_workers` actors; the vote is held in one more. The prompt's name is the
    `uid` that verl gives it, and `rollout.n` responses vote. Options of `compute_score` stand in `reward.reward_kwargs`.

    Raises:
        ConfigError: there are too few workers for a batch to wait in; or, of a response, its `extra_info` has no `split`.
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **others: Any) -> None:
        import ray
        from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

        size = config.actor_rollout_ref.rollout.n
        least = math.ceil(config.data.train_batch_size * size / MOST_WAITING)
        if config.reward.num_workers < least:
            raise ConfigError(
                f"{config.data.train_batch_size} prompts with {size} responses each cannot wait in "
                f"reward.num_workers={config.reward.num_workers} actors. Set it to at least {least}."
            )
        options = config.reward.get("reward_kwargs") or {}
        self._single = NaiveRewardManager(config, tokenizer, partial(_graded, options), **others)
        place = {"name": "skill_ttrl_votes", "get_if_exists": True, "num_cpus": 0, "max_concurrency": 1_000_000}
        self._votes: Any = ray.remote(Votes).options(**place).remote(size)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Score one response; verl calls it for all of them at once."""
        found: dict[str, Any] = await self._single.run_single(data)
        fields = data[-1].non_tensor_batch
        if is_trained(fields.get("extra_info") or {}):
            found["reward_score"] = await self._votes.add.remote(str(fields["uid"]), found["reward_extra_info"]["pred"])
        return found


class Votes:
    """Votes in progress: an answer waits until all those of its prompt are there.

    Args:
        size: answers of a prompt.
    """

    def __init__(self, size: int) -> None:
        self._size, self._waiting = size, dict[str, list[tuple[str, asyncio.Future[float]]]]()

    async def add(self, prompt: str, answer: str) -> float:
        """The reward of an answer.

        Raises:
            TimeoutError: the others have not come in `LONGEST_WAIT_S`.
        """
        reward: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        group = self._waiting.setdefault(prompt, [])
        group.append((answer, reward))
        if len(group) == self._size:
            answers, rewards = zip(*self._waiting.pop(prompt), strict=True)
            for each, value in zip(rewards, vote_in_groups([0] * len(answers), answers)[0], strict=True):
                if not each.done():  # a response that has waited too long
                    each.set_result(value)
        return await asyncio.wait_for(reward, LONGEST_WAIT_S)


def _graded(options: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    return compute_score(**given, **options)


def is_trained(extra_info: Mapping[str, Any]) -> bool:
    """True if a response's prompt is of the training split, whose true answers no reward may see."""
    return bool(of(extra_info, "split") == "train")


def of(extra_info: Mapping[str, Any], name: str) -> Any:
    """A field of `extra_info`.

    Raises:
        ConfigError: it is not there.
    """
    if name not in extra_info:
        raise ConfigError(
            f"The vote needs extra_info.{name} in every row of the data, as verl's own preprocessing writes it."
        )
    return extra_info[name]
