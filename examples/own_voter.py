"""A voting strategy of one's own: the majority, but only where it leads by two votes; else nobody wins.

Run it: python examples/own_voter.py. A config names it: vote.strategy: {type: own_voter:careful, lead: 2}.
"""

from __future__ import annotations

from skill_ttrl.types import VoteResult
from skill_ttrl.voting import Ballot


def careful(ballot: Ballot, *, lead: int = 2) -> VoteResult:
    """Reward the most common answer if it is `lead` votes ahead of the second; else none, so that GRPO learns nothing.

    A strategy that reads log-probs says so: `careful.requires = ("logprobs",)`. Fields of a `Ballot` and of a `VoteResult`
    say what a vote may look at and decide.
    """
    tally = ballot.tally()
    first, second = [*tally.votes.values(), 0, 0][:2]
    nobody = dict.fromkeys(tally.votes, 0)  # a score of 0 wins nothing
    return tally.result() if first - second >= lead else tally.result(nobody)


if __name__ == "__main__":
    for answers in (("1", "1.0", "2"), ("1", "1.0", "\\frac{2}{2}", "2")):
        result = careful(Ballot(answers))
        print(answers, "->", result.answer, result.sample_rewards)
