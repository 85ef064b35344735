"""Policy losses: what the gradient follows. `ppo` has the losses of the ratio, `masked` those that leave tokens out.

A loss maps `LossInputs` to the loss of each token and metrics of its own; the learner weights and aggregates. To add one, write it
like those, register the class with `LOSSES.register("name")` and import it here; one of your own is named
`module:Class` in `rl.loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.rl.losses.aggregate import (
    AggregationMode,
    Denominators,
    aggregate,
    compute_entropy_bonus,
    masked_mean,
)
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs, PolicyLoss, PolicyLossType, SelectingLoss
from skill_ttrl.rl.losses.masked import (
    DPPO,
    ClipCov,
    ClipCovOptions,
    DPPOOptions,
    KLCov,
    KLCovOptions,
    token_covariance,
)
from skill_ttrl.rl.losses.ppo import (
    CISPO,
    GSPO,
    REINFORCE,
    SAPO,
    VESPO,
    CISPOOptions,
    GeoMean,
    GeoMeanOptions,
    GSPOOptions,
    PPOClip,
    PPOClipOptions,
    REINFORCEOptions,
    SAPOOptions,
    VESPOOptions,
    bounded_log_ratio,
    clip_metrics,
    clipped_surrogate,
    compute_policy_loss,
    ratio_metrics,
    sequence_mean,
    sequence_ratio,
    with_selection,
)
from skill_ttrl.rl.options import build_from

__all__ = [
    "AggregationMode",
    "CISPO",
    "CISPOOptions",
    "ClipCov",
    "ClipCovOptions",
    "DPPO",
    "DPPOOptions",
    "Denominators",
    "GSPO",
    "GSPOOptions",
    "GeoMean",
    "GeoMeanOptions",
    "KLCov",
    "KLCovOptions",
    "LOSSES",
    "LossInputs",
    "PPOClip",
    "PPOClipOptions",
    "PolicyLoss",
    "PolicyLossType",
    "REINFORCE",
    "REINFORCEOptions",
    "SAPO",
    "SAPOOptions",
    "SelectingLoss",
    "VESPO",
    "VESPOOptions",
    "aggregate",
    "bounded_log_ratio",
    "build_loss",
    "clip_metrics",
    "clipped_surrogate",
    "compute_entropy_bonus",
    "compute_policy_loss",
    "masked_mean",
    "ratio_metrics",
    "sequence_mean",
    "sequence_ratio",
    "token_covariance",
    "with_selection",
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
