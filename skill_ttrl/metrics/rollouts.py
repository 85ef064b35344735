"""Metrics of a step's rollouts and rewards."""

from __future__ import annotations

from skill_ttrl.metrics.metric import COUNT, NUMBER, REWARD, SHARE, TOKENS, Metric, Section

TRAINED = "where anything is trained on"
DYNAMIC = "`rl.dynamic_sampling`"
GREEDY = "`rl.algorithm: remax`"

ROLLOUTS = Section(
    "Rollouts and rewards",
    "",
    (
        Metric("reward", *REWARD, "mean reward of the step's rollouts, as the algorithm is given it"),
        Metric(
            "rewards/<name>/mean",
            *REWARD,
            "mean of each reward before its weight; `overlong` is the length penalty",
            "with `rl.extra_rewards` or `rl.overlong`",
        ),
        Metric(
            "score/mean",
            *REWARD,
            "mean of what each trained rollout was rewarded, before a KL penalty: its reward, or the score that the algorithm gives in "
            "its place",
            TRAINED,
        ),
        Metric("score/max", *REWARD, "highest of the scores that `score/mean` averages", TRAINED),
        Metric("score/min", *REWARD, "lowest of the scores that `score/mean` averages", TRAINED),
        Metric(
            "advantage/mean",
            *NUMBER,
            "mean of the advantages of the trained steps, each the mean over its tokens",
            TRAINED,
        ),
        Metric("advantage/max", *NUMBER, "highest of the advantages that `advantage/mean` averages", TRAINED),
        Metric("advantage/min", *NUMBER, "lowest of the advantages that `advantage/mean` averages", TRAINED),
        Metric(
            "frac_reward_zero_std",
            *SHARE,
            "share of groups whose rollouts all earn the same",
            healthy="[0, 1)",
            trouble="near 1: nothing to learn for an algorithm that compares the rollouts of a group; where no reward differs in the first "
            "five steps, or in all, the run warns",
            change="more samples (`rollout.n_samples_per_prompt`), a higher `rollout.temperature`, other tasks; a cold start that is too weak, "
            "or, where the reward is high, tasks that are too easy",
        ),
        Metric("completions/mean_length", *TOKENS, "mean tokens of a response, inserted ones not counted"),
        Metric(
            "completions/clipped_ratio",
            *SHARE,
            "share of responses that ended at `rollout.max_new_tokens`",
            healthy="[0, 0.5)",
            trouble="high: answers end before they come",
            change="`rollout.max_new_tokens`",
        ),
        Metric(
            "failed_rollouts",
            *SHARE,
            "share of rollouts that failed: environment, backend, time",
            healthy="[0, 0]",
            trouble="above 0: such rollouts are left out of the update",
            change="the `error` of those rollouts in `trajectories.jsonl`",
        ),
        Metric("greedy_reward", *REWARD, "mean reward of the greedy rollouts", GREEDY),
        Metric("greedy_tokens", *TOKENS, "tokens sampled for the greedy rollouts", GREEDY),
        Metric(
            "failed_greedy_rollouts",
            *SHARE,
            "share of the greedy rollouts that failed",
            GREEDY,
            healthy="[0, 0]",
            trouble="above 0: a task whose greedy rollout failed is left out of that step",
            change="the `error` of those rollouts in `trajectories.jsonl`",
        ),
        Metric(
            "dynamic_sampling/rounds",
            *COUNT,
            "rounds of sampling in the step",
            DYNAMIC,
            trouble="at `rl.dynamic_sampling.max_rounds`: too few groups differ, and the step may learn from fewer",
            change="`rl.dynamic_sampling.max_rounds`; other tasks",
        ),
        Metric("dynamic_sampling/groups", *COUNT, "groups that the rounds of the step sampled", DYNAMIC),
        Metric("dynamic_sampling/dropped", *COUNT, "groups whose rewards are all equal", DYNAMIC),
        Metric("dynamic_sampling/surplus", *COUNT, "groups that differ, beyond `rl.prompts_per_step`", DYNAMIC),
        Metric("overlong_fraction", *SHARE, "share of rollouts with a length penalty", "`rl.overlong.penalty`"),
        Metric(
            "filtered_overlong",
            *SHARE,
            "share of responses that are out of the loss because they ended at the limit",
            "`rl.overlong.filter`",
            healthy="[0, 1)",
            trouble="1: every response is left out, and the step changes no weight",
            change="`rollout.max_new_tokens`; `rl.overlong.filter: false`",
        ),
    ),
)
