"""One update, from rewarded rollouts to new weights: scores → KL penalty → advantages → gradient.

The order is verl's. Advantages are computed where the votes are; only `LocalLearner.score` and `LocalLearner.update` touch the model, so a
learner may span several processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from skill_ttrl.config import RLConfig
from skill_ttrl.config.rl import naming_own
from skill_ttrl.rl.algorithms import (
    AdvantageEstimate,
    TrainingSamples,
    build_algorithm,
    requirements,
    whiten_advantages,
)
from skill_ttrl.rl.batch import RolloutBatch, pack, with_advantages
from skill_ttrl.rl.correction import corrected, corrects
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.types import Group, Trajectory, VoteResult

if TYPE_CHECKING:
    from skill_ttrl.rl.parallel.driver import RanksLearner


@dataclass(frozen=True, slots=True)
class UpdateRecord:
    """Scores and advantages of an update's trajectories (E), group after group: recorded, never read by the update."""

    trajectories: Sequence[Trajectory]
    """As they were given to the update."""
    scores: Sequence[float]
    """Reward of each, before a KL penalty."""
    rescored: bool
    """True if these are scores of the algorithm's own and not the rewards."""
    advantages: Sequence[Sequence[float | None]]
    """Of each a row with the mean advantage of each step's trained tokens; None for a step that has none."""


def record_update(samples: TrainingSamples, batch: RolloutBatch, scores: Sequence[float] | None = None) -> UpdateRecord:
    """Read from the batch what each trajectory was rewarded and what its advantages are.

    Args:
        samples: Rollouts with rewards.
        batch: The same, with advantages.
        scores: Of each trajectory (E); None: its reward.
    """
    tokens_S = batch.sum_by_turn(batch.trained_F.float())
    means_S = batch.sum_by_turn(batch.advantages_F * batch.trained_F) / tokens_S.clamp(min=1)
    rows: list[list[float | None]] = [[None] * len(each.steps) for each in samples.trajectories]
    turns = zip(batch.turn_places, tokens_S.tolist(), means_S.tolist(), strict=True)
    for (trajectory, step), tokens, mean in turns:
        if tokens:  # others are out of the loss: a filter or the algorithm left them out
            rows[trajectory][step] = mean
    return UpdateRecord(samples.trajectories, samples.rewards if scores is None else scores, scores is not None, rows)


def score_metrics(record: UpdateRecord) -> dict[str, float]:
    """Mean, largest and smallest score of the rollouts and advantage of their trained steps (verl: `critic/score`, `critic/advantages`)."""
    advantages = [value for row in record.advantages for value in row if value is not None]
    columns = {"score": [*record.scores], "advantage": advantages}
    found: dict[str, float] = {}
    for name, values in columns.items():
        if values:
            found |= {f"{name}/mean": fmean(values), f"{name}/max": max(values), f"{name}/min": min(values)}
    return found


def _in_order(groups: Sequence[Group], voters: Sequence[Group]) -> Sequence[Group]:
    """The voters of each group."""
    found = {group.task.id: group for group in voters}
    return [found.get(group.task.id, group) for group in groups]


class UpdateRule:
    """How a step's rollouts change the weights.

    Args:
        config: Algorithm, correction and KL penalty.
        sampler_is_learner: The learner's own model samples, so its log-probs need no correction by default.
        join: Learn from each episode as one sequence, as far as each prompt extends the previous one; see `pack`.

    Raises:
        ConfigError: there is no such algorithm or correction, or an option is wrong.
    """

    record: UpdateRecord | None = None
    """Of the latest update."""

    def __init__(self, config: RLConfig, *, sampler_is_learner: bool, join: bool = False) -> None:
        self.config = config
        self.join = join
        self.algorithm = build_algorithm(config.algorithm)
        self.requires = requirements(self.algorithm)
        self.corrects = corrects(config, sampler_is_learner=sampler_is_learner)

    def __call__(
        self,
        learner: LocalLearner | RanksLearner,
        groups: Sequence[Group],
        votes: Sequence[VoteResult],
        *,
        step: int,
        seed: int,
        temperature: float,
        voters: Sequence[Group] = (),
        greedy: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Learn from one step's rollouts.

        Args:
            learner: What learns.
            groups: Rollouts with rewards.
            votes: The vote of each group, as it bears on these rollouts. The algorithm has them where `rl.reward` is `majority`.
            step: Number of the step, 0 for the first.
            seed: The run's seed.
            temperature: At which the tokens were sampled.
            voters: All rollouts of these tasks that voted, those of `groups` among them; empty: `groups`.
            greedy: Reward of a greedy rollout of each task, by its id, where the algorithm requires it. Groups without one are left out.

        Returns:
            Metrics of the correction, the KL penalty, the algorithm and `LocalLearner.update`.
        """
        samples = self._samples(groups, votes, voters, greedy)
        batch = pack(samples.groups, invalid_action_penalty_coef=samples.invalid_action_penalty_coef, join=self.join)
        penalty = self.config.kl_in_reward
        # Two forward passes at most, none where nothing asks for them.
        batch = learner.score(
            batch,
            temperature=temperature,
            own=self.corrects,
            reference=self.config.kl_coef > 0 or penalty is not None,
        )
        metrics: dict[str, float] = {}
        if self.corrects:
            batch, metrics = corrected(batch)
        if penalty is not None:
            batch, kl_metrics = apply_kl_penalty(batch, penalty.coef)
            metrics |= kl_metrics
        batch, found = self.estimate(replace(samples, batch=batch), batch)
        metrics |= found
        metrics |= learner.update(batch, step=step, seed=seed, temperature=temperature)
        return metrics

    def _samples(
        self,
        groups: Sequence[Group],
        votes: Sequence[VoteResult],
        voters: Sequence[Group],
        greedy: Mapping[str, float] | None,
    ) -> TrainingSamples:
        """Gather the algorithm's inputs but for the tokens; see `__call__`."""
        config = self.config
        if greedy is not None:
            pairs = [pair for pair in zip(groups, votes, strict=True) if pair[0].task.id in greedy]
            groups, votes = [group for group, _ in pairs], [vote for _, vote in pairs]
        return TrainingSamples(
            groups,
            votes if config.voted else None,
            config.invalid_action_penalty_coef,
            voters=_in_order(groups, voters) if config.voted else None,
            env_rewards=config.reward == "env" and not config.extra_rewards and not config.overlong_penalty,
            reward_weights=config.extra_rewards,
            main_reward=config.reward,
            greedy_rewards=None if greedy is None else [greedy[group.task.id] for group in groups],
        )

    def estimate(self, samples: TrainingSamples, batch: RolloutBatch) -> tuple[RolloutBatch, Mapping[str, float]]:
        """Estimate the batch's advantages; gives the metrics of the algorithm too, and sets `record`."""
        with naming_own("algorithm", self.config.algorithm):
            found = self.algorithm.advantages(samples)
            if not isinstance(found, AdvantageEstimate):
                found = AdvantageEstimate(found)
            if found.trained_F is not None:
                batch = replace(batch, trained_F=batch.trained_F & found.trained_F)
            batch = replace(with_advantages(batch, samples.groups, found.advantages), returns_F=found.returns_F)
        if getattr(self.algorithm, "whitens", False):
            mask_F = batch.trained_F.float()
            batch = replace(batch, advantages_F=whiten_advantages(batch.advantages_F[None], mask_F[None])[0])
        self.record = record_update(samples, batch, found.scores)
        return batch, {**score_metrics(self.record), **found.metrics}


# DAPO's soft penalty of overlong responses (arXiv 2503.14476, section 3.4).


def length_penalty(length: int, limit: int, buffer: int, factor: float) -> float:
    """Penalty of a response, at most 0 (equation 13): it begins where `buffer` tokens are left and reaches -`factor` at the limit.

    Args:
        length: Sampled tokens.
        limit: Longest possible response.
        buffer: Tokens before the limit, at least 1.
        factor: Penalty at the limit.
    """
    return -factor * min(max((length - (limit - buffer)) / buffer, 0.0), 1.0)


def overlong_penalties(group: Group, factor: float, limit: int) -> list[float]:
    """Penalty of each rollout: that of its longest response, over a fifth of the `limit` (`rollout.max_new_tokens`)."""

    def longest(trajectory: Trajectory) -> int:
        return max((step.completion.num_sampled_tokens for step in trajectory.steps if step.completion), default=0)

    return [length_penalty(longest(each), limit, max(limit // 5, 1), factor) for each in group.trajectories]


# KL penalty on the rewards.


def apply_kl_penalty(batch: RolloutBatch, coef: float) -> tuple[RolloutBatch, dict[str, float]]:
    """Subtract the KL penalty from the scores: `token_level_rewards` = `token_level_scores` - coef * KL (k1).

    Returns:
        (batch, metrics): `reward_kl`, nats a token: the mean over items of each item's mean over its tokens, as in verl.
    """
    assert batch.ref_log_probs_F is not None
    kl_F = (batch.old_log_probs_F - batch.ref_log_probs_F) * batch.trained_F.float()
    counts_N = batch.trained_tokens_N.clamp(min=1)
    mean = float((batch.sum_by_item(kl_F) / counts_N).mean()) if len(batch) else 0.0
    return replace(batch, rewards_F=batch.scores_F - coef * kl_F), {"reward_kl": mean}
