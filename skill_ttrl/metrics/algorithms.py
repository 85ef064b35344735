"""Metrics that one algorithm has, and those of the critic."""

from __future__ import annotations

from skill_ttrl.metrics.metric import COUNT, NOT_NEGATIVE, REWARD, SHARE, Metric, Section

CRITIC = "`rl.algorithm: gae`, `ppo`"
STATES = "`rl.algorithm: gigpo`, `graphgpo`"

ALGORITHMS = Section(
    "Algorithms",
    "",
    (
        Metric(
            "training/grpo_nsr_pos_ratio",
            *SHARE,
            "share of the trained samples that are correct",
            "`rl.algorithm: grpo_nsr`",
            healthy="(0, 1)",
            trouble="0 or 1: the threshold is outside of the rewards' range, or the votes are unanimous: then there is nothing to learn",
            change="`rl.algorithm.threshold`",
        ),
        Metric(
            "training/grpo_nsr_pos_token_ratio",
            *SHARE,
            "share of the trained tokens that are of correct samples",
            "`rl.algorithm: grpo_nsr`",
            trouble="far below `training/grpo_nsr_pos_ratio`: wrong answers are the long ones, often cut off",
            change="`completions/clipped_ratio`, `rollout.max_new_tokens`",
        ),
        Metric(
            "gmae_reward",
            "probability",
            "[0, 1]",
            "mean probability of a sample to be rewarded",
            "`rl.algorithm: gmae`",
        ),
        Metric("ttpo_agreeing", *SHARE, "share of the samples that are imitated", "`rl.algorithm: ttpo`"),
        Metric("scrl/pseudo_positive_ratio", *SHARE, "share of prompts with a positive label", "`rl.algorithm: scrl`"),
        Metric("scrl/avg_num_negatives", *COUNT, "mean number of negative labels of a prompt", "`rl.algorithm: scrl`"),
        Metric(
            "evol_rl_similarity",
            "similarity",
            "[-1, 1]",
            "mean similarity of two samples of a prompt",
            "`rl.algorithm: evol_rl`",
        ),
        Metric("step_group_size", *COUNT, "mean number of steps that are compared with each other", STATES),
        Metric(
            "singleton_states",
            *SHARE,
            "share of states with a single step, which has nothing to be compared with",
            STATES,
        ),
        Metric(
            "groups_with_success", *SHARE, "share of groups in which a rollout succeeded", "`rl.algorithm: graphgpo`"
        ),
        Metric("critic/vf_loss", *NOT_NEGATIVE, "loss of the critic, mean over its optimizer steps", CRITIC),
        Metric(
            "critic/vf_clipfrac",
            *SHARE,
            "share of values that a clip decides, mean over the critic's optimizer steps",
            CRITIC,
        ),
        Metric(
            "critic/vf_explained_var",
            "",
            "(-∞, 1]",
            "share of the returns' variance that the values explain: 1: they predict every return; 0: no better than a constant",
            CRITIC,
            healthy="[0, 1]",
            trouble="below 0: the values mislead",
            change="`rl.critic.learning_rate`, `rl.critic.head_learning_rate`, `rl.critic.warmup_steps`; with large rewards `rl.critic.value_clip`",
        ),
        Metric("critic/values/mean", *REWARD, "mean value before the update", CRITIC),
        Metric("critic/returns/mean", *REWARD, "mean return before the update", CRITIC),
        Metric(
            "critic/grad_norm",
            *NOT_NEGATIVE,
            "norm of the critic's gradient before clipping, mean over its optimizer steps",
            CRITIC,
        ),
        Metric("critic/lr", *NOT_NEGATIVE, "learning rate of the critic", CRITIC),
        Metric("critic/updates", *COUNT, "optimizer steps that the critic took", CRITIC),
        Metric(
            "critic/skipped_updates",
            *COUNT,
            "optimizer steps of the critic left out because loss or gradient was not finite",
            CRITIC,
            healthy="[0, 0]",
            trouble="above 0: as `skipped_updates`",
            change="`runtime.precision`, `rl.critic.learning_rate`",
        ),
    ),
)
