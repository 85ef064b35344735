"""Self-Harmony: an answer counts when it stands up to another wording of the question."""

from __future__ import annotations

from fractions import Fraction

from skill_ttrl.types import VoteResult
from skill_ttrl.voting.ballot import Ballot, strategy


@strategy("harmonic", "views")
def harmonic(ballot: Ballot) -> VoteResult:
    """The answer with the largest harmonic mean of its shares under the two wordings (Self-Harmony, arXiv 2511.01191).

    score(a) = 2 p q / (p + q), where p is the share of `a` among the samples of view 0 (the question as given) and q among
    those of view 1 (its paraphrase), samples without an answer included in both. An answer of one view alone scores 0; where
    all do, nobody wins. The label is rewarded in both views. Shares are exact fractions, so ties are true ties.

    Args:
        ballot: With `views`.
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
