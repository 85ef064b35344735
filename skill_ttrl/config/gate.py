"""Section of a config: the gate that changes of a skill bank have to pass."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from skill_ttrl.config.data import SourceConfig
from skill_ttrl.config.section import Section


class GateConfig(Section):
    """A paired test on held-out training tasks that every change of the bank has to pass, whatever it comes from. See docs/gate.md."""

    tasks: int = Field(default=60, ge=1)
    """Tasks of the gate. They are drawn from the training tasks with the run's seed, and not trained on; with `data` at most so many of
    those."""
    data: SourceConfig | None = None
    """Other tasks for the gate. Where only true answers tell success, as in `math`, they need them. None: training tasks."""
    rollouts_per_task: int = Field(default=4, ge=1, le=64)
    """Rollouts of each task with each version of the bank."""
    metric: Literal["success", "score"] = "success"
    """Outcome that is compared: success as the environment says it, or its score in [0, 1] (WebShop)."""
    rule: Literal["better", "not_worse"] = "better"
    """`better`: significantly more, and by at least `min_effect`. `not_worse`: significantly more than `min_effect` below."""
    min_effect: float = Field(default=0.02, ge=0, lt=1)
    """Least gain of the mean that counts; for `not_worse` the loss that is too much, above 0."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """One-sided error of a decision: how often, at most, it accepts a change that gains nothing (`better`) or loses `min_effect`."""
    rounds: int = Field(default=1, ge=1)
    """Decisions that share `alpha`: each is made at `alpha / rounds`. With the number of a run's decisions it bounds their errors together."""
    temperature: float | None = Field(default=None, gt=0)
    """None: that of the training's rollouts."""
    every: int = Field(default=1, ge=1)
    """Steps whose changes are collected and decided together; the last step always decides."""
    early_stop: bool = True
    """Stop rolling out once the tasks that remain cannot change the decision."""
    recheck_every: int | None = Field(default=None, ge=1)
    """Steps between two tests of the bank against the version before its last accepted change: where that one is better, the bank goes
    back to it. None: never."""

    @model_validator(mode="after")
    def _not_worse_has_a_margin(self) -> GateConfig:
        if self.rule == "not_worse" and not self.min_effect:
            raise ValueError("rule=not_worse needs a min_effect above 0: the loss that is too much")
        return self
