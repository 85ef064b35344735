"""KL divergence between the policy and a reference: estimators from log-probs of the sampled tokens.

John Schulman, "Approximating KL Divergence" (2020): with d = log pi - log ref at a token sampled from pi,
k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. Further: abs = |d|; and k1+, k3+ with the value of k1 and k3 and the gradient of k2 (verl).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, assert_never

from jaxtyping import Float
from torch import Tensor

from skill_ttrl.config.rl import KLInRewardConfig
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.losses.contract import AggregationMode, Denominators, aggregate, masked_mean

KLEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]


def compute_kl_penalty(
    log_probs: Float[Tensor, "N T"],
    ref_log_probs: Float[Tensor, "N T"],
    response_mask: Float[Tensor, "N T"],
    kl_coef: float = 0.001,
    estimator: KLEstimator = "k3",
    loss_agg_mode: AggregationMode = "token-mean",
    denominators: Denominators | None = None,
    log_ratio: Float[Tensor, "N T"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The KL term of the loss, and the KL itself.

    As a loss, k2, k1+ and k3+ have the gradient of the true KL, k3 one that is biased but always towards the reference, and k1 one
    that is 0 in expectation. k3 is clamped as in verl: difference to +-20, value to at most 10. Weighted by the policy ratio, k1
    and k3 have the gradient of the true KL too, also for a policy that has moved away from the one that sampled (DeepSeek-V3.2).

    Args:
        log_probs: Of the policy, with gradient (N, T).
        ref_log_probs: Of the reference (N, T).
        response_mask: 1 at trained tokens (N, T).
        kl_coef: Weight of the term.
        estimator: See `KLEstimator`.
        loss_agg_mode: See `aggregate`.
        denominators: See `aggregate`.
        log_ratio: Log of the policy ratio, with gradient, whose ratio weighs each token (N, T); None: no weights.

    Returns:
        (kl_loss, kl_value): `kl_coef` times the aggregate; and the mean over masked tokens, detached, in nats.
    """
    kl_N_T = kl_estimate(log_probs, ref_log_probs, estimator)
    if log_ratio is not None:
        kl_N_T = kl_N_T * log_ratio.exp()
    kl_loss = kl_coef * aggregate(kl_N_T, response_mask, loss_agg_mode, denominators)
    return kl_loss, masked_mean(kl_N_T.detach(), response_mask)


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimate of KL(policy || reference) at each token, in nats; any shape. k3 is clamped as in verl."""
    difference = log_probs - ref_log_probs
    match estimator:
        case "k1":
            return difference
        case "abs":
            return difference.abs()
        case "k2":
            return 0.5 * difference.square()
        case "k1+" | "k3+":
            value = kl_estimate(log_probs.detach(), ref_log_probs, "k1" if estimator == "k1+" else "k3")
            square = 0.5 * difference.square()
            return square - square.detach() + value
        case "k3":
            back = (-difference).clamp(-20.0, 20.0)
            return (back.exp() - back - 1.0).clamp(-10.0, 10.0)
        case _:
            assert_never(estimator)


@dataclass
class KLController:
    """Coefficient of the KL penalty on rewards: fixed, or adapted towards a target (arXiv 1909.08593, section 2.2)."""

    settings: KLInRewardConfig
    coef: float

    @classmethod
    def of(cls, settings: KLInRewardConfig) -> KLController:
        """Begin with the coefficient of the settings."""
        return cls(settings, settings.coef)

    def update(self, kl: float, rollouts: int) -> None:
        """Adapt the coefficient to the KL (nats a token) of so many rollouts: coef *= 1 + clip(kl / target - 1, +-0.2) n / horizon."""
        if self.settings.target is not None:
            error = min(max(kl / self.settings.target - 1.0, -0.2), 0.2)
            self.coef *= 1.0 + error * rollouts / self.settings.horizon


def apply_kl_penalty(batch: RolloutBatch, controller: KLController) -> tuple[RolloutBatch, dict[str, float]]:
    """Subtract the KL penalty from the scores: `token_level_rewards` = `token_level_scores` - coef * KL, and adapt the coefficient.

    The batch has `ref_log_probs_F`. The KL that the controller sees is the mean over items of each item's mean over its tokens,
    as in verl.

    Returns:
        (batch, metrics): `reward_kl` (nats a token) and `reward_kl_coef`, the coefficient that was applied.
    """
    assert batch.ref_log_probs_F is not None
    trained_F = batch.trained_F.float()
    kl_F = kl_estimate(batch.old_log_probs_F, batch.ref_log_probs_F, controller.settings.estimator) * trained_F
    coef = controller.coef
    counts_N = batch.trained_tokens_N.clamp(min=1)
    mean = float((batch.sum_by_item(kl_F) / counts_N).mean()) if len(batch) else 0.0
    controller.update(mean, len(batch))
    rewards_F = batch.scores_F - coef * kl_F
    return replace(batch, rewards_F=rewards_F), {"reward_kl": mean, "reward_kl_coef": coef}
