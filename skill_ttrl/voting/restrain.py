"""RESTRAIN: the whole distribution of the votes is the label, and weak votes are a penalty."""

from __future__ import annotations

import math

from skill_ttrl.types import VoteResult
from skill_ttrl.voting.ballot import Ballot
from skill_ttrl.voting.strategies import check_range, shaping, strategy


@strategy("restrain", base_majority_ratio="prompt_weight")
@shaping
def restrain(
    ballot: Ballot,
    *,
    center: float = 1.0,
    sigma: float = 0.5,
    kappa: float = 0.2,
    delta: float = 1.0,
    prompt_weight: bool = True,
) -> VoteResult:
    """Every class is a pseudo-label, weighted by its share (RESTRAIN, arXiv 2510.02172).

    L(x) = u_x Σ_j w_j L_GRPO(x, a_j), that is A_i = u_x (Σ_j w_j A_i^(j) - δ'), where A^(j) are the advantages for rewards
    1[sample in class j]:

    - w_j = g(f_j) / Σ_l g(f_l), f_j the share of class j, g(f) = exp(-(f - k)² / 2σ²), k `center`;
    - M = max_j f_j < κ: all rewards are 0 and δ' = δ; otherwise δ' = 0. Then there is no winner either;
    - u_x = g(share of the majority under the policy before training), measured once.

    The paper's form of κ is a number of votes; here it is a share, so that it does not change with the number of samples. Its
    values of k, σ, κ and δ were not at hand: the defaults are ours, in the ranges that its text describes (k in [0, 1], σ not
    as small as 0.1).

    Args:
        ballot: With `base_majority_ratio` where `prompt_weight` is true.
        center: k, in [0, 1].
        sigma: σ, above 0. Small: the largest class alone; large: all classes alike.
        kappa: κ, in [0, 1].
        delta: δ, at least 0.
        prompt_weight: Whether u_x is applied; false is the paper's ablation, and needs no `base_majority_ratio`.

    Raises:
        ConfigError: an option is out of its range.
    """
    check_range(center, "center", 0, 1)
    check_range(sigma, "sigma", 0, above=True)
    check_range(kappa, "kappa", 0, 1)
    check_range(delta, "delta", 0)

    def log_shaped(share: float) -> float:
        return -((share - center) ** 2) / (2 * sigma**2)

    weight = (
        math.exp(log_shaped(ballot.base_majority_ratio))
        if prompt_weight and ballot.base_majority_ratio is not None
        else 1.0
    )
    counted = ballot.tally()
    if counted.share < kappa:
        return counted.no_winner(weight=weight, penalty=float(delta), flags=("weak",))
    logs = {key: log_shaped(count / len(counted.keys)) for key, count in counted.votes.items()}
    top = max(logs.values(), default=0.0)  # taken off: with a small sigma every g would be rounded to 0
    shaped = {key: math.exp(value - top) for key, value in logs.items()}
    total = math.fsum(shaped.values())
    scores = {key: value / total for key, value in shaped.items()}
    return counted.result(
        scores, class_ids=counted.class_ids, label_weights=tuple(scores[key] for key in counted.votes), weight=weight
    )
