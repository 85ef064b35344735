"""Corrections without rescoring: what the update itself leaves out, from the log-probs that its forward pass computes.

The loss's own ratio is then pi / pi_sampler, which is the importance weight: a mask leaves tokens out and weighs nothing more. A loss
without a ratio (`reinforce`) is weighted here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.config.rl import RolloutCorrectionConfig
from skill_ttrl.rl.correction.rollout import CORRECTIONS, PREFIX
from skill_ttrl.rl.correction.sequences import PaddedSequences
from skill_ttrl.rl.correction.weights import (
    LOG_WEIGHT_BOUND,
    far_off_policy,
    importance_weights,
    kept_tokens,
    weight_rule,
)
from skill_ttrl.rl.losses import masked_mean


class UpdateCorrection:
    """Weights of the tokens of a micro-batch.

    Args:
        settings: `rl.rollout_correction`.
        loss_has_ratio: The loss weighs its gradient by the policy ratio.
    """

    def __init__(self, settings: RolloutCorrectionConfig, *, loss_has_ratio: bool) -> None:
        self.settings = settings
        bypass = not settings.rescore
        self._rule = weight_rule(settings.type, settings) if bypass and settings.type in CORRECTIONS else None
        self._reject = settings.reject if bypass else None
        self._measures = bypass
        self._loss_has_ratio = loss_has_ratio

    @property
    def needed(self) -> bool:
        """True if there is anything to do in the update."""
        return self._measures or self.settings.off_policy_kl is not None

    @torch.no_grad()
    def __call__(
        self,
        log_probs: Float[Tensor, "N R"],
        sampler_log_probs: Float[Tensor, "N R"],
        advantages: Float[Tensor, "N R"],
        mask: Float[Tensor, "N R"],
    ) -> tuple[Float[Tensor, "N R"], dict[str, Tensor]]:
        """(weights, metrics) of a micro-batch.

        The metrics are means over its trained tokens, with verl's prefix: `kl`, `k3_kl` and `chi2_token` of the policy against the
        sampler, `rollout_is_mean` and `rollout_is_square` of the weights (from which the effective sample size is computed),
        `rollout_rs_masked_fraction` and `off_policy_masked_fraction`.
        """
        log_ratio = (log_probs - sampler_log_probs) * mask
        sequences, weights = PaddedSequences(mask), mask
        metrics: dict[str, Tensor] = {}
        if self._measures:
            bounded = log_ratio.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
            ratio = bounded.exp()
            metrics = {"kl": -log_ratio, "k3_kl": ratio - 1.0 - bounded, "chi2_token": ratio.square() - 1.0}
        if self._rule is not None:
            found, _ = importance_weights(log_ratio, sequences, self._rule)
            weights = weights * ((found > 0).to(mask.dtype) if self._loss_has_ratio else found)
            metrics |= {"rollout_is_mean": found, "rollout_is_square": found.square()}
        if self._reject is not None:
            within = kept_tokens(log_ratio, sequences, self._reject)
            weights = weights * within
            metrics["rollout_rs_masked_fraction"] = 1.0 - within.to(mask.dtype)
        if self.settings.off_policy_kl is not None:
            far = far_off_policy(log_ratio, advantages, sequences, self.settings.off_policy_kl)
            weights = weights * ~far
            metrics["off_policy_masked_fraction"] = far.to(mask.dtype)
        return weights, {f"{PREFIX}{name}": masked_mean(value, mask) for name, value in metrics.items()}


def with_sample_size(metrics: dict[str, float]) -> dict[str, float]:
    """Put the effective sample size in the place of the weights' mean square, over the whole update."""
    square = metrics.pop(f"{PREFIX}rollout_is_square", None)
    if square:
        metrics[f"{PREFIX}rollout_is_eff_sample_size"] = metrics[f"{PREFIX}rollout_is_mean"] ** 2 / square
    return metrics
