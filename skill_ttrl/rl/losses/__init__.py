"""Policy losses: what the gradient follows. `ppo` has the losses of the ratio, `masked` those that leave tokens out.

A loss maps `LossInputs` to the loss of each token and metrics of its own; the learner weights and aggregates. To add one, write it
like those, register the class with `LOSSES.register("name")` and import it here; one of your own is named
`module:Class` in `rl.loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.rl.losses import masked, ppo  # noqa: F401  # they register themselves
from skill_ttrl.rl.losses.contract import (
    LOSSES,
    AggregationMode,
    Denominators,
    LossInputs,
    PolicyLoss,
    PolicyLossType,
    SelectingLoss,
    aggregate,
    compute_entropy_bonus,
    masked_mean,
)
from skill_ttrl.rl.losses.ppo import compute_policy_loss
from skill_ttrl.rl.options import build_from

__all__ = [
    "LOSSES",
    "AggregationMode",
    "Denominators",
    "LossInputs",
    "PolicyLoss",
    "PolicyLossType",
    "SelectingLoss",
    "aggregate",
    "build_loss",
    "compute_entropy_bonus",
    "compute_policy_loss",
    "masked_mean",
]


def build_loss(settings: Mapping[str, Any]) -> PolicyLoss:
    """Build the loss that `rl.loss` names.

    Args:
        settings: `type` (a registered name or `module:Class`) and that loss's options.

    Raises:
        ConfigError: there is no such loss, or an option is wrong.
    """
    built: PolicyLoss = build_from(LOSSES, settings)
    return built
