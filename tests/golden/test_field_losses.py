"""Our policy losses, aggregations, KL estimators and entropy bonus against verl's and TRL's own values, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from skill_ttrl.rl.losses import (
    AggregationMode,
    Denominators,
    LossInputs,
    aggregate,
    build_loss,
    compute_entropy_bonus,
    compute_kl_penalty,
    kl_estimate,
)
from tests.golden.field_values import assert_close, base, cases, given, tensor

Found = tuple[Tensor, Tensor, dict[str, Tensor]]

VERL: dict[str, dict[str, Any]] = {
    "vanilla": {"type": "ppo_clip"},
    "vanilla/clip_higher": {"type": "ppo_clip", "clip_ratio_high": 0.28},
    "vanilla/dual_clip=1.5": {"type": "ppo_clip", "dual_clip": 1.5},
    "vanilla/dual_clip=10": {"type": "ppo_clip", "dual_clip": 10.0},
    "gspo": {"type": "gspo", "clip_ratio": 0.2, "clip_ratio_high": 0.28},
    "gspo/narrow": {"type": "gspo", "clip_ratio": 3e-4, "clip_ratio_high": 4e-4},
    "gspo/weighted": {"type": "gspo", "clip_ratio": 0.2, "clip_ratio_high": None},
    "cispo/weighted": {"type": "cispo", "clip_ratio": 0.2, "clip_ratio_high": 0.2},
    "cispo": {"type": "cispo", "clip_ratio": 0.2, "clip_ratio_high": 0.28},
    "cispo/no_lower": {"type": "cispo", "clip_ratio": None, "clip_ratio_high": 0.28},
    "gpg": {"type": "reinforce"},
}
"""Our options for each of verl's."""

TRL: dict[str, tuple[dict[str, Any], AggregationMode]] = {
    "grpo": ({"type": "ppo_clip", "dual_clip": None}, "seq-mean-token-mean"),
    "grpo/clip_higher": ({"type": "ppo_clip", "dual_clip": None, "clip_ratio_high": 0.28}, "seq-mean-token-mean"),
    "bnpo": ({"type": "ppo_clip", "dual_clip": None, "clip_ratio_high": 0.28}, "token-mean"),
    "dapo": ({"type": "ppo_clip", "dual_clip": None, "clip_ratio_high": 0.28}, "token-mean"),
    "dr_grpo": ({"type": "ppo_clip", "dual_clip": None, "clip_ratio_high": 0.28}, "seq-mean-token-sum-norm"),
    "weighted": ({"type": "ppo_clip", "dual_clip": None}, "token-mean"),
    "gspo": ({"type": "gspo", "clip_ratio": 0.2, "clip_ratio_high": 0.28}, "seq-mean-token-mean"),
    "gspo/narrow": ({"type": "gspo", "clip_ratio": 3e-4, "clip_ratio_high": 4e-4}, "seq-mean-token-mean"),
    "luspo": ({"type": "gspo", "clip_ratio": 0.2, "clip_ratio_high": 0.28}, "seq-mean-token-sum"),
    "cispo": ({"type": "cispo", "clip_ratio": None, "clip_ratio_high": 0.28}, "token-mean"),
    "cispo/wide": ({"type": "cispo", "clip_ratio": None, "clip_ratio_high": 4.0}, "token-mean"),
}
"""Our options and aggregation for each of TRL's `loss_type`s. Its `epsilon_high` of CISPO is the bound, ours the distance from 1."""


def ours(settings: dict[str, Any], case: dict[str, Any], mode: Any, whole: Denominators | None = None) -> Found:
    """Our loss, its gradient and its metrics for a case of verl or TRL."""
    names = {"log_prob": "log_probs", "old_log_prob": "old_log_probs", "response_mask": "mask"}
    named = {names.get(argument, argument): value for argument, value in given(case).items()}
    log_probs = named["log_probs"].requires_grad_()
    old, mask = named["old_log_probs"], named["mask"]
    token_loss, info = build_loss(settings)(LossInputs(log_probs, old, named["advantages"], mask))
    weights = named.get("rollout_is_weights", named.get("weights"))
    if weights is not None:
        token_loss = token_loss * weights
    loss = aggregate(token_loss, mask, mode, whole)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    return loss, gradient, info


@pytest.mark.parametrize("name", list(cases("verl", "loss")))
def test_policy_losses_are_verls(name: str) -> None:
    case = cases("verl", "loss")[name]
    settings = VERL[str(base(name, VERL))]
    loss, gradient, info = ours(settings, case, case["settings"]["loss_agg_mode"])
    assert_close(loss, case["values"]["loss"], name)
    assert_close(gradient, case["values"]["gradient"], name)
    shares = case["values"]["metrics"]
    if settings["type"] in ("ppo_clip", "gspo", "cispo"):
        decided = shares["actor/pg_clipfrac"] + shares["actor/pg_clipfrac_lower"]
        assert_close(info["clip_fraction"], decided, name)


@pytest.mark.parametrize("name", [name for name in cases("trl", "loss") if name != "kl"])
def test_policy_losses_are_trls(name: str) -> None:
    case = cases("trl", "loss")[name]
    settings, mode = TRL[str(base(name, TRL))]
    mask = given(case)["mask"]
    # A deliberate difference: TRL divides by all sequences, we (and verl) by those that have a trained token.
    whole = Denominators(float(mask.sum()), float(len(mask)), 12.0)
    loss, gradient, _ = ours(settings, case, mode, whole)
    assert_close(loss, case["values"]["loss"], name)
    assert_close(gradient, case["values"]["gradient"], name)


@pytest.mark.parametrize("name", sorted(cases("verl", "aggregate")))
def test_aggregations_are_verls(name: str) -> None:
    case = cases("verl", "aggregate")[name]
    named, settings = given(case), case["settings"]
    mask = named["loss_mask"]
    counted = Denominators.of(mask)
    whole = Denominators(
        float(settings.get("batch_num_tokens", counted.tokens)),
        float(settings.get("global_batch_size", counted.sequences)),
        float(settings.get("loss_scale_factor", counted.horizon)),
    )
    assert_close(aggregate(named["loss_mat"], mask, settings["loss_agg_mode"], whole), case["values"]["loss"], name)


@pytest.mark.parametrize("name", sorted(cases("verl", "kl")))
def test_the_kl_estimate_is_verls(name: str) -> None:
    case = cases("verl", "kl")[name]
    named = given(case)
    log_probs = named["logprob"].requires_grad_()
    found = kl_estimate(log_probs, named["ref_logprob"])
    (gradient,) = torch.autograd.grad(found.sum(), log_probs)
    assert_close(found, case["values"]["kl"], name)
    assert_close(gradient, case["values"]["gradient"], name)


def test_the_kl_term_adds_up_as_in_trl() -> None:
    case = cases("trl", "loss")["kl"]
    named = given(case)
    mask, log_probs = named["mask"], named["log_probs"].requires_grad_()
    token_loss, _ = build_loss({"type": "ppo_clip", "dual_clip": None})(
        LossInputs(log_probs, named["old_log_probs"], named["advantages"], mask)
    )
    term, _ = compute_kl_penalty(log_probs, named["reference_log_probs"], mask, case["settings"]["beta"])
    loss = aggregate(token_loss, mask) + term
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert_close(loss, case["values"]["loss"], "kl")
    assert_close(gradient, case["values"]["gradient"], "kl")


def test_the_entropy_and_its_bonus_are_the_libraries() -> None:
    mask, logits = tensor("mask"), tensor("logits")
    log_probs = logits.log_softmax(-1)
    assert_close(
        aggregate(-(log_probs.exp() * log_probs).sum(-1), mask),
        cases("verl", "entropy")[""]["values"]["loss"],
        "entropy",
    )
    case = cases("trl", "entropy")["fixed"]
    bonus = compute_entropy_bonus(tensor("entropies"), mask, case["settings"]["entropy_coef"])
    assert_close(bonus, case["values"]["loss"], "bonus")
