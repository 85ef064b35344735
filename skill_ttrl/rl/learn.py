"""One update, from rewarded rollouts to new weights: scores → KL penalty → advantages → gradient.

The order is verl's. Advantages are computed where the votes are; only `Learner.score` and `Learner.update` touch the model, so a
learner may span several processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.algorithms import AdvantageEstimate, TrainingSamples, build_algorithm
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.correction import choose_correction, corrected
from skill_ttrl.rl.kl import KLController, apply_kl_penalty
from skill_ttrl.rl.learner import Learner
from skill_ttrl.rl.pack import pack, with_advantages
from skill_ttrl.types import Group, VoteResult

VOTED = "majority"
"""The reward that the votes decide."""


class UpdateRule:
    """How a step's rollouts change the weights.

    Args:
        config: Algorithm, correction and KL penalty.
        sampler_is_learner: The learner's own model samples, so its log-probs need no correction by default.

    Raises:
        ConfigError: there is no such algorithm or correction, or an option is wrong.
    """

    def __init__(self, config: RLConfig, *, sampler_is_learner: bool) -> None:
        self.config = config
        self.algorithm = build_algorithm(config.algorithm)
        self.correction = choose_correction(config, sampler_is_learner=sampler_is_learner)
        self.kl = None if config.kl_in_reward is None else KLController.of(config.kl_in_reward)

    def __call__(
        self,
        learner: Learner,
        groups: Sequence[Group],
        votes: Sequence[VoteResult],
        *,
        step: int,
        seed: int,
        temperature: float,
    ) -> dict[str, float]:
        """Learn from one step's rollouts.

        Args:
            learner: What learns.
            groups: Rollouts with rewards.
            votes: The vote of each group, as it bears on these rollouts. The algorithm has them where `rl.reward` is `majority`.
            step: Number of the step, 0 for the first.
            seed: The run's seed.
            temperature: At which the tokens were sampled.

        Returns:
            Metrics of the correction, the KL penalty, the algorithm and `Learner.update`.
        """
        penalty = self.config.invalid_penalty
        batch = pack(groups, invalid_penalty=penalty)
        # Three forward passes at most, none where nothing asks for them.
        batch = learner.score(
            batch,
            temperature=temperature,
            own=self.correction is not None,
            reference=self.config.kl_coef > 0 or self.kl is not None,
        )
        metrics: dict[str, float] = {}
        if self.correction is not None:
            batch, gap = corrected(batch, self.correction, self.config.rollout_correction.threshold)
            metrics |= gap
        if self.kl is not None:
            batch, kl_metrics = apply_kl_penalty(batch, self.kl)
            metrics |= kl_metrics
        samples = TrainingSamples(groups, votes if self.config.reward == VOTED else None, penalty, batch)
        batch, found = self.estimate(samples, batch)
        return metrics | dict(found) | learner.update(batch, step=step, seed=seed, temperature=temperature)

    def estimate(self, samples: TrainingSamples, batch: RolloutBatch) -> tuple[RolloutBatch, Mapping[str, float]]:
        """Estimate the batch's advantages; gives the metrics of the algorithm too."""
        found = self.algorithm.advantages(samples)
        if not isinstance(found, AdvantageEstimate):
            found = AdvantageEstimate(found)
        batch = with_advantages(batch, samples.groups, found.advantages)
        return replace(batch, returns_F=found.returns_F), found.metrics

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return {} if self.kl is None else {"kl_coef": self.kl.coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if self.kl is not None and "kl_coef" in state:
            self.kl.coef = float(state["kl_coef"])
