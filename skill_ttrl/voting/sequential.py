"""The majority of samples that are drawn in rounds: a prompt whose winner is decided is not sampled further."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from skill_ttrl.types import VoteResult
from skill_ttrl.voting.ballot import Ballot
from skill_ttrl.voting.strategies import check_range, strategy

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
