"""Greedy rollouts: the baseline of algorithms that require one (ReMax). They are rewarded and never trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skill_ttrl.llm.backend import Sampling
from skill_ttrl.skills.retrieval.bank_view import BankView
from skill_ttrl.stages.training.components import RolloutWorker
from skill_ttrl.stages.training.metrics import completions_of
from skill_ttrl.types import Group, Task, VoteResult
from skill_ttrl.voting.metrics import mean
from skill_ttrl.voting.reward_set import RewardSet, late_vote


def roll_out_greedily(worker: RolloutWorker, tasks: Sequence[Task], bank: BankView | None, seed: int) -> list[Group]:
    """Roll out each task once at temperature 0; one group of one a task."""
    greedily = Sampling(temperature=0.0, max_new_tokens=worker.config.rollout.max_new_tokens)
    return worker.with_bank(bank).generate_rollouts(tasks, 1, greedily, seed)


def greedy_rewards(
    greedy: Sequence[Group], groups: Sequence[Group], votes: Sequence[VoteResult], rewards: RewardSet, seed: int
) -> dict[str, float]:
    """Reward of each task's greedy rollout, by task id, from the same rewards as the samples'; a failed one has none.

    Where votes are rewarded the greedy answer does not take part: it is rewarded as the samples that gave the same answer, else
    with 0.
    """
    found = {}
    for once, group, vote in zip(greedy, groups, votes, strict=True):
        (only,) = once.trajectories
        if only.error is None:
            (rewarded,) = rewards(once, late_vote(vote, group.answers, only.answer), seed).trajectories
            found[group.task.id] = rewarded.reward or 0.0
    return found


def greedy_metrics(greedy: Sequence[Group], rewards: Mapping[str, float]) -> dict[str, float]:
    """`greedy_reward`: mean reward of the greedy rollouts; `greedy_tokens`: tokens sampled for them in this step.

    `failed_greedy_rollouts`: their share; such a task is not trained on in this step.
    """
    return {
        "greedy_reward": mean(list(rewards.values())),
        "greedy_tokens": float(sum(done.sampled for done in completions_of(greedy))),
        "failed_greedy_rollouts": 1.0 - len(rewards) / max(1, len(greedy)),
    }
