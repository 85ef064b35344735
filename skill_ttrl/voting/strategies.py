"""The voting strategies, each as its formula.

Two answers vote for the same thing exactly when `answers.canonical` says so, and the reward uses the same relation, so a
sample is rewarded if and only if it is counted for the winner. An answer that is missing or empty abstains: it cannot
win and is never rewarded. Ties go to the answer that appeared first and are reported.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from skill_ttrl.answers import Answer, answer_text, bare_key
from skill_ttrl.errors import ConfigError
from skill_ttrl.types import VoteResult, derive_seed
from skill_ttrl.voting.ballot import Ballot, batch_vote, check_range, strategy
from skill_ttrl.voting.history import KEPT_RATIOS, STABLE, PromptHistory
from skill_ttrl.voting.tally import Tally, mean, tally


@strategy("majority")
def majority(ballot: Ballot) -> VoteResult:
    """The most frequent answer, y* = mode(y_1 … y_N), rewards 1[y_i = y*] (TTRL, arXiv 2504.16084, eq. 2 and 3)."""
    return ballot.tally().result()


def majority_vote(answers: Sequence[Answer]) -> VoteResult:
    """The most frequent answer of one group (TTRL, eq. 2: the mode of the extracted answers); answers are texts or numbers."""
    return tally([answer_text(answer) for answer in answers]).result()


def batch_majority_vote(groups: Iterable[Sequence[Answer]]) -> list[VoteResult]:
    """One vote for each group of answers; all distinct answers are compared in one go."""
    return batch_vote("majority", [Ballot(tuple(map(answer_text, answers))) for answers in groups])


def compute_voting_rewards(answers: Sequence[Answer]) -> tuple[list[float], str | None, float]:
    """Rewards (1.0 for agreeing with the majority, else 0.0), the majority answer and the agreement."""
    vote = majority_vote(answers)
    return [float(match) for match in vote.matches], vote.answer, vote.majority_ratio


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


@strategy("restrain", shaping=True, base_answers="prompt_weight")
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


SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class SequentialTest:
    """When the samples so far decide a prompt's majority.

    Raises:
        ConfigError: an option is out of its range.
    """

    error: float = 0.05
    """Most probability that the policy gives the runner-up more often than the leader, in (0, 0.5)."""
    first: int = 8
    """Samples before the first look; each further look comes at twice as many."""

    def __post_init__(self) -> None:
        check_range(self.error, "error", 0, 0.5, above=True)
        check_range(self.first, "first", 2, whole=True)

    def looks(self, most: int) -> list[int]:
        """Numbers of samples at which the test looks, of at most `most`: the last."""
        found = [min(self.first, most)]
        while found[-1] < most:
            found.append(min(2 * found[-1], most))
        return found

    def decided(self, counts: Sequence[int], left: int) -> bool:
        """True if `left` further samples are not needed.

        Either they cannot change the winner, or under a uniform prior on the leader's share of the votes for the leading two, a and b,
        P(share < 1/2) = I_½(a + 1, b + 1) = P(Binomial(a + b + 1, ½) > a) is at most `error` (Adaptive-Consistency, arXiv 2305.11860).

        Args:
            counts: Votes of each class.
            left: Samples that could still be drawn.
        """
        a, b = sorted([*counts, 0, 0])[:-3:-1]
        trials = a + b + 1
        wrong = sum(math.comb(trials, heads) for heads in range(a + 1, trials + 1)) / 2**trials
        return a - b > left or wrong <= self.error


@strategy(SEQUENTIAL)
def sequential(ballot: Ballot, *, error: float = SequentialTest.error, first: int = SequentialTest.first) -> VoteResult:
    """The majority of the samples up to the look at which it is decided (`SequentialTest`); later ones are rewarded and do not vote.

    A run draws no later ones. **Its samples are biased**: a prompt stops because its leader leads, so the agreement (`majority_ratio`) of a
    prompt that stopped early overstates how often the policy gives the winner. Looking several times also raises the error above `error`.
    """
    test, counted = SequentialTest(error, first), ballot.tally()
    size, votes = len(counted.keys), Counter[str]()
    for look in test.looks(size):
        votes = Counter(key for key in counted.keys[:look] if key is not None)
        if test.decided([*votes.values()], size - look):
            break
    return counted.result({key: votes[key] for key in counted.votes})


FLIP, HIGH_RISK, MINORITY = "flip", "high_risk", "minority"
"""Flags: the winner changed; competed and then locked in; minorities are protected."""
HIGH_RATIO = 0.6
"""Majority ratio above which a vote is sure of itself (tau_MR)."""
SMALLEST_WEIGHT = 0.1
EXTRA_LOSS, STABLE_LOSS = 0.3, 0.15
"""Reductions of the weight where a confident vote flipped (lambda2), and where one never did (half of it)."""
FIRST_TERM = 0.5
"""Reduction for a flip (lambda1)."""


@strategy("guard", "history", "seed", shaping=True)
def guard(
    ballot: Ballot,
    *,
    window: int = 5,
    risk_ratio: float = 0.7,
    skip_probability: float = 0.7,
    skip_share: float = 0.25,
    beta: float = 0.3,
    quiet_steps: int = 3,
    hold_bonus: bool = False,
) -> VoteResult:
    """The majority, with three guards against a collapse (TTRL-Guard, arXiv 2605.19444, §3.2 to §3.4).

    Prompts whose winner changes count less, and minorities stay alive for a while. FR is 1 where the winner differs from the prompt's vote
    before, else 0; MR is the majority ratio, its mean taken over the latest `window` votes, this one included.

    - FRS, the weight of the prompt's advantages: w = 1 - 0.5 FR; x 0.7 where MR > 0.6 and FR = 1; x 0.85 where the prompt
      never flipped, has `window` votes, mean MR > 0.6, and this has fired fewer than `window` times; at least 0.1.
    - RCSU, skips: a prompt that flipped once, has `window` votes and mean MR > `risk_ratio` is skipped with
      `skip_probability`, in at most max(1, ⌊`skip_share` x prompts⌋) prompts of a step.
    - MPS, the bonus of minorities, from a flip until `quiet_steps` votes without one: each sample of a class with at least
      max(1, ⌊n/4⌋) votes that did not win gets beta x votes / (votes of all such classes), in units of the mean |A| of the
      prompt after FRS. As published, beta x FR: so in the step of the flip alone. `hold_bonus` keeps it in the quiet
      steps too.

    Args:
        ballot: With `history` and `seed`.
        window: W, votes.
        risk_ratio: theta_MR (0.5 in the published script for Qwen2.5-7B).
        skip_probability: p_skip.
        skip_share: Largest share of a step's prompts that is skipped.
        beta: Size of the bonus.
        quiet_steps: Votes without a flip after which minorities are left alone.
        hold_bonus: See above.

    Raises:
        ConfigError: an option is out of its range.
    """
    check_range(window, "window", 1, KEPT_RATIOS, whole=True)
    check_range(risk_ratio, "risk_ratio", 0, 1)
    check_range(skip_probability, "skip_probability", 0, 1)
    check_range(skip_share, "skip_share", 0, 1)
    check_range(beta, "beta", 0)
    check_range(quiet_steps, "quiet_steps", 1, whole=True)
    assert ballot.history is not None and ballot.seed is not None  # `vote` has looked
    counted = ballot.tally()
    past = ballot.history
    held = counted.result()
    now = past.after(held)
    flipped = now.flips > past.flips
    sure = mean(now.ratios[-window:]) if now.votes >= window else 0.0
    stable = not now.flips and sure > HIGH_RATIO and past.fired < window
    risky = bool(now.flips) and sure > risk_ratio
    minority = bool(now.flips) and now.quiet < quiet_steps
    flags = {FLIP: flipped, STABLE: stable, HIGH_RISK: risky, MINORITY: minority}
    return counted.result(
        weight=_weight(flipped, stable, held.majority_ratio),
        bonus=_bonus(counted, now, beta) if minority and (flipped or hold_bonus) else (),
        skipped=risky and _skips(ballot, skip_probability, skip_share),
        flags=tuple(flag for flag, is_set in flags.items() if is_set),
    )


def _weight(flipped: bool, stable: bool, agreement: float) -> float:
    """FRS: the weight of the prompt's advantages."""
    weight = 1.0 - FIRST_TERM * flipped
    if flipped and agreement > HIGH_RATIO:
        weight *= 1 - EXTRA_LOSS
    if stable:
        weight *= 1 - STABLE_LOSS
    return max(SMALLEST_WEIGHT, weight)


def _skips(ballot: Ballot, probability: float, share: float) -> bool:
    """RCSU: skip a prompt at risk, in at most `share` of a step's prompts."""
    assert ballot.seed is not None
    drawn = random.Random(derive_seed(ballot.seed, "guard-skip", ballot.prompt)).random() < probability
    return drawn and ballot.skipped < max(1, math.floor(share * ballot.prompts))


def _bonus(counted: Tally, now: PromptHistory, beta: float) -> tuple[float, ...]:
    """Bonus added to each sample's advantage, in units of the prompt's mean |A|; empty where there is no minority."""
    enough = max(1, len(counted.keys) // 4)
    minorities = {key: count for key, count in counted.votes.items() if count >= enough and bare_key(key) != now.winner}
    total = sum(minorities.values())
    return tuple(beta * minorities.get(key or "", 0) / total for key in counted.keys) if total else ()
