"""Autonomous edit budget: a model says how many of the merged proposals this step applies (`lr_control_mode: autonomous`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from skill_ttrl.optimize.replies import extract_json

_INTEGER = re.compile(r"(?<![\d.])[+-]?\d{1,9}(?!\d)(?!\.\d*[1-9])")


@dataclass(frozen=True, slots=True)
class BudgetDecision:
    """How many proposals are applied."""

    budget: int
    """Between 0 and the number of proposals."""
    named: int | None
    """The model's number; None where it wrote no whole one."""
    reasoning: str = ""

    @property
    def clamped(self) -> bool:
        """True if the model named another number than is applied."""
        return self.named is not None and self.named != self.budget

    def to_dict(self) -> dict[str, Any]:
        """The decision as JSON, with SkillOpt's names."""
        return {
            "learning_rate": self.budget,
            "raw_learning_rate": self.named,
            "clamped": self.clamped,
            "fallback": self.named is None,
            "reasoning": self.reasoning,
        }


def read_budget(answer: str | None, available: int) -> BudgetDecision:
    """The budget in an answer. Without a whole number it is 0: an answer that cannot be read changes no document."""
    found = extract_json(answer or "") or {}
    named = whole_number(found.get("learning_rate"))
    return BudgetDecision(min(max(named or 0, 0), available), named, str(found.get("reasoning") or ""))


def whole_number(value: Any) -> int | None:
    """A whole number, also one in a text (`about 3 edits`); None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    found = _INTEGER.search(value) if isinstance(value, str) else None
    return None if found is None else int(found[0])
