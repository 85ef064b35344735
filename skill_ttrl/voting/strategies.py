"""The voting strategies, each as its formula.

Two answers vote for the same thing exactly when `answers.canonical` says so, and the reward uses the same relation, so a
sample is rewarded if and only if it is counted for the winner. An answer that is missing or empty abstains: it cannot
win and is never rewarded. Ties go to the answer that appeared first and are reported.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from skill_ttrl.answers import Answer, answer_text
from skill_ttrl.errors import ConfigError
from skill_ttrl.types import VoteResult
from skill_ttrl.voting.ballot import Ballot, batch_vote, check_range, strategy
from skill_ttrl.voting.tally import tally


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
