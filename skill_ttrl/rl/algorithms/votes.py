"""Algorithms that learn from the votes themselves: GMAE, SCRL, TTPO, EVOL-RL."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from pydantic import Field

from skill_ttrl.config import Section
from skill_ttrl.errors import ConfigError
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
from skill_ttrl.voting import ballot_of

COUNTING = frozenset({"majority"})
"""Voting strategies that algorithms follow which count the votes themselves."""
REWARDING = COUNTING | {"confidence"}
"""Those that only reward."""


@dataclass(frozen=True, slots=True)
class VotePool:
    """The votes of one prompt: M samples voted, G of them are trained on. Failed rollouts are not among them."""

    class_sizes: Sequence[int]
    """Samples of each class of equal answers, most first."""
    silent: int
    """Samples without an answer."""
    class_ids: Sequence[int]
    """Class of each of the M samples, -1 without an answer."""
    trained: Sequence[int]
    """Class of each of the G trained samples, -1 without an answer."""
    surprise: Sequence[float] | None
    """Mean -log p (nats a token) of the tokens of each of the M samples; None where log-probs are not known."""

    @property
    def shares(self) -> list[float]:
        """Share of each class of all M samples."""
        return [size / len(self.class_ids) for size in self.class_sizes]


def pools_of(samples: TrainingSamples) -> list[VotePool]:
    """Count the votes of each group's task. Where the voters are not known they are the group's own rollouts."""
    return [pool_of(*pair) for pair in zip(samples.groups, samples.voters or samples.groups, strict=True)]


def pool_of(group: Group, voters: Group) -> VotePool:
    """Count the votes of one task.

    Args:
        group: The rollouts that are trained on.
        voters: All that voted, those of the group among them.
    """
    whole = voters.select([place for place, each in enumerate(voters.trajectories) if each.error is None])
    ballot = ballot_of(whole)
    tally = ballot.tally()
    classes = dict(zip(ballot.answers, tally.class_ids, strict=True))
    surprise = None
    if ballot.logprobs is not None and ballot.lengths is not None:
        surprise = [-total / max(1, count) for total, count in zip(ballot.logprobs, ballot.lengths, strict=True)]
    return VotePool(
        class_sizes=tuple(tally.votes.values()),
        silent=tally.keys.count(None),
        class_ids=tally.class_ids,
        trained=tuple(classes[answer] for answer in group.answers),
        surprise=surprise,
    )


# Advantages over all groups that a sample could have been in (GMAE, arXiv 2609.36750), exactly.
#
# Of M samples of a prompt that voted, G are trained on. Which other G - 1 a sample is compared with is chance, and in another group
# another answer may win. A context of sample i is i with G - 1 of the other M - 1, each choice equally likely; in it the most
# frequent answer wins (ties: each of the tied is equally likely to have appeared first), and a sample that agrees earns 1, others 0.
#
# The class counts of a context follow a multivariate hypergeometric distribution. It is that of independent binomial counts given
# their sum, so a product of polynomials, one factor for each class, with the number of tied classes as a second exponent, gives
# every probability below without enumerating a context.
#
# A context of which S samples earn 1 has the mean S / G and the (population) deviation sqrt(S (G - S)) / G, hence GRPO's advantages
# sqrt((G - S) / S) for a reward of 1 and -sqrt(S / (G - S)) for one of 0; 0 where all or none earn it.
#
# The paper's text was not at hand. From notes of it: the probability p_i, the two advantages, and the sum S of the others as a
# Poisson binomial (`poisson_binomial_advantages`). Inferred: ties, and samples without an answer, which never earn anything.


def reward_probabilities(class_sizes: Sequence[int], silent: int, group_size: int) -> list[float]:
    """Share of a sample's contexts in which its answer wins, for a sample of each class.

    Args:
        class_sizes: Samples of each class among the M that voted, each at least 1.
        silent: Samples among them without an answer.
        group_size: G, from 1 to M.

    Raises:
        ValueError: the group is not a part of those that voted.
    """
    voters = sum(class_sizes) + silent
    if not 1 <= group_size <= voters:
        raise ValueError(f"A group of {group_size} cannot be drawn from {voters} samples that voted.")
    known: dict[int, float] = {}
    for size in set(class_sizes):
        rest = list(class_sizes)
        rest.remove(size)
        known[size] = _wins(size, rest, silent, group_size)
    return [known[size] for size in class_sizes]


def _wins(size: int, rest: Sequence[int], silent: int, group_size: int) -> float:
    """Probability that the class of a sample wins in its contexts; it has `size` samples, this one among them."""
    own, drawn = size - 1, group_size - 1
    others = own + sum(rest) + silent
    rate = drawn / others if others else 0.0
    mine, wins_S = _binomial(own, rate), np.zeros(group_size + 1)
    for votes in range(1, min(size, group_size) + 1):
        ways_T = _ways(rest, silent, rate, votes, drawn)[drawn - votes + 1]
        wins_S[votes] = (mine[votes - 1] * ways_T / np.arange(1, len(ways_T) + 1)).sum()
    return float((wins_S / _binomial(others, rate)[drawn]).sum())


def _ways(rest: Sequence[int], silent: int, rate: float, most: int, drawn: int) -> Float[Array, "D T"]:
    """Probability that the other classes give d samples, d = 0 to `drawn`, none has more than `most`, and t have just as many."""
    ties = min(drawn // most, sum(size >= most for size in rest))
    ways = np.zeros((drawn + 1, ties + 1))
    free = _binomial(silent, rate)[: drawn + 1]
    ways[: len(free), 0] = free
    for size in rest:
        chances = _binomial(size, rate)
        after = np.zeros_like(ways)
        for count in range(min(size, most - 1, drawn) + 1):
            after[count:] += chances[count] * ways[: drawn + 1 - count]
        if size >= most and drawn >= most:
            after[most:, 1:] += chances[most] * ways[: drawn + 1 - most, :-1]
        ways = after
    return ways


@lru_cache(maxsize=4096)
def _binomial(count: int, rate: float) -> Float[Array, " K"]:
    """Probability of k = 0 to `count` successes."""
    if rate in (0.0, 1.0):
        return np.array([float(k == rate * count) for k in range(count + 1)])
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(rate) + (count - k) * math.log1p(-rate)
        for k in range(count + 1)
    ]  # fmt: skip
    return np.exp(logs)


def poisson_binomial_advantages(probabilities: Sequence[float]) -> Float[Array, " G"]:
    """Expected GRPO advantages where the rewards of a group of G are independent, each 1 with a probability of its own.

    A_i = p_i E[sqrt((G - S) / S)] - (1 - p_i) E[sqrt(S' / (G - S'))], with S' the Poisson-binomial sum of the others and
    S = 1 + S'.

    Args:
        probabilities: p of each sample of the group (G), in [0, 1].

    Returns:
        Advantages (G,). Where each p is 0 or 1 they are GRPO's, with the population deviation.
    """
    size = len(probabilities)
    # Advantage of a reward of 1 and of one of 0 beside s = 0 to G - 1 others that earn 1.
    rewarded_S = np.array([math.sqrt((size - s - 1) / (s + 1)) for s in range(size)])
    unrewarded_S = np.array([-math.sqrt(s / (size - s)) for s in range(size)])
    found: dict[float, float] = {}
    for chosen in set(probabilities):
        others = list(probabilities)
        others.remove(chosen)
        sum_S = np.array([1.0])
        for p in others:
            sum_S = np.convolve(sum_S, [1.0 - p, p])
        found[chosen] = float(chosen * (sum_S @ rewarded_S) + (1.0 - chosen) * (sum_S @ unrewarded_S))
    return np.array([found[p] for p in probabilities])


# GMAE: each sample's advantage is its mean over the groups that it could have been in (arXiv 2609.36750).
#
# TTRL draws 64 samples to vote and trains on 32 of them: all that voted are the pool that contexts are drawn from.


REWARD = "gmae_reward"
"""Metric: mean probability of a sample to be rewarded."""


@ALGORITHMS.register("gmae")
class GMAE(BuiltIn):
    """The mean advantage of a sample over all groups that it could have been in."""

    requires = frozenset({"votes"})
    vote_strategies = COUNTING
    binary_rewards = True

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each trajectory."""
        rows = [self._of_prompt(pool) for pool in pools_of(samples)]
        rewards = [reward for row, _ in rows for reward in row]
        return AdvantageEstimate(
            [value for _, row in rows for value in row],
            scores=rewards,
            metrics={REWARD: sum(rewards) / len(rewards)} if rewards else {},
        )

    def _of_prompt(self, pool: VotePool) -> tuple[list[float], list[float]]:
        """(probability of a reward, advantage) of each trained sample."""
        if not pool.trained:
            return [], []
        chances = reward_probabilities(pool.class_sizes, pool.silent, len(pool.trained))
        rewards = [chances[place] if place >= 0 else 0.0 for place in pool.trained]
        return rewards, poisson_binomial_advantages(rewards).tolist()


# Selective and complementary pseudo-labels (SCRL, arXiv 2603.19880): a positive label where the vote is clear, negative ones where it is not.
#
# The rules are those of the paper and of its authors' code (github.com/Jasper-Yan/SCRL, `scrl_utils.py`). Of the code, not of the
# paper's equations: a sample without an answer gets -1.


POSITIVE, NEGATIVES = "scrl/pseudo_positive_ratio", "scrl/avg_num_negatives"
"""Metrics: share of prompts with a positive label, and mean number of negative ones, in the authors' names."""


POSITIVE_SHARE = 0.5
"""Least share of all votes that makes a positive label."""
MARGIN = 0.15
"""By more than this it leads the second answer."""
NEGATIVE_SHARE = 0.15
"""An answer with a smaller share, and with at least the prompt's mean entropy, is a negative label."""


@dataclass(frozen=True, slots=True)
class SCRLLabels:
    """Classes of answers that are labels."""

    positive: int | None
    """The class that is taken for true; None where none is clear enough."""
    negatives: Collection[int]
    """Classes that are taken for wrong; all others earn 0."""


def scrl_labels(shares: Sequence[float], entropies: Sequence[float], mean_entropy: float) -> SCRLLabels:
    """Choose the labels of a prompt.

    Args:
        shares: Share of each class of answers among all samples (C), largest first; samples without an answer count below the line.
        entropies: Mean entropy of the samples of each class (C), nats a token.
        mean_entropy: That of all samples of the prompt.
    """
    first, second = (*shares, 0.0, 0.0)[:2]
    clear = bool(shares) and first >= POSITIVE_SHARE and (len(shares) == 1 or first - second > MARGIN)
    positive = 0 if clear else None
    negatives = [
        place
        for place, (share, entropy) in enumerate(zip(shares, entropies, strict=True))
        if place != positive and share < NEGATIVE_SHARE and entropy >= mean_entropy
    ]
    return SCRLLabels(positive, frozenset(negatives))


def scrl_reward(place: int, labels: SCRLLabels) -> float:
    """Reward a sample by its class; -1 where it has none: it gave no answer."""
    return -1.0 if place < 0 else float(place == labels.positive) - float(place in labels.negatives)


# SCRL: GRPO on rewards of 1, 0 and -1, where a weak vote gives no positive label but may give negative ones (arXiv 2603.19880).
#
# A difference: an answer's entropy is the mean of -log p of its sampled tokens, an unbiased
# estimate that costs no forward pass; the authors take the entropy of the whole distribution at each token.


@ALGORITHMS.register("scrl")
class SCRL(BuiltIn):
    """GRPO's advantages of the rewards that positive and negative labels give."""

    requires = frozenset({"votes"})
    own_rewards = True
    vote_strategies = COUNTING

    def advantages(self, samples: TrainingSamples) -> AdvantageEstimate:
        """One for each trajectory; for each step where steps of an episode differ."""
        found = [self._of_prompt(pool) for pool in pools_of(samples)]
        rewards = [reward for _, row in found for reward in row]
        scored = rescored(samples, rewards)
        prompts = max(1, len(found))
        return AdvantageEstimate(
            relative_advantages(scored, group_advantages),
            scores=rewards,
            metrics={
                POSITIVE: sum(labels.positive is not None for labels, _ in found) / prompts,
                NEGATIVES: sum(len(labels.negatives) for labels, _ in found) / prompts,
            },
        )

    def _of_prompt(self, pool: VotePool) -> tuple[SCRLLabels, list[float]]:
        """The labels of a prompt, and the reward of each trained sample."""
        if pool.surprise is None:
            raise ConfigError(
                "rl.algorithm=scrl needs the log-probability of every sampled token; these rollouts have none."
            )
        by_class: list[list[float]] = [[] for _ in pool.class_sizes]
        for value, place in zip(pool.surprise, pool.class_ids, strict=True):
            if place >= 0:
                by_class[place].append(value)
        seen = (pool.shares, [fmean(values) for values in by_class], fmean(pool.surprise or [0.0]))
        labels = scrl_labels(*seen)
        return labels, [scrl_reward(place, labels) for place in pool.trained]


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
