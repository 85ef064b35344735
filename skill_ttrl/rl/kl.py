"""KL divergence between the policy and a reference: estimators from log-probs of the sampled tokens.

John Schulman, "Approximating KL Divergence" (2020): with d = log pi - log ref at a token sampled from pi,
k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. Further: abs = |d|; and k1+, k3+ with the value of k1 and k3 and the gradient of k2 (verl).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, assert_never

from jaxtyping import Float
from torch import Tensor

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
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The KL term of the loss, and the KL itself.

    As a loss, k2, k1+ and k3+ have the gradient of the true KL, k3 one that is biased but always towards the reference, and k1 one
    that is 0 in expectation. k3 is clamped as in verl: difference to +-20, value to at most 10.

    Args:
        log_probs: Of the policy, with gradient (N, T).
        ref_log_probs: Of the reference (N, T).
        response_mask: 1 at trained tokens (N, T).
        kl_coef: Weight of the term.
        estimator: See `KLEstimator`.
        loss_agg_mode: See `aggregate`.
        denominators: See `aggregate`.

    Returns:
        (kl_loss, kl_value): `kl_coef` times the aggregate; and the mean over masked tokens, detached, in nats.
    """
    kl_N_T = kl_estimate(log_probs, ref_log_probs, estimator)
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


def apply_kl_penalty(batch: RolloutBatch, coef: float) -> tuple[RolloutBatch, dict[str, float]]:
    """Subtract the KL penalty from the scores: `token_level_rewards` = `token_level_scores` - coef * KL (k1).

    Returns:
        (batch, metrics): `reward_kl`, nats a token: the mean over items of each item's mean over its tokens, as in verl.
    """
    assert batch.ref_log_probs_F is not None
    kl_F = (batch.old_log_probs_F - batch.ref_log_probs_F) * batch.trained_F.float()
    counts_N = batch.trained_tokens_N.clamp(min=1)
    mean = float((batch.sum_by_item(kl_F) / counts_N).mean()) if len(batch) else 0.0
    return replace(batch, rewards_F=batch.scores_F - coef * kl_F), {"reward_kl": mean}
