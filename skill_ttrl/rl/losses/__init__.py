"""Policy losses: what the gradient follows. One small file for each loss, with its own options.

A loss maps `LossInputs` to the loss of each token and metrics of its own; the learner weights and aggregates. To add one, write it
in a file next to `ppo_clip.py`, register the class with `LOSSES.register("name")` and import it here; one of your own is named
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
from skill_ttrl.rl.losses.cispo import CISPO, CISPOOptions
from skill_ttrl.rl.losses.contract import LOSSES, LossInputs, PolicyLoss, PolicyLossType, SelectingLoss
from skill_ttrl.rl.losses.covariance import ClipCov, ClipCovOptions, KLCov, KLCovOptions, token_covariance
from skill_ttrl.rl.losses.dppo import DPPO, DPPOOptions
from skill_ttrl.rl.losses.geo_mean import GeoMean, GeoMeanOptions
from skill_ttrl.rl.losses.gspo import GSPO, GSPOOptions, sequence_ratio
from skill_ttrl.rl.losses.ppo_clip import PPOClip, PPOClipOptions, clipped_surrogate, compute_policy_loss
from skill_ttrl.rl.losses.ratio import bounded_log_ratio, clip_metrics, ratio_metrics, sequence_mean
from skill_ttrl.rl.losses.reinforce import REINFORCE, REINFORCEOptions
from skill_ttrl.rl.losses.sapo import SAPO, SAPOOptions
from skill_ttrl.rl.losses.selection import with_selection
from skill_ttrl.rl.losses.vespo import VESPO, VESPOOptions
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
