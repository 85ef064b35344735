"""Votes that are not one sample, one vote: weighted by confidence, tempered, gated by agreement, over two wordings, or for every class."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction

from skill_ttrl.errors import ConfigError
from skill_ttrl.types import VoteResult
from skill_ttrl.voting.ballot import Ballot
from skill_ttrl.voting.strategies import check_range, shaping, strategy
from skill_ttrl.voting.tally import tally


@strategy("confidence", "logprobs", lengths="per_token")
def confidence(ballot: Ballot, *, per_token: bool = True, temperature: float = 1.0) -> VoteResult:
    """Each sample's vote weighs what the policy thought of it; the class with the largest sum of weights wins.

    w_i = exp(s_i / T) / Σ_j exp(s_j / T) over the samples j of the group that gave an answer, where s_i is the mean log-prob
    (nats) of the sample's tokens, or with `per_token` false the sum, which favours short samples. With the defaults this is
    the normalised weighted sum of self-consistency (arXiv 2203.11171, table 1); the softmax with a temperature is that of
    CISC (arXiv 2502.06233). Rewards are 1 for the winner's class.

    Args:
        ballot: With `logprobs`, and `lengths` where `per_token` is true.
        per_token: Divide a sample's log-prob by its tokens.
        temperature: T, above 0. A large one gives back the majority.

    Raises:
        ConfigError: the temperature is not above 0, or a log-prob is not finite.
    """
    check_range(temperature, "temperature", 0, above=True)
    assert ballot.logprobs is not None  # `vote` has looked
    counted = ballot.tally()
    lengths = ballot.lengths if per_token and ballot.lengths is not None else (1,) * len(ballot.answers)
    pairs = zip(counted.keys, ballot.logprobs, lengths, strict=True)
    heats = [(key, logprob / max(1, length) / temperature) for key, logprob, length in pairs if key is not None]
    if not all(math.isfinite(heat) for _, heat in heats):
        raise ConfigError(
            f"The votes of {ballot.prompt!r} have a log-prob that is not finite; confidence cannot weigh it."
        )
    top = max((heat for _, heat in heats), default=0.0)
    weights: dict[str, list[float]] = defaultdict(list)
    for key, heat in heats:
        weights[key].append(math.exp(heat - top))
    # fsum rounds once, so the sums do not depend on the order of the samples.
    total = math.fsum(weight for members in weights.values() for weight in members)
    return counted.result({key: math.fsum(weights[key]) / total for key in counted.votes})


@strategy("soft")
def soft(ballot: Ballot, *, temperature: float = 1.0) -> VoteResult:
    """Every answer is rewarded by how common it is; the winner, which is only measured, is the majority.

    r_i = f_c^(1/T) / Σ_k f_k^(1/T) for a sample of class c, f the classes' shares of all samples; each sample without an answer
    is a class of its own in the sum. T = 1 is EMPO (arXiv 2504.05812, §3: the probability of the sample's semantic cluster);
    T → 0 is the majority's reward. Of the ballot only the answers count; `temperature` is T, above 0.

    Raises:
        ConfigError: the temperature is not above 0.
    """
    check_range(temperature, "temperature", 0, above=True)
    counted = ballot.tally()
    most = max(counted.votes.values(), default=1)
    powers = {key: (count / most) ** (1 / temperature) for key, count in counted.votes.items()}
    silent = [(1 / most) ** (1 / temperature)] * counted.keys.count(None)
    total = math.fsum([*powers.values(), *silent])
    scores = {key: power / total for key, power in powers.items()}
    return counted.result(scores, rewards=tuple(0.0 if key is None else scores[key] for key in counted.keys))


@strategy("gated")
def gated(ballot: Ballot, *, threshold: float = 0.5) -> VoteResult:
    """The majority, but only where its share of all samples is at least `threshold`; below, nobody wins.

    Such a prompt is skipped: no sample is rewarded and nothing is learnt from it. Rollouts without a majority are masked out in
    "You Need Reasoning to Learn Reasoning" (Roy et al., NeurIPS 2025 workshop on mathematical reasoning); the default is that
    of an absolute majority, our choice. Of the ballot only the answers count.

    Raises:
        ConfigError: the threshold is not in [0, 1].
    """
    check_range(threshold, "threshold", 0, 1)
    counted = ballot.tally()
    if counted.share < threshold:
        return counted.no_winner(skipped=True, flags=("gated",))
    return counted.result()


@strategy("harmonic", "views")
def harmonic(ballot: Ballot) -> VoteResult:
    """The answer with the largest harmonic mean of its shares under the two wordings (Self-Harmony, arXiv 2511.01191).

    score(a) = 2 p q / (p + q), where p is the share of `a` among the samples of view 0 (the question as given) and q among
    those of view 1 (its paraphrase), samples without an answer included in both. An answer of one view alone scores 0; where
    all do, nobody wins. The label is rewarded in both views. Shares are exact fractions, so ties are true ties. The ballot has
    `views`.
    """
    assert ballot.views is not None  # `vote` has looked
    counted = ballot.tally()
    sizes = [sum(view == side for view in ballot.views) for side in (0, 1)]
    pairs = list(zip(counted.keys, ballot.views, strict=True))
    scores: dict[str, Fraction] = {}
    for key in counted.votes:
        p, q = (Fraction(pairs.count((key, side)), max(1, sizes[side])) for side in (0, 1))
        scores[key] = 2 * p * q / (p + q) if p and q else Fraction(0)
    return counted.result(scores)


@strategy("anchored", "base_answers")
def anchored(ballot: Ballot, *, weight: float = 1.0) -> VoteResult:
    """The samples vote together with those of the policy before training, so a rule that spreads cannot confirm itself.

    score(c) = (1 - weight) f_c + weight b_c, where f_c is the share of class c among the samples and b_c its share among
    `base_answers`, samples without an answer included in both. Weight 1 fixes each prompt's label at the vote of the policy
    before training; 0 is the majority. A label that no sample gave
    rewards nobody. Shares are exact fractions, so ties are true ties.

    Raises:
        ConfigError: the weight is not in [0, 1].
    """
    check_range(weight, "weight", 0, 1)
    assert ballot.base_answers is not None  # `vote` has looked
    size, before = len(ballot.answers), len(ballot.base_answers)
    both = tally((*ballot.answers, *ballot.base_answers))
    own, base = Counter(both.keys[:size]), Counter(both.keys[size:])
    part = Fraction(weight)
    scores = {
        key: (1 - part) * Fraction(own[key], max(1, size)) + part * Fraction(base[key], max(1, before))
        for key in both.votes
    }
    found = both.result(scores).select(list(range(size)))
    given = sorted((key for key in both.votes if own[key]), key=lambda key: -own[key])
    return replace(
        found,
        majority_ratio=sum(found.matches) / max(1, size),
        classes=tuple((both.representatives[key], own[key]) for key in given),
        abstained=own[None],
        scores=tuple(float(scores[key]) for key in given),
    )


@strategy("restrain", base_answers="prompt_weight")
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
        ballot: With `base_answers` where `prompt_weight` is true.
        center: k, in [0, 1].
        sigma: σ, above 0. Small: the largest class alone; large: all classes alike.
        kappa: κ, in [0, 1].
        delta: δ, at least 0.
        prompt_weight: Whether u_x is applied; false is the paper's ablation, and needs no `base_answers`.

    Raises:
        ConfigError: an option is out of its range.
    """
    check_range(center, "center", 0, 1)
    check_range(sigma, "sigma", 0, above=True)
    check_range(kappa, "kappa", 0, 1)
    check_range(delta, "delta", 0)

    def log_shaped(share: float) -> float:
        return -((share - center) ** 2) / (2 * sigma**2)

    weight = 1.0
    if prompt_weight and ballot.base_answers is not None:
        weight = math.exp(log_shaped(tally(ballot.base_answers).share))
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
