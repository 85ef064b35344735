"""Entropy of the policy: a coefficient of the bonus that follows it, and the tokens where it is highest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from skill_ttrl.config.rl import AdaptiveEntropyConfig
from skill_ttrl.rl.batch import RolloutBatch


@dataclass
class EntropyController:
    """Coefficient of the entropy bonus, adapted towards a target (Skywork-OR1, arXiv 2505.22312, section 4)."""

    settings: AdaptiveEntropyConfig
    coef: float

    def apply(self, entropy: float) -> float:
        """Coefficient to apply to a step of this entropy (nats a token): 0 above the target. Adapts it for the next step."""
        settings, low = self.settings, entropy <= self.settings.target
        applied = self.coef if low else 0.0
        self.coef = min(max(self.coef + (settings.delta if low else -settings.delta), settings.min), settings.max)
        return applied


def sampled_entropy(batch: RolloutBatch) -> float:
    """Minus the mean log-prob of the trained tokens: an unbiased estimate of the entropy of the policy that sampled (nats a token)."""
    trained_K = batch.old_log_probs_F[batch.trained_F]
    return -float(trained_K.mean()) if len(trained_K) else 0.0


def high_entropy_mask(entropies_K: Float[Tensor, " K"], quantile: float) -> tuple[Bool[Tensor, " K"], float]:
    """The tokens whose entropy is in the highest `quantile` of all, and the smallest entropy among them (arXiv 2506.01939, section 4)."""
    threshold = float(np.quantile(entropies_K.numpy(), 1.0 - quantile)) if len(entropies_K) else 0.0
    return entropies_K >= threshold, threshold


def at_high_entropy(batch: RolloutBatch, quantile: float) -> tuple[RolloutBatch, dict[str, float]]:
    """Set the weight of all but the tokens of the highest entropy to 0. The batch has `entropies_F`.

    Returns:
        (batch, metrics): `entropy_threshold` (nats), below which a token has no policy loss.
    """
    assert batch.entropies_F is not None
    high_K, threshold = high_entropy_mask(batch.entropies_F[batch.trained_F], quantile)
    weights_F = torch.ones_like(batch.entropies_F) if batch.weights_F is None else batch.weights_F.clone()
    weights_F[batch.trained_F] *= high_K
    return replace(batch, weights_F=weights_F), {"entropy_threshold": threshold}
