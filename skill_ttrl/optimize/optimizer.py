"""The protocol of an optimizer: from rollouts to the edits of one step.

`LLMOptimizer` uses a language model (`llm_optimizer.py`). One of the user's own is a class with these three methods, named as
`optimize.optimizer: module:attribute`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from skill_ttrl.optimize.types import Patch, RawPatch, RolloutResult


@dataclass(frozen=True)
class StepView:
    """Facts of one step that an optimizer may use."""

    step: int
    """Number of the step, from 1."""
    epoch: int
    document: str
    """The present document."""
    rollouts: Sequence[RolloutResult]
    """Rollouts of the present document on this step's training items."""
    max_edits: int
    """Most edits of one patch."""
    seed: int
    context: Mapping[str, str] = field(default_factory=dict)
    """Further sections of a prompt by heading: rejected edits of this epoch, memory of the optimizer."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """An optimizer counts here, by stage, where it had no usable answer and a rule or nothing stood in for it."""

    def places(self) -> dict[str, str]:
        """What every prompt of a step shows: the document, and the further sections as one text."""
        context = "\n\n".join(f"## {heading}\n{text}" for heading, text in self.context.items() if text)
        return {"document": self.document or "(empty)", "context": context}


class Optimizer(Protocol):
    """Proposes edits. Everything it draws at random comes from `view.seed`."""

    def reflect(self, view: StepView) -> list[RawPatch]:
        """Patches that the rollouts suggest, from failures and from successes."""
        ...

    def merge(self, view: StepView, patches: Sequence[RawPatch]) -> Patch:
        """One patch for several."""
        ...

    def select(self, view: StepView, patch: Patch, max_edits: int) -> Patch:
        """The `max_edits` most important edits of a patch; called where it has more."""
        ...
