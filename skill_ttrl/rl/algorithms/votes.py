"""Algorithms that learn from the votes themselves: TTPO, EVOL-RL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from pydantic import Field

from skill_ttrl.config import Section
from skill_ttrl.rl.algorithms.grpo import (
    ALGORITHMS,
    AdvantageEstimate,
    BuiltIn,
    TrainingSamples,
    by_step,
    group_advantages,
    relative_advantages,
    rescored,
)
from skill_ttrl.types import Group, Trajectory, VoteResult

REWARDING = frozenset({"majority", "confidence"})
"""Voting strategies that these algorithms can follow."""


# TTPO: imitate the samples that agree with the vote, and learn from the others by a tenth of GRPO (arXiv 2608.27448).
#
# On hard prompts most labels are wrong, and yet most samples that disagree with them are wrong as well: the negative half of a vote is
# the safe half. The paper's text was not at hand. From notes of it: L = sum over agreeing samples of a distillation loss + 0.1 times
# the GRPO loss of the others. Inferred: that the distillation is the log-likelihood of the sample itself. It is expressed as an
# advantage of 1, whose gradient at the policy that sampled is that of the log-likelihood; over further updates of the same batch the
# clip of the loss bounds it.


AGREEING = "ttpo_agreeing"
"""Metric: share of the samples that are imitated."""


class TTPOOptions(Section):
    """Options of TTPO."""

    distill_weight: float = Field(default=1.0, ge=0)
    """Advantage of a sample that agrees with the vote."""
    grpo_weight: float = Field(default=0.1, ge=0)
    """Factor of the GRPO advantage of a sample that does not."""


@ALGORITHMS.register("ttpo")
class TTPO(BuiltIn):
    """Imitates the samples that agree with the vote, and learns a little from the others."""

    options_type = TTPOOptions
    requires = frozenset({"votes"})
    vote_strategies = REWARDING

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each step."""
        assert samples.votes is not None  # required
        agrees = [match for vote in samples.votes for match in vote.matches]
        base = relative_advantages(samples, group_advantages)
        weight, imitated = self.options.grpo_weight, self.options.distill_weight
        rows = [
            [imitated if match else weight * each for each in by_step(value, len(rollout.steps))]
            for match, value, rollout in zip(agrees, base, samples.trajectories, strict=True)
        ]
        return AdvantageEstimate(rows, metrics={AGREEING: sum(agrees) / len(agrees)} if agrees else {})


# Rewards that favour what is unlike the other samples (EVOL-RL, arXiv 2509.15194, section 4; github.com/YujunZhou/EVOL-RL).
#
# Of two samples that agree with the vote the more novel one earns more, of two that do not the more novel one loses less: within
# each half novelty is scaled to a band of its own, so that no novelty is worth more than agreement.


UPPER, LOWER = (0.5, 1.0), (-1.0, -0.5)
"""Bands of the rewards of samples that agree with the vote, and of those that do not."""
INVALID = -1.0
"""Reward of a sample without an answer."""


def ngram_similarity(sequences: Sequence[Sequence[Hashable]], order: int = 3) -> Float[Array, "N N"]:
    """Cosine similarity of token sequences by the counts of their n-grams, in [0, 1].

    A sequence shorter than the order has one n-gram: itself. An empty one is like nothing but another empty one.

    Args:
        sequences: Token ids, or words, of each of N samples.
        order: n, at least 1.
    """
    counted = [Counter(tuple(ids[at : at + order]) for at in range(max(1, len(ids) - order + 1))) for ids in sequences]
    columns = {gram: place for place, gram in enumerate(dict.fromkeys(gram for counts in counted for gram in counts))}
    counts_N_G = np.zeros((len(counted), len(columns)))
    for row, counts in enumerate(counted):
        for gram, count in counts.items():
            counts_N_G[row, columns[gram]] = count
    scaled_N_G = counts_N_G / np.maximum(np.linalg.norm(counts_N_G, axis=1, keepdims=True), 1e-8)
    return np.asarray(np.clip(scaled_N_G @ scaled_N_G.T, 0.0, 1.0))


def novelty(similarity_N_N: Float[Array, "N N"], agrees_N: Bool[Array, " N"]) -> Float[Array, " N"]:
    """1 - (mean + max) / 2 of each sample's similarity to the others.

    As in the authors' code the mean is over the others of its own half, those that agree with the vote or those that do not (over
    all others where it is the only one), and the maximum over all others.

    Args:
        similarity_N_N: Of N samples with an answer, at least two.
        agrees_N: Whether each agrees with the vote.
    """
    apart_N_N = ~np.eye(len(agrees_N), dtype=bool)
    same_N_N = apart_N_N & (agrees_N[:, None] == agrees_N[None, :])
    peers_N_N = np.where(same_N_N.any(axis=1, keepdims=True), same_N_N, apart_N_N)
    means_N = (similarity_N_N * peers_N_N).sum(axis=1) / peers_N_N.sum(axis=1)
    return np.asarray(1.0 - 0.5 * (means_N + np.where(apart_N_N, similarity_N_N, 0.0).max(axis=1)))


def evol_rl_rewards(
    similarity_N_N: Float[Array, "N N"], agrees_N: Bool[Array, " N"], answered_N: Bool[Array, " N"]
) -> Float[Array, " N"]:
    """Rewards of EVOL-RL: novelty scaled to [0.5, 1] among samples that agree, to [-1, -0.5] among those that do not.

    A sample without an answer has -1 and is compared with none. As in the authors' code a half of equal novelty has the middle of
    its band, and a half of one sample the top of it.

    Args:
        similarity_N_N: Of the N samples of a prompt.
        agrees_N: Whether each agrees with the vote.
        answered_N: Whether each has an answer.
    """
    rewards_N = np.full(len(agrees_N), INVALID)
    valid = np.flatnonzero(answered_N)
    if len(valid) == 1:
        rewards_N[valid] = UPPER[1] if agrees_N[valid[0]] else LOWER[1]
    if len(valid) < 2:
        return rewards_N
    found = novelty(similarity_N_N[np.ix_(valid, valid)], agrees_N[valid])
    for half, (low, high) in ((True, UPPER), (False, LOWER)):
        members = np.flatnonzero(agrees_N[valid] == half)
        if len(members) == 0:
            continue
        values = found[members]
        spread = values.max() - values.min()
        scaled = (values - values.min()) / spread if spread > 1e-12 else np.full(len(members), 0.5)
        rewards_N[valid[members]] = high if len(members) == 1 else low + (high - low) * scaled
    return rewards_N


# EVOL-RL: the majority selects, novelty varies (arXiv 2509.15194). GRPO on `evol_rl_rewards`.
#
# It brings the paper's upper clip of 0.28 and entropy bonus of 0.003. Two differences: novelty is measured among the samples that are
# trained on, and by the token n-grams of completions in place of Qwen3-Embedding-4B: no second model is needed, and a paraphrase counts
# as novel.


SIMILARITY = "evol_rl_similarity"
"""Metric: mean similarity of two samples of a prompt."""


@ALGORITHMS.register("evol_rl")
class EvolRL(BuiltIn):
    """GRPO's advantages of rewards for agreement and novelty."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "loss": {"type": "ppo_clip", "clip_ratio_high": 0.28},
        "entropy_coef": 0.003,
    }
    own_rewards = True
    requires = frozenset({"votes"})
    vote_strategies = REWARDING

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each trajectory; for each step where steps of an episode differ."""
        assert samples.votes is not None  # required
        found = [self._of_prompt(group, vote) for group, vote in zip(samples.groups, samples.votes, strict=True)]
        rewards = [reward for row, _ in found for reward in row]
        likeness = [value for _, value in found if value is not None]
        return AdvantageEstimate(
            relative_advantages(rescored(samples, rewards), group_advantages),
            scores=rewards,
            metrics={SIMILARITY: sum(likeness) / len(likeness)} if likeness else {},
        )

    def _of_prompt(self, group: Group, vote: VoteResult) -> tuple[list[float], float | None]:
        """(reward of each sample, mean similarity of two of them)."""
        if not group.trajectories:
            return [], None
        similarity_N_N = ngram_similarity([_tokens(each) for each in group.trajectories])
        answered_N = np.array([answer is not None for answer in group.answers])
        count = len(answered_N)
        between = (similarity_N_N.sum() - np.trace(similarity_N_N)) / (count * (count - 1)) if count > 1 else None
        return evol_rl_rewards(similarity_N_N, np.array(vote.matches, dtype=bool), answered_N).tolist(), between


def _tokens(trajectory: Trajectory) -> Sequence[Hashable]:
    """The tokens that the model itself wrote, in all of its steps; its words where no tokens are known."""
    written: list[int] = []
    for step in trajectory.steps:
        if step.completion is not None:
            ids, mask = step.completion.token_ids, step.completion.completion_mask
            written += ids if mask is None else [token for token, own in zip(ids, mask, strict=True) if own]
    return written or trajectory.text.split()
