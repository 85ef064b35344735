"""Group-relative algorithms with other baselines: RLOO, OPO, pass@k, GPG."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.advantages import gpg_advantages, opo_advantages, passk_advantages, rloo_advantages
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, TrainingSamples
from skill_ttrl.rl.algorithms.group_relative.relative import (
    GroupRelative,
    LevelOptions,
    relative_advantages,
)


@ALGORITHMS.register("rloo")
class RLOO(GroupRelative):
    """Reward minus the mean of the group's others (arXiv 2402.14740)."""

    options_type: ClassVar[type[Section]] = LevelOptions

    def estimate(
        self,
        rewards: Sequence[float] | Tensor,
        groups: Sequence[Hashable] | Tensor,
        episodes: Sequence[Hashable] | None = None,
    ) -> Tensor:
        """See `rloo_advantages`."""
        return rloo_advantages(rewards, groups, episodes)


@ALGORITHMS.register("opo")
class OPO(GroupRelative):
    """Reward minus the group's mean weighted by length (arXiv 2505.23585)."""

    takes_shaped_votes = False

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each trajectory; its length is the number of its trained tokens, in all of its steps.

        Raises:
            ConfigError: the samples are texts, whose tokens are not known.
        """
        lengths = trained_tokens(samples)
        if lengths and samples.batch is None and not any(lengths):
            raise ConfigError(
                "rl.algorithm=opo weighs responses by their tokens, and these are texts without tokens. Use grpo or rloo."
            )
        return AdvantageEstimate(relative_advantages(samples, partial(opo_advantages, lengths=lengths)))


class PassKOptions(Section):
    """Options of pass@k training."""

    scale: bool = True
    """Divide by the group's standard deviation (verl: `norm_adv_by_std_in_grpo`)."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the group's standard deviation, where `scale` divides by it."""


@ALGORITHMS.register("grpo_passk")
class PassK(GroupRelative):
    """The best of a group alone, by how far it is above the second best: pass@k, k the group's size (arXiv 2503.19595)."""

    options_type: ClassVar[type[Section]] = PassKOptions

    def estimate(self, rewards: Sequence[float] | Tensor, groups: Sequence[Hashable] | Tensor) -> Tensor:
        """See `passk_advantages`."""
        return passk_advantages(rewards, groups, self.options.epsilon, scale=self.options.scale)


class GPGOptions(Section):
    """Options of GPG."""

    f_norm: float = Field(default=1.0, gt=0)
    """Divisor of the centred rewards (verl: 1)."""


@ALGORITHMS.register("gpg")
class GPG(GroupRelative):
    """Centred rewards, scaled up for the rollouts of the batch that earned nothing (arXiv 2504.02546)."""

    options_type: ClassVar[type[Section]] = GPGOptions
    takes_shaped_votes = False

    def estimate(self, rewards: Sequence[float] | Tensor, groups: Sequence[Hashable] | Tensor) -> Tensor:
        """See `gpg_advantages`."""
        return gpg_advantages(rewards, groups, self.options.f_norm)


def trained_tokens(samples: TrainingSamples) -> list[int]:
    """Trained tokens of each trajectory, in all of its steps."""
    counts = []
    for trajectory in samples.trajectories:
        done = [step.completion for step in trajectory.steps if step.completion is not None]
        counts.append(sum(sum(each.completion_mask) if each.completion_mask else len(each.token_ids) for each in done))
    return counts
