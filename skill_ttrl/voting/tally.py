"""Answers counted by class: what every strategy begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from skill_ttrl.answers import canonicals, without_units
from skill_ttrl.types import VoteResult

Score = float | Fraction


@dataclass(frozen=True, slots=True)
class Tally:
    """Answers counted by class. A class is named by the key that its answers share (`answers.canonical`)."""

    keys: tuple[str | None, ...]
    """Class of each sample; None for one without an answer."""
    votes: Mapping[str, int]
    """Votes of each class, most first, ties in order of first appearance."""
    representatives: Mapping[str, str]
    """The answer of each class's first voter."""

    @property
    def share(self) -> float:
        """Votes of the largest class over all samples (TTRL: majority_ratio); 0 where nobody answered."""
        return next(iter(self.votes.values())) / len(self.keys) if self.votes else 0.0

    @property
    def class_ids(self) -> tuple[int, ...]:
        """Place of each sample's class among the classes; -1 for a sample without an answer."""
        places = {key: place for place, key in enumerate(self.votes)}
        return tuple(-1 if key is None else places[key] for key in self.keys)

    def result(self, scores: Mapping[str, Score] | None = None) -> VoteResult:
        """The vote that the class with the highest score wins; without scores the one with most votes.

        There is a score for each class; one of 0 wins nothing. Ties go to the class that appeared first and are reported.
        """
        ranking: Mapping[str, Score] = self.votes if scores is None else scores
        best = max(ranking.values(), default=0)
        leading = {key for key in self.votes if ranking[key] == best > 0}
        winner = next((key for key in self.representatives if key in leading), None)
        return VoteResult(
            answer=None if winner is None else self.representatives[winner],
            majority_ratio=self.share if winner is None else self.votes[winner] / len(self.keys),
            matches=tuple(key is not None and key == winner for key in self.keys),
            classes=tuple((self.representatives[key], count) for key, count in self.votes.items()),
            abstained=sum(key is None for key in self.keys),
            tie=len(leading) > 1,
            scores=() if scores is None else tuple(float(scores[key]) for key in self.votes),
        )

    def no_winner(self) -> VoteResult:
        """The vote that nobody wins."""
        return replace(self.result(dict.fromkeys(self.votes, 0.0)), scores=())


def tally(answers: Sequence[str | None], keys: Sequence[str | None] | None = None) -> Tally:
    """Count the answers of one group; an answer without a unit belongs to the one unit that others state (`answers.without_units`).

    None and an empty text are no answer. `keys` are the classes where they are known already (`answers.canonicals`).
    """
    keys = without_units(canonicals(answers) if keys is None else keys)
    votes: dict[str, int] = {}
    words: dict[str, str] = {}
    for key, answer in zip(keys, answers, strict=True):
        if key is not None and answer is not None:
            votes[key] = votes.get(key, 0) + 1
            words.setdefault(key, answer)
    ranked = sorted(votes, key=lambda key: -votes[key])  # stable: ties stay in order of first appearance
    return Tally(tuple(keys), {key: votes[key] for key in ranked}, words)


def mean(values: Sequence[float]) -> float:
    """Mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
