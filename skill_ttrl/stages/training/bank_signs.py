"""A run's votes without its skill bank: the control for a bank that makes all samples agree on what it says."""

from __future__ import annotations

from skill_ttrl.answers import canonical
from skill_ttrl.intervals import Interval
from skill_ttrl.stages.evaluation.results import Evaluation

OTHER_WINNERS = 0.5
"""Share of the problems with another winner from which on a bank decides the votes."""
RISE = 0.1
"""Least difference of agreement that is worth a warning where no labels are known."""


def bank_votes(after: Evaluation | None, off: Evaluation | None) -> dict[str, float]:
    """Agreement with the bank and without it, maj@k without it, and the share of problems with another winner; empty without votes."""
    if after is None or off is None:
        return {}
    pairs = [
        (one.majority_answer, other.majority_answer) for one, other in zip(after.results, off.results, strict=True)
    ]
    if all(one is None for one, _ in pairs) or after.agreement is None or off.agreement is None:
        return {}
    differ = [(None if one is None else canonical(one)) != (None if other is None else canonical(other)) for one, other in pairs]  # fmt: skip
    found = {
        "agreement": after.agreement,
        "agreement_bank_off": off.agreement,
        "other_winners": sum(differ) / len(differ),
    }
    if after.majority is not None and off.majority is not None:
        found |= {"majority": after.majority, "majority_bank_off": off.majority}
    return found


def bank_warning(votes: dict[str, float], change: Interval | None) -> str | None:
    """A warning where the bank makes votes agree on wrong answers, or decides them where no label tells; else None.

    Args:
        votes: see `bank_votes`.
        change: interval of maj@k with the bank less maj@k without it; None where there are no labels.
    """
    if not votes or votes["agreement"] <= votes["agreement_bank_off"]:
        return None
    more = f"agreement is {votes['agreement']:.2f} with it and {votes['agreement_bank_off']:.2f} without it"
    if change is not None:
        if change[1] >= 0:
            return None
        return (
            f"The skill bank makes the votes agree on wrong answers: {more}, but {votes['majority']:.2f} of the winners are right with it "
            f"and {votes['majority_bank_off']:.2f} without it (measured, never used). Look for the skill that is wrong: skillttrl inspect "
            "RUN/bank."
        )
    if votes["other_winners"] < OTHER_WINNERS or votes["agreement"] - votes["agreement_bank_off"] < RISE:
        return None
    return (
        f"The skill bank decides the votes: {votes['other_winners']:.0%} of the problems have another winner with it than without it, and "
        f"{more}. Nothing here tells which winners are right: give data.eval some true answers, or look at a few."
    )
