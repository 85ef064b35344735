"""Greedy rollouts: the baseline of algorithms that require one (ReMax). They are rewarded and never trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skill_ttrl.llm.backend import Sampling
from skill_ttrl.skills.retrieval.bank_view import BankView
from skill_ttrl.stages.training.components import RolloutWorker
from skill_ttrl.stages.training.metrics import completions_of
from skill_ttrl.types import Group, Task, VoteResult
from skill_ttrl.voting.metrics import mean
from skill_ttrl.voting.reward_set import RewardSet, late_vote


@dataclass(frozen=True)
class GreedyBaseline:
    """Rolls out each task once at temperature 0, where that is required."""

    worker: RolloutWorker
    required: bool

    def rollout(self, tasks: Sequence[Task], bank: BankView | None, seed: int) -> list[Group]:
        """One group of one a task; none where they are not required."""
        if not self.required:
            return []
        greedily = Sampling(temperature=0.0, max_new_tokens=self.worker.config.rollout.max_new_tokens)
        return self.worker.with_bank(bank).generate_rollouts(tasks, 1, greedily, seed)

    def rewards(
        self,
        greedy: Sequence[Group],
        groups: Sequence[Group],
        votes: Sequence[VoteResult],
        rewards: RewardSet,
        seed: int,
    ) -> dict[str, float] | None:
        """Reward each greedy rollout, by task id, as the samples are rewarded; a failed one has no reward. None: not required.

        Where votes are rewarded the greedy answer does not take part: it is rewarded as the samples that gave the same answer,
        else with 0.
        """
        if not self.required:
            return None
        found = {}
        for once, group, vote in zip(greedy, groups, votes, strict=True):
            (only,) = once.trajectories
            if only.error is None:
                (rewarded,) = rewards(once, late_vote(vote, group.answers, only.answer), seed).trajectories
                found[group.task.id] = rewarded.reward or 0.0
        return found

    def metrics(self, greedy: Sequence[Group], rewards: Mapping[str, float] | None) -> dict[str, float]:
        """`greedy_reward`: mean reward of the greedy rollouts; `greedy_tokens`: tokens sampled for them in this step.

        `failed_greedy_rollouts`: their share; such a task is not trained on in this step. Empty where they are not required.
        """
        if rewards is None:
            return {}
        return {
            "greedy_reward": mean(list(rewards.values())),
            "greedy_tokens": float(sum(done.num_sampled_tokens for done in completions_of(greedy))),
            "failed_greedy_rollouts": 1.0 - len(rewards) / max(1, len(greedy)),
        }
