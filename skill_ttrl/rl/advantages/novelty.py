"""Rewards that favour what is unlike the other samples (EVOL-RL, arXiv 2509.15194, section 4; github.com/YujunZhou/EVOL-RL).

Of two samples that agree with the vote the more novel one earns more, of two that do not the more novel one loses less: within
each half novelty is scaled to a band of its own, so that no novelty is worth more than agreement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

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
    return cosine_similarity(counts_N_G)


def cosine_similarity(vectors_N_D: Float[Array, "N D"]) -> Float[Array, "N N"]:
    """Cosine similarity of vectors, clipped to [0, 1] as the authors do."""
    vectors_N_D = np.asarray(vectors_N_D, dtype=np.float64)
    norms_N = np.maximum(np.linalg.norm(vectors_N_D, axis=1, keepdims=True), 1e-8)
    scaled_N_D = vectors_N_D / norms_N
    return np.asarray(np.clip(scaled_N_D @ scaled_N_D.T, 0.0, 1.0))


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
