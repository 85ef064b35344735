"""Importance-sampling corrections for a sampler whose log-probs are not the learner's own.

An engine computes the same weights with other kernels, in another precision or one update late, so tokens come from a
distribution pi_sampler that is near to the learner's pi_old and not equal to it. With a correction the learner scores the
batch itself before it learns from it: its own log-probs are the denominators of the clipped ratio, and each token's advantage
is weighted by what separates the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.config import RLConfig
from skill_ttrl.rl.batch import MicroBatch, RolloutBatch

Correction = Literal["truncate", "mask"]
Score = Callable[[MicroBatch], Float[Tensor, "N R"]]
"""The learner's log-probs of a micro-batch's trained tokens, without gradient."""
LOG_WEIGHT_BOUND = 20.0


def choose_correction(rl: RLConfig, *, sampler_is_learner: bool) -> Correction | None:
    """The correction that `rl.sampler_correction` means; None for none. `auto` needs none where the learner's own model samples."""
    if rl.sampler_correction == "auto":
        return None if sampler_is_learner else "truncate"
    return None if rl.sampler_correction == "none" else rl.sampler_correction


def corrected(
    batch: RolloutBatch, score: Score, kind: Correction, cap: float, *, rows: int, pad_id: int
) -> tuple[RolloutBatch, dict[str, float]]:
    """The batch with the learner's own log-probs and a weight for each token, and the gap that was measured.

    `truncate`: w = min(pi_old / pi_sampler, cap), truncated importance sampling (Ionides 2008; for sampling engines Yao et al.
    2025, "Your efficient RL framework secretly brings you off-policy RL training"). `mask`: w is pi_old / pi_sampler within
    [1 / cap, cap] and 0 outside (IcePop, Ling team 2025).

    Args:
        batch: As it was sampled.
        score: Computes log-probs.
        kind: Which correction.
        cap: Largest weight, above 1.
        rows: Items scored at once.
        pad_id: Token id that fills up rows.

    Returns:
        (batch, figures). The figures, over trained tokens: `sampler_gap` and `sampler_gap_max` (absolute difference of the
        log-probs, nats), `sampler_kl` (estimate k3 of KL(pi_sampler || pi_old), nats), `sampler_weight` (mean weight),
        `sampler_capped` (share of tokens outside the bounds).
    """
    if not bool(batch.trained_F.any()):
        return batch, {}
    own_F = batch.old_log_probs_F.clone()
    for items in torch.split(torch.argsort(batch.lengths_N, stable=True), rows):  # in the order of `micro_batches`
        for micro_batch in batch.micro_batches(items, rows, pad_id):
            own_F[_places(batch, items)] = score(micro_batch)[micro_batch.response_mask_N_R.bool()].float().cpu()
    trained = batch.trained_F
    weights_F = torch.ones_like(own_F)
    weights_F[trained], figures = _token_weights((own_F - batch.old_log_probs_F)[trained], kind, cap)
    return replace(batch, old_log_probs_F=own_F, weights_F=weights_F), figures


def _token_weights(
    difference_K: Float[Tensor, " K"], kind: Correction, cap: float
) -> tuple[Float[Tensor, " K"], dict[str, float]]:
    """Weights from log pi_old - log pi_sampler, and the figures of `corrected`."""
    log_weight = difference_K.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    ratio = log_weight.exp()
    match kind:
        case "truncate":
            outside, weight = ratio > cap, ratio.clamp(max=cap)
        case "mask":
            outside = (ratio > cap) | (ratio < 1 / cap)
            weight = ratio.masked_fill(outside, 0.0)
        case _:
            assert_never(kind)
    return weight, {
        "sampler_gap": float(log_weight.abs().mean()),
        "sampler_gap_max": float(log_weight.abs().max()),
        "sampler_kl": float((ratio - 1 - log_weight).mean()),
        "sampler_weight": float(weight.mean()),
        "sampler_capped": float(outside.float().mean()),
    }


def _places(batch: RolloutBatch, rows: Tensor) -> Tensor:
    """Where the trained tokens of these items are in the flat tensors, item after item."""
    starts, lengths = batch.starts_N[rows, None], batch.lengths_N[rows, None]
    columns = torch.arange(int(lengths.max()))
    flat = (starts + columns).clamp(max=len(batch.trained_F) - 1)
    return flat[(columns < lengths) & batch.trained_F[flat]]
