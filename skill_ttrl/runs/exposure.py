"""How often each skill was given to the rollouts of a training, and how often these won: who fills the prompts, and who is never seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from skill_ttrl.types import Group

Given = Mapping[str, tuple[int, int]]
"""By skill id: rollouts that it was given to, and those of them that won."""
SHOWN = 5


class Exposure:
    """Counts over a run, a skill at most once a rollout; they go on from a `state` that `state_dict` gave."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self.rollouts = int(state.get("rollouts", 0))
        """All rollouts, those without a skill included."""
        self.given: dict[str, tuple[int, int]] = {name: (n, won) for name, (n, won) in state.get("given", {}).items()}

    def see(self, groups: Sequence[Group], won: Sequence[Sequence[bool]]) -> None:
        """Count a step's rollouts; `won` says of each whether it won."""
        for group, row in zip(groups, won, strict=True):
            for trajectory, has_won in zip(group.trajectories, row, strict=True):
                self.rollouts += 1
                for name in dict.fromkeys((*trajectory.skills_in_prompt, *trajectory.retrieved)):
                    count, wins = self.given.get(name, (0, 0))
                    self.given[name] = (count + 1, wins + has_won)

    def never(self, bank: Collection[str]) -> int:
        """Skills of the bank that no rollout was given."""
        return sum(name not in self.given for name in bank)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return {"rollouts": self.rollouts, "given": {name: list(count) for name, count in self.given.items()}}


def exposure_line(rollouts: int, given: Given, never: int = 0) -> str | None:
    """Which skills the rollouts were given most, with the share of these that won; None where none was given."""
    if not given or not rollouts:
        return None
    ordered = sorted((-count, name, won) for name, (count, won) in given.items())
    found = ", ".join(f"{name} {-count:,} (won {won / -count:.2f})" for count, name, won in ordered[:SHOWN])
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    unseen = f"; {never} of the bank never" if never else ""
    return f"Skills shown in {rollouts:,} rollouts: {found}{more}{unseen}."


def most_shown(shown: Mapping[str, int], examples: int) -> str:
    """Which skill stands in the most prompts of demonstrations, and how many skills stand in none; `shown` holds all of the bank."""
    top = max(shown, key=lambda name: (shown[name], name))
    unseen = sum(not count for count in shown.values())
    none = f"; {unseen} of {len(shown)} skills in none" if unseen else ""
    return f"{top} in {shown[top]:,} of {examples:,} prompts{none}"
