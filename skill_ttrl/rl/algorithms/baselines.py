"""Group-relative algorithms with other baselines: RLOO, OPO, pass@k, GPG."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, TrainingSamples
from skill_ttrl.rl.algorithms.grpo import (
    GroupRelative,
    LevelOptions,
    read_episodes,
    read_groups,
    relative_advantages,
)
from skill_ttrl.types import equal_rewards


def rloo_advantages(
    rewards: Sequence[float] | Tensor,
    groups: Sequence[Hashable] | Tensor,
    episodes: Sequence[Hashable] | None = None,
) -> Float[Tensor, " N"]:
    """Reward minus the mean of the others of its group: REINFORCE with a leave-one-out baseline (RLOO, arXiv 2402.14740).

    A group of one has no others: its baseline is 0, as in verl (SkyRL: its advantage is 0). A group whose rewards are all equal
    gets exactly 0. With `episodes`, a reward is that of one step, and the baseline is the mean over the other episodes, each of
    which weighs the same.

    Args:
        rewards: One for each of N rollouts, or steps.
        groups: Group of each.
        episodes: Episode of each step, of one group only; None: each reward is that of a whole rollout.

    Returns:
        Advantages (N,), float32.

    Raises:
        ValueError: the lengths differ.
    """
    rewards_N, members = read_groups(rewards, groups)
    owners = read_episodes(episodes, len(rewards_N))
    advantages_N = rewards_N.clone()
    for positions in members:
        rewards_G = rewards_N[positions]
        names = [owners[place] for place in positions]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        if len(numbers) == 1:
            continue
        if equal_rewards(rewards_G.tolist()):
            advantages_N[positions] = 0.0
            continue
        episode_G = torch.tensor([numbers[name] for name in names])
        sums_E = torch.zeros(len(numbers), dtype=torch.float64).index_add(0, episode_G, rewards_G)
        means_E = sums_E / torch.bincount(episode_G)
        baseline_E = (means_E.sum() - means_E) / (len(numbers) - 1)
        advantages_N[positions] = rewards_G - baseline_E[episode_G]
    return advantages_N.float()


def opo_advantages(
    rewards: Sequence[float] | Tensor,
    groups: Sequence[Hashable] | Tensor,
    lengths: Sequence[float] | Tensor,
) -> Float[Tensor, " N"]:
    """Reward minus the group's mean weighted by length: sum(l r) / sum(l) (OPO, arXiv 2505.23585).

    That is the baseline of least variance where the squared norm of a response's gradient grows with its length. A group of
    one keeps its reward, as in verl. A group whose rewards are all equal gets exactly 0.

    Args:
        rewards: One for each of N rollouts.
        groups: Group of each.
        lengths: Trained tokens of each (N).

    Returns:
        Advantages (N,), float32.

    Raises:
        ValueError: the lengths of the arguments differ.
    """
    rewards_N, members = read_groups(rewards, groups)
    lengths_N = torch.as_tensor(lengths, dtype=torch.float64)
    if lengths_N.shape != rewards_N.shape:
        raise ValueError(f"Expected one length for each of {len(rewards_N)} rewards, found {tuple(lengths_N.shape)}.")
    advantages_N = rewards_N.clone()
    for positions in members:
        if len(positions) == 1:
            continue
        rewards_G, lengths_G = rewards_N[positions], lengths_N[positions]
        total = float(lengths_G.sum())
        if equal_rewards(rewards_G.tolist()) or total == 0:
            advantages_N[positions] = 0.0
        else:
            advantages_N[positions] = rewards_G - (lengths_G * rewards_G).sum() / total
    return advantages_N.float()


def passk_advantages(
    rewards: Sequence[float] | Tensor,
    groups: Sequence[Hashable] | Tensor,
    epsilon: float = 1e-6,
    *,
    scale: bool = True,
) -> Float[Tensor, " N"]:
    """(Best - second best) / std for the best of a group, 0 for all others: the gradient of pass@k (arXiv 2503.19595).

    Where several are best, as with rewards 0 and 1 and two successes, all get 0: one more success would not raise pass@k. A
    group of one gets 0; verl refuses it.

    Args:
        rewards: One for each of N rollouts.
        groups: Group of each.
        epsilon: Added to the standard deviation, which is the unbiased one.
        scale: Divide by the standard deviation.

    Returns:
        Advantages (N,), float32.

    Raises:
        ValueError: the lengths differ.
    """
    rewards_N, members = read_groups(rewards, groups)
    advantages_N = torch.zeros_like(rewards_N)
    for positions in members:
        if len(positions) == 1:
            continue
        rewards_G = rewards_N[positions]
        best, places = torch.topk(rewards_G, 2)
        if equal_rewards(best.tolist()):
            continue
        divisor = float(rewards_G.std()) + epsilon if scale else 1.0
        advantages_N[positions[int(places[0])]] = (best[0] - best[1]) / divisor
    return advantages_N.float()


def gpg_advantages(
    rewards: Sequence[float] | Tensor, groups: Sequence[Hashable] | Tensor, divisor: float = 1.0
) -> Float[Tensor, " N"]:
    """A = alpha (r - mean) / divisor, where alpha is N over the number of rewards that are not 0 (GPG, arXiv 2504.02546).

    It makes up for rollouts that contribute nothing; GPG counts whole groups without signal, verl rewards of 0, and so does
    this. A group of one keeps its reward, as in verl. A group whose rewards are all equal gets exactly 0.

    Args:
        rewards: One for each of N rollouts.
        groups: Group of each.
        divisor: GPG's F_norm.

    Returns:
        Advantages (N,), float32.

    Raises:
        ValueError: the lengths differ.
    """
    rewards_N, members = read_groups(rewards, groups)
    alpha = len(rewards_N) / max(int((rewards_N != 0).sum()), 1)
    advantages_N = torch.zeros_like(rewards_N)
    for positions in members:
        rewards_G = rewards_N[positions]
        if len(positions) == 1:
            advantages_N[positions] = alpha * rewards_G / divisor
        elif not equal_rewards(rewards_G.tolist()):
            advantages_N[positions] = alpha * (rewards_G - rewards_G.mean()) / divisor
    return advantages_N.float()


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
