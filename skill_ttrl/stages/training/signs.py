"""Signs in the steps of a reinforcement that it cannot work, as warnings; the votes' own signs are in `voting.history`.

The figures that need labels only measure: a warning is all that comes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skill_ttrl.voting.metrics import mean

EARLY = 5
"""Steps after which the signs that need no course are looked at for the first time."""
INVALID = 0.9
"""Share of invalid actions from which on nearly all of them are."""
RISE = 0.1
"""Least rise of the agreement, from the first third of the steps to the last."""
NEVER_TRUE = 0.05
"""Share of true winners below which nearly none is."""

Rows = Sequence[Mapping[str, Any]]
"""Figures of each step, oldest first."""


def early_signs(rows: Rows) -> dict[str, str]:
    """Warnings that a few steps are enough for, by the words that they begin with."""
    found = {}
    uniform, invalid = _figures(rows, "uniform_groups"), _figures(rows, "invalid_actions")
    if uniform and min(uniform) == 1.0:
        reward = mean(_figures(rows, "reward"))
        why = (
            "The cold start is too weak, or the tasks are too hard: collect more demonstrations, or begin with easier tasks."
            if reward <= 0.5
            else "The policy does as well as this reward can tell; harder tasks would show differences."
        )
        found["No reward differed"] = (
            f"within any group in {len(uniform)} steps (mean reward {reward:.2f}), so no sample was better than another. {why}"
        )
    if invalid and mean(invalid) >= INVALID:
        found["Nearly all actions were invalid"] = (
            f"({mean(invalid):.0%} over {len(invalid)} steps): the policy does not write them in the asked form. See "
            "steps[].complaint in trajectories.jsonl; more cold start helps, or another agent.projection."
        )
    return {start: f"{start} {rest}" for start, rest in found.items()}


def late_signs(rows: Rows) -> dict[str, str]:
    """`early_signs`, and what the whole course says."""
    agreement, right = _figures(rows, "majority_ratio"), _figures(rows, "label_accuracy")
    third = max(1, len(rows) // 3)
    begun, ended = mean(agreement[:third]), mean(agreement[-third:])
    found = early_signs(rows)
    if len(agreement) > 1 and right and ended - begun >= RISE and mean(right[-third:]) < NEVER_TRUE:
        found["Agreement rose"] = (
            f"Agreement rose from {begun:.2f} to {ended:.2f} while {mean(right[-third:]):.1%} of the latest votes were true "
            "(measured, never used): the policy learns to agree on wrong answers. It does not know these problems: try a longer "
            "cold start or easier problems; see docs/voting.md."
        )
    return found


def _figures(rows: Rows, name: str) -> list[float]:
    """The figure of each step that has it."""
    return [float(row[name]) for row in rows if row.get(name) is not None]
