"""What verl gives: `generate_learner_values.py` runs this in an environment that has it."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tests.golden.generate_learner_values import Recorder

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


class Settings(dict[str, Any]):
    """The options of an algorithm, by attribute as well, as verl reads them."""

    __getattr__ = dict.__getitem__


def collect(recorder: Recorder) -> None:
    """Every case."""
    core = import_module("verl.trainer.ppo.core_algos")
    for add in (advantages, losses, aggregations, divergences, critics, corrections, controllers):
        add(recorder, core)


SOURCES: dict[str, Any] = {"verl": (lambda: {"version": version("verl")}, collect)}


def advantages(recorder: Recorder, core: Any) -> None:
    """Every registered estimator."""
    outcome = {"token_level_rewards": "token_level_scores", "response_mask": "response_mask", "index": "groups"}
    dense = outcome | {"token_level_rewards": "token_level_rewards"}
    cases: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
        ("grpo", "grpo", outcome, {"norm_adv_by_std_in_grpo": True}),
        ("grpo/mean_only", "grpo", outcome, {"norm_adv_by_std_in_grpo": False}),
        ("grpo/with_kl", "grpo", dense, {"norm_adv_by_std_in_grpo": True}),
        ("grpo_vectorized", "grpo_vectorized", outcome, {}),
        ("rloo", "rloo", outcome, {}),
        ("rloo_vectorized", "rloo_vectorized", outcome, {}),
        ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline", outcome, {}),
        ("reinforce_plus_plus_baseline/with_kl", "reinforce_plus_plus_baseline", dense, {}),
    ]
    for name, estimator, named, settings in cases:
        function = core.get_adv_estimator_fn(estimator)
        found, returns = function(**recorder.arguments(named), **settings)
        recorder.note(f"advantage/{name}", function, named, settings, {"advantages": found, "returns": returns})
    for gamma in (1.0, 0.9):
        for name, named in (("scores", outcome), ("with_kl", dense)):
            function = core.get_adv_estimator_fn("reinforce_plus_plus")
            settings = {"gamma": gamma}
            found, returns = function(**recorder.arguments(named), config=Settings(settings))
            where = f"advantage/reinforce_plus_plus/{name}/gamma={gamma}"
            recorder.note(where, function, named, settings, {"advantages": found, "returns": returns})
    for gamma, lam in ((1.0, 1.0), (0.9, 0.8)):
        function = core.get_adv_estimator_fn("gae")
        named = {"token_level_rewards": "token_level_rewards", "values": "values", "response_mask": "response_mask"}
        settings = {"gamma": gamma, "lam": lam}
        found, returns = function(**recorder.arguments(named), **settings)
        values = {"advantages": found, "returns": returns}
        recorder.note(f"advantage/gae/gamma={gamma},lam={lam}", function, named, settings, values)


def losses(recorder: Recorder, core: Any) -> None:
    """Every registered policy loss, with its gradient with respect to the log-probs."""
    settings_of: list[tuple[str, str, dict[str, Any]]] = [
        ("vanilla", "vanilla", {}),
        ("vanilla/clip_higher", "vanilla", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}),
        ("vanilla/dual_clip=1.5", "vanilla", {"clip_ratio_c": 1.5}),
        ("vanilla/dual_clip=10", "vanilla", {"clip_ratio_c": 10.0}),
        ("gspo", "gspo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}),
        ("gspo/narrow", "gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
        ("cispo", "cispo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}),
        ("cispo/no_lower", "cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 0.28}),
        ("gpg", "gpg", {}),
    ]
    named = {
        "old_log_prob": "old_log_probs",
        "log_prob": "log_probs",
        "advantages": "advantages",
        "response_mask": "mask",
    }
    variants = {
        "": {},
        "/empty_row": {"response_mask": "mask_with_empty_row"},
        "/tokens": {"advantages": "advantages_of_tokens"},
        "/far": {"log_prob": "far_log_probs"},
    }
    for name, loss, settings in settings_of:
        modes = MODES if name == "vanilla" else ("seq-mean-token-mean",) if loss == "gspo" else ("token-mean",)
        for mode in modes:
            for ending, other in variants.items() if mode == modes[0] else [("", variants[""])]:
                if ending == "/far" and name not in ("vanilla", "gspo", "cispo"):
                    continue
                where = f"loss/{name}{'' if mode == modes[0] else '/' + mode}{ending}"
                _loss(recorder, core, where, loss, named | other, settings | {"loss_agg_mode": mode})
    weighted = named | {"rollout_is_weights": "entropies"}  # any positive numbers serve as weights
    for loss, mode in (("vanilla", "token-mean"), ("gspo", "seq-mean-token-mean"), ("cispo", "token-mean")):
        _loss(recorder, core, f"loss/{loss}/weighted", loss, weighted, {"loss_agg_mode": mode})


def _loss(
    recorder: Recorder, core: Any, where: str, loss: str, named: dict[str, str], settings: dict[str, Any]
) -> None:
    actor = import_module("verl.workers.config.actor")
    function = core.get_policy_loss_fn(loss)
    options = {key: value for key, value in settings.items() if key not in ("policy_loss", "loss_agg_mode")}
    config = actor.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=actor.PolicyLossConfig(**settings.get("policy_loss", {})),
        **options,
    )
    given = recorder.arguments(named)
    given["log_prob"].requires_grad_()
    torch.manual_seed(0)
    value, metrics = function(**given, loss_agg_mode=settings["loss_agg_mode"], config=config)
    (gradient,) = torch.autograd.grad(value, given["log_prob"])
    recorder.note(where, function, named, settings, {"loss": value, "gradient": gradient, "metrics": metrics})


def aggregations(recorder: Recorder, core: Any) -> None:
    """The four names, with and without a row that has no token, and as a part of a larger batch."""
    whole = {"batch_num_tokens": 40, "global_batch_size": 10}
    for mode in MODES:
        for ending, mask, settings in (
            ("", "mask", {}),
            ("/empty_row", "mask_with_empty_row", {}),
            ("/part", "mask", whole),
            ("/horizon", "mask", {"loss_scale_factor": 12}),
        ):
            named = {"loss_mat": "losses", "loss_mask": mask}
            value = core.agg_loss(**recorder.arguments(named), loss_agg_mode=mode, **settings)
            recorder.note(
                f"aggregate/{mode}{ending}", core.agg_loss, named, {"loss_agg_mode": mode} | settings, {"loss": value}
            )
    named = {"logits": "logits", "response_mask": "mask"}
    value = core.compute_entropy_loss(**recorder.arguments(named))
    recorder.note("entropy", core.compute_entropy_loss, named, {}, {"loss": value})


def divergences(recorder: Recorder, core: Any) -> None:
    """The estimator k3 of the KL divergence by both of its names, and its gradient."""
    for case, first in (("low_var_kl", "log_probs"), ("k3", "log_probs"), ("k3/far", "far_log_probs")):
        name = case.partition("/")[0]
        named = {"logprob": first, "ref_logprob": "reference_log_probs"}
        given = recorder.arguments(named)
        given["logprob"].requires_grad_()
        value = core.kl_penalty(**given, kl_penalty=name)
        (gradient,) = torch.autograd.grad(value.sum(), given["logprob"])
        values = {"kl": value, "gradient": gradient}
        recorder.note(f"kl/{case}", core.kl_penalty, named, {"kl_penalty": name}, values)


def critics(recorder: Recorder, core: Any) -> None:
    """The clipped value loss, and whitening."""
    named = {"vpreds": "new_values", "returns": "returns", "values": "values", "response_mask": "response_mask"}
    for clip in (0.2, 0.5):
        for mode in MODES if clip == 0.2 else MODES[:1]:
            given = recorder.arguments(named)
            given["vpreds"].requires_grad_()
            settings = {"cliprange_value": clip, "loss_agg_mode": mode}
            loss, fraction = core.compute_value_loss(**given, **settings)
            (gradient,) = torch.autograd.grad(loss, given["vpreds"])
            values = {"loss": loss, "clip_fraction": fraction, "gradient": gradient}
            recorder.note(f"value/clip={clip}/{mode}", core.compute_value_loss, named, settings, values)
    functional = import_module("verl.utils.torch_functional")
    named = {"values": "values", "mask": "response_mask"}
    for shift in (True, False):
        found = functional.masked_whiten(**recorder.arguments(named), shift_mean=shift)
        where = "whiten" + ("" if shift else "/mean_stays")
        recorder.note(where, functional.masked_whiten, named, {"shift_mean": shift}, {"values": found})


def corrections(recorder: Recorder, core: Any) -> None:
    """Importance weights and their figures."""
    helper = import_module("verl.trainer.ppo.rollout_corr_helper")
    function = helper.compute_rollout_correction_and_rejection_mask
    cases: list[tuple[str, dict[str, Any]]] = [
        ("token_truncate", {"rollout_is": "token", "rollout_is_threshold": 2.0}),
        ("token_truncate/low", {"rollout_is": "token", "rollout_is_threshold": 1.1}),
    ]
    named = {"old_log_prob": "old_log_probs", "rollout_log_prob": "sampler_log_probs", "response_mask": "mask"}
    for name, settings in cases:
        for ending, mask in (("", "mask"), ("/empty_row", "mask_with_empty_row")):
            each = named | {"response_mask": mask}
            weights, kept, metrics = function(**recorder.arguments(each), **settings)
            values = {
                "mask": kept,
                "metrics": {key.removeprefix("rollout_corr/"): value for key, value in metrics.items()},
                "weights": weights.batch["rollout_is_weights"],
            }
            recorder.note(f"correction/{name}{ending}", function, each, settings, values)


def controllers(recorder: Recorder, core: Any) -> None:
    """The KL in the reward."""
    trainer = import_module("verl.trainer.ppo.ray_trainer")
    protocol = import_module("verl.protocol")
    named = {
        "old_log_probs": "old_log_probs",
        "ref_log_prob": "reference_log_probs",
        "response_mask": "mask",
        "token_level_scores": "losses",
    }
    options = {"type": "fixed", "kl_coef": 0.05, "target_kl": 0.1, "horizon": 50}
    control = core.get_kl_controller(Settings(options))
    batch = protocol.DataProto.from_dict(tensors=recorder.arguments(named))
    batch, metrics = trainer.apply_kl_penalty(batch, kl_ctrl=control, kl_penalty="kl")
    values: dict[str, Any] = {"rewards": batch.batch["token_level_rewards"], "metrics": metrics, "coef": control.value}
    recorder.note("kl_in_reward/kl/fixed", trainer.apply_kl_penalty, named, options | {"kl_penalty": "kl"}, values)
