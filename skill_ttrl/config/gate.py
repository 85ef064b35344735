"""Section of a config: the gate that changes of a skill bank have to pass."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from skill_ttrl.config.data import SourceConfig
from skill_ttrl.config.section import Section


class GateConfig(Section):
    """A paired test on held-out training tasks that every change of the bank has to pass, whatever it comes from. See docs/gate.md."""

    tasks: int = Field(default=60, ge=1)
    """Number of tasks of the gate. They are drawn from the training tasks with the run's seed and are not trained on; with `data`, the most
    tasks to use from it."""
    data: SourceConfig | None = None
    """Separate tasks for the gate. Environments such as `math`, where only true answers tell success, need their answers. None: training
    tasks."""
    rollouts_per_task: int = Field(default=4, ge=1, le=64)
    """Rollouts of each task with each version of the bank."""
    metric: Literal["success", "score"] = "success"
    """The measure to compare: success as the environment reports it, or its score in [0, 1] (WebShop)."""
    rule: Literal["better", "not_worse"] = "better"
    """`better`: accept a significant gain of at least `min_effect`. `not_worse`: accept unless the loss may exceed `min_effect`."""
    min_effect: float = Field(default=0.02, ge=0, lt=1)
    """Smallest gain of the mean that counts; for `not_worse`, the smallest loss to reject, above 0."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """One-sided error of a decision: the probability, at most, of accepting a change that gains nothing (`better`) or loses `min_effect`."""
    rounds: int = Field(default=1, ge=1)
    """Decisions that share `alpha`: each is made at `alpha / rounds`. Set it to the number of a run's decisions to bound their total error."""
    temperature: float | None = Field(default=None, gt=0)
    """None: the temperature of training rollouts."""
    every: int = Field(default=1, ge=1)
    """Steps between decisions. The changes since the last one are decided together; the last step always decides."""
    early_stop: bool = True
    """Stop as soon as the remaining tasks cannot change the decision."""
    recheck_every: int | None = Field(default=None, ge=1)
    """Steps between tests of the bank against its version before the last accepted change. If the older version is better, the bank rolls
    back to it. None: never."""

    @model_validator(mode="after")
    def _not_worse_has_a_margin(self) -> GateConfig:
        if self.rule == "not_worse" and not self.min_effect:
            raise ValueError("rule=not_worse needs a min_effect above 0: the smallest loss to reject")
        return self
