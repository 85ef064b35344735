"""When two answers are the same: exactly when their keys are."""

from __future__ import annotations

from skill_ttrl.answers.verdicts import canonicals


def equivalent(a: str | None, b: str | None) -> bool:
    """Whether two answers are the same. An empty answer is the same as nothing, itself included."""
    first, second = canonicals([a, b])
    return first is not None and first == second
