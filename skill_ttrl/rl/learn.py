"""One update, from rewarded rollouts to new weights: scores → KL penalty → advantages → gradient.

The order is verl's. Advantages are computed where the votes are; only `LocalLearner.score` and `LocalLearner.update` touch the model, so a
learner may span several processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.config.rl import AdaptiveEntropyConfig, OverlongConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms import (
    AdvantageEstimate,
    TrainingSamples,
    build_algorithm,
    requirements,
    takes_shaped_votes,
    whiten_advantages,
)
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.correction import choose_correction, corrected
from skill_ttrl.rl.kl import KLController, apply_kl_penalty
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.options import naming_own
from skill_ttrl.rl.pack import pack, with_advantages
from skill_ttrl.rl.update_metrics import TurnGradients, sampled_entropy
from skill_ttrl.types import Group, Trajectory, VoteResult

if TYPE_CHECKING:
    from skill_ttrl.rl.parallel.driver import RanksLearner

VOTED = "majority"
"""The reward that the votes decide."""
ENV = "env"
"""The reward that the environment decides."""


@dataclass(frozen=True, slots=True)
class UpdateRecord:
    """Scores, advantages and gradient shares of an update's trajectories (E), group after group: recorded, never read by the update."""

    trajectories: Sequence[Trajectory]
    """As they were given to the update."""
    scores: Sequence[float]
    """Reward of each, before a KL penalty."""
    rescored: bool
    """True if these are scores of the algorithm's own and not the rewards."""
    advantages: Sequence[Sequence[float | None]]
    """Of each a row with the mean advantage of each step's trained tokens; None for a step that has none."""
    gradient_shares: Sequence[Sequence[float]] = ()
    """Of each a row with each step's share of the sum of |d loss / d log-prob| over all trained tokens, in [0, 1]: of the policy loss,
    and of the optimizer steps that were taken. Empty before the update."""
    stopped_tokens: Sequence[Sequence[int]] = ()
    """Of each a row with the tokens of each step whose gradient a clip or a weight of 0 has stopped, counted in each pass."""

    def after(self, batch: RolloutBatch, gradients: TurnGradients) -> UpdateRecord:
        """The same record after its update."""
        total = float(gradients.absolute_S.sum()) or 1.0
        shares = [[0.0] * len(row) for row in self.advantages]
        stopped = [[0] * len(row) for row in self.advantages]
        for at, (trajectory, step) in enumerate(batch.turn_places):
            shares[trajectory][step] = float(gradients.absolute_S[at]) / total
            stopped[trajectory][step] = int(gradients.stopped_S[at])
        return replace(self, gradient_shares=shares, stopped_tokens=stopped)


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
        join: Learn from each episode as one sequence, as far as its prompts go on from one another; see `pack`.

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
        self.correction = choose_correction(config, sampler_is_learner=sampler_is_learner)
        settings = config.rollout_correction
        # Without rescoring the learner itself corrects, in its update.
        self.rescored = settings.rescore and (self.correction is not None or settings.reject is not None)
        self.kl = None if config.kl_in_reward is None else KLController.of(config.kl_in_reward)
        adaptive = config.adaptive_entropy
        self.entropy = None if adaptive is None else EntropyController(adaptive, config.entropy_coef)

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
        # Three forward passes at most, none where nothing asks for them.
        batch = learner.score(
            batch,
            temperature=temperature,
            own=self.rescored,
            reference=self.config.kl_coef > 0 or self.kl is not None,
            entropy=self.config.top_entropy_quantile < 1,
        )
        metrics: dict[str, float] = {}
        if self.rescored:
            batch, gap = corrected(batch, self.correction, self.config.rollout_correction)
            metrics |= gap
        if self.kl is not None:
            batch, kl_metrics = apply_kl_penalty(batch, self.kl)
            metrics |= kl_metrics
        batch, found = self.estimate(replace(samples, batch=batch), batch)
        metrics |= found
        if self.config.top_entropy_quantile < 1:
            batch, entropy_metrics = at_high_entropy(batch, self.config.top_entropy_quantile)
            metrics |= entropy_metrics
        entropy_coef = None
        if self.entropy is not None and bool(batch.trained_F.any()):
            metrics["entropy_coef"] = entropy_coef = self.entropy.apply(sampled_entropy(batch))
        metrics |= learner.update(batch, step=step, seed=seed, temperature=temperature, entropy_coef=entropy_coef)
        if learner.gradients is not None and self.record is not None:
            self.record = self.record.after(batch, learner.gradients)
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
        voted, penalized = config.reward == VOTED, config.overlong is not None and config.overlong.penalty
        return TrainingSamples(
            groups,
            votes if voted else None,
            config.invalid_action_penalty_coef,
            voters=_in_order(groups, voters) if voted else None,
            env_rewards=config.reward == ENV and not config.extra_rewards and not penalized,
            reward_weights=config.extra_rewards,
            main_reward=config.reward,
            greedy_rewards=None if greedy is None else [greedy[group.task.id] for group in groups],
        )

    def estimate(self, samples: TrainingSamples, batch: RolloutBatch) -> tuple[RolloutBatch, Mapping[str, float]]:
        """Estimate the batch's advantages; gives the metrics of the algorithm too, and sets `record`.

        Raises:
            ConfigError: a vote shapes advantages, and those of this algorithm cannot be shaped.
        """
        if samples.votes_shape and not takes_shaped_votes(self.algorithm):
            raise ConfigError(
                f"The vote shapes the advantages of rollouts, and those of rl.algorithm={self.config.algorithm['type']} cannot "
                "be shaped. Use a strategy that only rewards, such as vote.strategy=majority, or rl.algorithm=grpo."
            )
        with naming_own("algorithm", self.config.algorithm):
            found = self.algorithm.advantages(samples)
            if not isinstance(found, AdvantageEstimate):
                found = AdvantageEstimate(found)
            if found.trained_F is not None:
                batch = replace(batch, trained_F=batch.trained_F & found.trained_F)
            batch = replace(with_advantages(batch, samples.groups, found.advantages), returns_F=found.returns_F)
        metrics = dict(found.metrics)
        if self.config.overlong is not None and self.config.overlong.filter:
            batch, filtered = without_truncated(batch, samples.trajectories)
            metrics |= filtered
        if self.config.whiten_advantages:
            mask_F = batch.trained_F.float()
            batch = replace(batch, advantages_F=whiten_advantages(batch.advantages_F[None], mask_F[None])[0])
        self.record = record_update(samples, batch, found.scores)
        return batch, score_metrics(self.record) | metrics

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        kl = {} if self.kl is None else {"kl_coef": self.kl.coef}
        return kl if self.entropy is None else kl | {"entropy_coef": self.entropy.coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if self.kl is not None and "kl_coef" in state:
            self.kl.coef = float(state["kl_coef"])
        if self.entropy is not None and "entropy_coef" in state:
            self.entropy.coef = float(state["entropy_coef"])


# Entropy of the policy: a coefficient of the bonus that follows it, and the tokens where it is highest.


@dataclass
class EntropyController:
    """Coefficient of the entropy bonus, adapted towards a target (Skywork-OR1, arXiv 2505.22312, section 4)."""

    settings: AdaptiveEntropyConfig
    coef: float

    def apply(self, entropy: float) -> float:
        """Coefficient to apply to a step of this entropy (nats a token): 0 above the target. Adapts it for the next step."""
        settings, low = self.settings, entropy <= self.settings.target
        applied = self.coef if low else 0.0
        self.coef = min(max(self.coef + (settings.delta if low else -settings.delta), settings.min), settings.max)
        return applied


def high_entropy_mask(entropies_K: Float[Tensor, " K"], quantile: float) -> tuple[Bool[Tensor, " K"], float]:
    """The tokens whose entropy is in the highest `quantile` of all, and the smallest entropy among them (arXiv 2506.01939, section 4)."""
    threshold = float(np.quantile(entropies_K.numpy(), 1.0 - quantile)) if len(entropies_K) else 0.0
    return entropies_K >= threshold, threshold


def at_high_entropy(batch: RolloutBatch, quantile: float) -> tuple[RolloutBatch, dict[str, float]]:
    """Set the weight of all but the tokens of the highest entropy to 0. The batch has `entropies_F`.

    Returns:
        (batch, metrics): `entropy_threshold` (nats), below which a token has no policy loss.
    """
    assert batch.entropies_F is not None
    high_K, threshold = high_entropy_mask(batch.entropies_F[batch.trained_F], quantile)
    weights_F = torch.ones_like(batch.entropies_F) if batch.weights_F is None else batch.weights_F.clone()
    weights_F[batch.trained_F] *= high_K
    return replace(batch, weights_F=weights_F), {"entropy_threshold": threshold}


# DAPO's treatment of overlong responses: a soft penalty on the reward, and a filter of truncated samples (arXiv 2503.14476, section 3.4).


def length_penalty(length: int, limit: int, buffer: int, factor: float) -> float:
    """Penalty of a response, at most 0 (equation 13): it begins where `buffer` tokens are left and reaches -`factor` at the limit.

    Args:
        length: Sampled tokens.
        limit: Longest possible response.
        buffer: Tokens before the limit, at least 1.
        factor: Penalty at the limit.
    """
    excess = length - (limit - buffer)
    return -factor * min(max(excess / buffer, 0.0), 1.0)


def overlong_penalties(group: Group, settings: OverlongConfig, limit: int) -> list[float]:
    """Penalty of each rollout: that of its longest response. `limit`: `rollout.max_new_tokens`."""
    buffer = min(settings.buffer or max(limit // 5, 1), limit)

    def longest(trajectory: Trajectory) -> int:
        return max((step.completion.num_sampled_tokens for step in trajectory.steps if step.completion), default=0)

    return [length_penalty(longest(each), limit, buffer, settings.factor) for each in group.trajectories]


def truncated_turns(batch: RolloutBatch, trajectories: Sequence[Trajectory]) -> Bool[Tensor, " S"]:
    """Turns whose completion ended at the token limit.

    Args:
        batch: S turns.
        trajectories: The rollouts that were packed into it, group after group.
    """
    done = [trajectories[number].steps[step].completion for number, step in batch.turn_places]
    return torch.tensor([each is not None and each.finish_reason == "length" for each in done], dtype=torch.bool)


def without_truncated(batch: RolloutBatch, trajectories: Sequence[Trajectory]) -> tuple[RolloutBatch, dict[str, float]]:
    """Take truncated responses out of the loss and its means; advantages of the others stay as they are.

    Returns:
        (batch, metrics): `filtered_overlong`, the share of turns.
    """
    truncated_S = truncated_turns(batch, trajectories)
    trained_F = batch.trained_F & ~truncated_S[batch.turn_F]
    metrics = {"filtered_overlong": float(truncated_S.float().mean()) if len(batch) else 0.0}
    return replace(batch, trained_F=trained_F, advantages_F=batch.advantages_F * trained_F), metrics
