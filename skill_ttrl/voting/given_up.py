"""How many answers were given up: they look like mathematics, and yet are compared as texts only.

Counted from the answers themselves and not as they are decided, so a resumed run says what it would have said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from skill_ttrl.answers import canonicals, verdict

MANY = 0.05
"""Share of different answers above which it is worth a warning."""


@dataclass(frozen=True, slots=True)
class UndecidedAnswers:
    """The answers of a step, an evaluation or a laboratory, as far as nobody could say what they are."""

    count: int = 0
    """Different answers that were given up."""
    distinct: int = 0
    """Different answers."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """How many for which reason (`answers.Verdict.gave_up`), most first."""

    @property
    def many(self) -> bool:
        """Whether it is more than `MANY` of the different answers."""
        return self.count > MANY * self.distinct

    def __str__(self) -> str:
        """In one sentence."""
        why = ", ".join(f"{reason} {count}" for reason, count in self.reasons.items())
        return (
            f"{self.count} of {self.distinct} different answers were given up ({why}): each equals its own text only."
        )


def given_up(answers: Iterable[str | None]) -> UndecidedAnswers:
    """Count the different answers that were given up; a missing or an empty one is none."""
    # In an order of their own: what is equally frequent is always told in the same order.
    distinct = sorted({answer for answer in answers if answer is not None})
    canonicals(distinct)  # where some are not known yet: all in one go
    found = [said for answer in distinct if (said := verdict(answer)) is not None]
    reasons = Counter(said.gave_up for said in found if said.gave_up is not None)
    return UndecidedAnswers(
        reasons.total(), len(found), dict(sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])))
    )
