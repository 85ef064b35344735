"""Group-relative algorithms with other baselines: RLOO, OPO, pass@k, GPG."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, AdvantageEstimate, Groups, Rewards, TrainingSamples
from skill_ttrl.rl.algorithms.grpo import (
    GroupRelative,
    LevelOptions,
    read_episodes,
    read_groups,
    relative_advantages,
)
from skill_ttrl.types import equal_rewards


@ALGORITHMS.register("rloo")
class RLOO(GroupRelative):
    """Reward minus the mean of the others of its group: REINFORCE with a leave-one-out baseline (arXiv 2402.14740).

    A group of one has no others: its baseline is 0, as in verl (SkyRL: its advantage is 0). A group whose rewards are all equal
    gets exactly 0. With `episodes`, a reward is that of one step, and the baseline is the mean over the other episodes, each of
    which weighs the same.
    """

    options_type = LevelOptions

    def estimate(
        self, rewards: Rewards, groups: Groups, episodes: Sequence[Hashable] | None = None
    ) -> Float[Tensor, " N"]:
        """Estimate advantages (N,) of rewards (N,) of these groups (N,), or of the steps of these episodes (N,)."""
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


def opo_advantages(rewards: Rewards, groups: Groups, lengths: Sequence[float]) -> Float[Tensor, " N"]:
    """Reward minus the group's mean weighted by length: sum(l r) / sum(l) (OPO, arXiv 2505.23585).

    That is the baseline of least variance where the squared norm of a response's gradient grows with its length. A group of
    one keeps its reward, as in verl. A group whose rewards are all equal gets exactly 0.

    Args:
        rewards: One for each of N rollouts.
        groups: Group of each.
        lengths: Trained tokens of each (N).
    """
    rewards_N, members = read_groups(rewards, groups)
    lengths_N = torch.tensor(lengths, dtype=torch.float64)
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


@ALGORITHMS.register("opo")
class OPO(GroupRelative):
    """Reward minus the group's mean weighted by length; see `opo_advantages`."""

    takes_shaped_votes = False

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each trajectory; its length is the number of its trained tokens, in all of its steps.

        Raises:
            ConfigError: the samples are texts, whose tokens are not known.
        """
        lengths = []
        for each in samples.trajectories:
            done = [step.completion for step in each.steps if step.completion is not None]
            lengths.append(sum(sum(one.completion_mask or (True,) * len(one.token_ids)) for one in done))
        if lengths and samples.batch is None and not any(lengths):
            raise ConfigError(
                "rl.algorithm=opo weights responses by their number of tokens, but these are texts without tokens. Use grpo or rloo."
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
    """(Best - second best) / std for the best of a group, 0 for all others: pass@k, k the group's size (arXiv 2503.19595).

    Where several are best, as with rewards 0 and 1 and two successes, all get 0: one more success would not raise pass@k. A
    group of one gets 0; verl refuses it.
    """

    options_type = PassKOptions

    def estimate(self, rewards: Rewards, groups: Groups) -> Float[Tensor, " N"]:
        """Estimate advantages (N,) of rewards (N,) of these groups (N,)."""
        rewards_N, members = read_groups(rewards, groups)
        advantages_N = torch.zeros_like(rewards_N)
        for positions in members:
            if len(positions) == 1:
                continue
            rewards_G = rewards_N[positions]
            best, places = torch.topk(rewards_G, 2)
            if equal_rewards(best.tolist()):
                continue
            divisor = float(rewards_G.std()) + self.options.epsilon if self.options.scale else 1.0
            advantages_N[positions[int(places[0])]] = (best[0] - best[1]) / divisor
        return advantages_N.float()


class GPGOptions(Section):
    """Options of GPG."""

    f_norm: float = Field(default=1.0, gt=0)
    """Divisor of the centred rewards (verl: 1)."""


@ALGORITHMS.register("gpg")
class GPG(GroupRelative):
    """A = alpha (r - mean) / f_norm, where alpha is N over the number of rewards that are not 0 (arXiv 2504.02546).

    It makes up for rollouts that contribute nothing; GPG counts whole groups without signal, verl rewards of 0, and so does
    this. A group of one keeps its reward, as in verl. A group whose rewards are all equal gets exactly 0.
    """

    options_type = GPGOptions
    takes_shaped_votes = False

    def estimate(self, rewards: Rewards, groups: Groups) -> Float[Tensor, " N"]:
        """Estimate advantages (N,) of rewards (N,) of these groups (N,)."""
        rewards_N, members = read_groups(rewards, groups)
        alpha = len(rewards_N) / max(int((rewards_N != 0).sum()), 1)
        advantages_N = torch.zeros_like(rewards_N)
        for positions in members:
            rewards_G = rewards_N[positions]
            if len(positions) == 1:
                advantages_N[positions] = alpha * rewards_G / self.options.f_norm
            elif not equal_rewards(rewards_G.tolist()):
                advantages_N[positions] = alpha * (rewards_G - rewards_G.mean()) / self.options.f_norm
        return advantages_N.float()
