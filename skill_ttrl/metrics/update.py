"""Metrics of the update: loss, KL, entropy, clipping, gradient, tokens."""

from __future__ import annotations

from skill_ttrl.metrics.metric import COUNT, NATS, NATS_A_TOKEN, NOT_NEGATIVE, NUMBER, SHARE, TOKENS, Metric, Section

TRAINED = "where anything is trained on"
CLIPS = "losses that clip"
FAST = "the learning rate is too high, or too many epochs"
SLOWER = "`rl.learning_rate`, `rl.ppo_epochs`"

UPDATE = Section(
    "Update",
    "",
    (
        Metric(
            "policy_loss",
            *NUMBER,
            "the policy loss, aggregated as `rl.loss_aggregation` says; mean over the optimizer steps, KL and entropy not in it",
        ),
        Metric("kl", *NATS_A_TOKEN, "mean of `rl.kl_estimator` to the reference", "`rl.kl_coef` above 0"),
        Metric("reward_kl", *NATS_A_TOKEN, "mean KL of the penalty in the reward", "`rl.kl_in_reward`"),
        Metric("reward_kl_coef", *NOT_NEGATIVE, "coefficient of that penalty that was applied", "`rl.kl_in_reward`"),
        Metric(
            "entropy",
            *NATS,
            "minus the mean log-prob of the tokens: an estimate for the policy that sampled",
            TRAINED,
        ),
        Metric("post_entropy", *NATS, "`entropy` by TTRL's name", TRAINED),
        Metric(
            "entropy_coef", *NOT_NEGATIVE, "coefficient of the entropy bonus that was applied", "`rl.adaptive_entropy`"
        ),
        Metric(
            "entropy_threshold",
            *NATS,
            "entropy below which a token has no policy loss",
            "`rl.top_entropy_quantile` below 1",
        ),
        Metric("approx_kl", "nats a token", "[0, ∞)", "mean of ρ − 1 − log ρ", trouble=f"large: {FAST}", change=SLOWER),
        Metric("ratio_mean", *NOT_NEGATIVE, "mean policy ratio ρ"),
        Metric(
            "ratio_max",
            *NOT_NEGATIVE,
            "largest policy ratio ρ",
            trouble="far from 1 in the first mini-batch: sampler and learner differ",
            change="precision (`runtime.precision: fp32`), or a backend of your own",
        ),
        Metric(
            "clip_fraction",
            *SHARE,
            "share of tokens whose loss a clip decides; `dppo`: that are masked",
            CLIPS,
            trouble=f"high: {FAST}",
            change=SLOWER,
        ),
        Metric("clip_fraction_low", *SHARE, "of `clip_fraction` the tokens with ρ < 1; `dppo`: with A < 0", CLIPS),
        Metric(
            "clip_fraction_high",
            *SHARE,
            "of `clip_fraction` the tokens with ρ > 1 and a positive advantage; the rest is the dual clip's; `dppo`: with A > 0",
            CLIPS,
        ),
        Metric("gate", *NOT_NEGATIVE, "mean weight of the gate, in [0, 1] but for the ratio", "`rl.loss: sapo`"),
        Metric("sequence_weight", *NOT_NEGATIVE, "mean weight φ", "`rl.loss: vespo`"),
        Metric(
            "selected_fraction",
            *SHARE,
            "share of tokens that are held back or penalised",
            "`rl.loss: clip_cov`, `kl_cov`",
        ),
        Metric(
            "grad_norm",
            *NOT_NEGATIVE,
            "norm of the gradient before clipping, mean over the optimizer steps",
            healthy="(0, ∞)",
            trouble="0: no rollout had an advantage",
            change="`frac_reward_zero_std`",
        ),
        Metric(
            "grad_norm/<part>",
            *NOT_NEGATIVE,
            "that of `embeddings`, `attention`, `mlp`, `norms`, `head`, `lora`, `other`",
            "parts that the model trains",
        ),
        Metric("learning_rate", *NOT_NEGATIVE, "rate of the last optimizer step", "where one was due"),
        Metric(
            "updates",
            *COUNT,
            "optimizer steps taken",
            trouble="0 in every step although rewards differ: every advantage was 0, or every response was left out",
            change="the options of `rl.algorithm`; `filtered_overlong`",
        ),
        Metric(
            "skipped_updates",
            *COUNT,
            "optimizer steps left out because loss or gradient was not finite",
            healthy="[0, 0]",
            trouble="above 0: the batch is in the run's `nonfinite/`; with fp16 some are left out while the loss scaler finds its scale",
            change="`runtime.precision`, `rl.learning_rate`; a loss of your own",
        ),
        Metric("tokens", *TOKENS, "trained tokens"),
        Metric("all_tokens", *TOKENS, "tokens of prompts and responses"),
        Metric(
            "sequences", *COUNT, "items: one a step of a rollout, or with `agent.context_mode: episode` one a rollout"
        ),
        Metric("computed_tokens", *TOKENS, "tokens that the model computed for the update, packed ones once"),
        Metric("operations", *COUNT, "floating-point operations of the update, scoring included"),
        Metric("loss", "nats a token", "[0, ∞)", "cross-entropy", "phases `sft`, `dagger` and `vote_sft`"),
    ),
)
