"""Metrics of the difference between the learner and the backend that sampled."""

from __future__ import annotations

from skill_ttrl.metrics.metric import NATS, NATS_A_TOKEN, NOT_NEGATIVE, SHARE, Metric, Section

COMPARED = "where learner and backend are compared"
RESCORED = "with `rl.rollout_correction.rescore`"
WEIGHTED = "where there are weights"
REJECTS = "`rl.rollout_correction.reject`"
AHEAD = "`rl.max_staleness` above 0"
STEPS = ("steps", "[0, ∞)")
PERPLEXITY = ("perplexity", "[1, ∞)")

CORRECTIONS = Section(
    "Corrections",
    "Where learner and rollout backend are compared ([algorithms.md](algorithms.md#corrections)); r is π_learner / π_backend of a token, verl's "
    "names.",
    (
        Metric(
            "staleness/mean",
            *STEPS,
            "mean over a step's completions of the steps between the weights that sampled them and those that learn from them",
            AHEAD,
        ),
        Metric("staleness/max", *STEPS, "largest of these", AHEAD),
        Metric(
            "sampling/logp_difference/mean",
            *NATS,
            "mean absolute difference of the log-probs of a token",
            RESCORED,
            healthy="[0, 0.1]",
            trouble="above 0.1 in bf16 and fp16, or 0.001 in float32, where the probe of an engine ends the run: the backend has old weights, or "
            "another precision",
            change="`vllm.dtype` and `runtime.precision: fp32` tell rounding from old weights; another `vllm.weight_sync`; `rl.rollout_correction`",
        ),
        Metric(
            "sampling/logp_difference/max", *NATS, "largest absolute difference of the log-probs of a token", RESCORED
        ),
        Metric("rollout_corr/kl", *NATS_A_TOKEN, "estimate k1 of KL(backend, learner)", COMPARED),
        Metric("rollout_corr/k3_kl", "nats a token", "[0, ∞)", "estimate k3 of KL(backend, learner)", COMPARED),
        Metric("rollout_corr/chi2_token", "", "[-1, ∞)", "mean of r² − 1 of tokens", COMPARED),
        Metric("rollout_corr/chi2_seq", "", "[-1, ∞)", "mean of r² − 1 of sequences", RESCORED),
        Metric("rollout_corr/training_ppl", *PERPLEXITY, "mean perplexity of a sequence for the learner", RESCORED),
        Metric("rollout_corr/rollout_ppl", *PERPLEXITY, "mean perplexity of a sequence for the backend", RESCORED),
        Metric("rollout_corr/ppl_ratio", *NOT_NEGATIVE, "mean ratio of the two perplexities of a sequence", RESCORED),
        Metric("rollout_corr/log_ppl_diff", *NATS_A_TOKEN, "mean over sequences of the mean log 1/r", RESCORED),
        Metric(
            "rollout_corr/log_ppl_abs_diff",
            "nats a token",
            "[0, ∞)",
            "mean over sequences of the absolute mean log 1/r",
            RESCORED,
        ),
        Metric("rollout_corr/rollout_is_mean", *NOT_NEGATIVE, "mean weight", WEIGHTED),
        Metric(
            "rollout_corr/rollout_is_eff_sample_size",
            *SHARE,
            "(mean w)² / mean w²: 1 where all weights are equal",
            WEIGHTED,
        ),
        Metric(
            "rollout_corr/rollout_is_ratio_fraction_high", *SHARE, "share of ratios above the upper bound", RESCORED
        ),
        Metric("rollout_corr/rollout_is_ratio_fraction_low", *SHARE, "share of ratios below the lower bound", RESCORED),
        Metric(
            "rollout_corr/rollout_is_batch_norm_factor",
            *NOT_NEGATIVE,
            "divisor of the weights",
            "`rl.rollout_correction.batch_normalize`",
        ),
        Metric("rollout_corr/rollout_rs_masked_fraction", *SHARE, "share of tokens that `reject` leaves out", REJECTS),
        Metric(
            "rollout_corr/rollout_rs_seq_masked_fraction",
            *SHARE,
            "share of sequences of which `reject` leaves any token out",
            f"{REJECTS}, with `rescore`",
        ),
        Metric(
            "rollout_corr/off_policy_masked_fraction",
            *SHARE,
            "share of tokens that `off_policy_kl` leaves out",
            "`rl.rollout_correction.off_policy_kl`",
        ),
    ),
)
