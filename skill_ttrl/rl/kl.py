"""KL divergence between the policy and a reference: three estimators from log-probs of the sampled tokens.

John Schulman, "Approximating KL Divergence" (2020): with d = log pi - log ref at a token sampled from pi,
k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d.
"""

from __future__ import annotations

from typing import Literal, assert_never

from jaxtyping import Float
from torch import Tensor

from skill_ttrl.rl.losses.aggregate import AggregationMode, Denominators, aggregate, masked_mean

KLEstimator = Literal["k1", "k2", "k3"]


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

    As a loss, k2 has the gradient of the true KL, k3 one that is biased but always towards the reference, and k1 one
    that is 0 in expectation. k3 is clamped as in verl: difference to +-20, value to at most 10.

    Args:
        log_probs: Of the policy, with gradient (N, T).
        ref_log_probs: Of the reference (N, T).
        response_mask: 1 at trained tokens (N, T).
        kl_coef: Weight of the term.
        estimator: `k1`, `k2` or `k3`.
        loss_agg_mode: See `aggregate`.
        denominators: See `aggregate`.

    Returns:
        (kl_loss, kl_value): `kl_coef` times the aggregate; and the mean over masked tokens, detached, in nats.
    """
    kl_N_T = log_probs - ref_log_probs
    match estimator:
        case "k1":
            pass
        case "k2":
            kl_N_T = 0.5 * kl_N_T.square()
        case "k3":
            back_N_T = (-kl_N_T).clamp(-20.0, 20.0)
            kl_N_T = (back_N_T.exp() - back_N_T - 1.0).clamp(-10.0, 10.0)
        case _:
            assert_never(estimator)
    kl_loss = kl_coef * aggregate(kl_N_T, response_mask, loss_agg_mode, denominators)
    return kl_loss, masked_mean(kl_N_T.detach(), response_mask)
