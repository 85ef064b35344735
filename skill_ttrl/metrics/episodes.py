"""Metrics of a step's episodes: success, actions, and what prompts had no room for."""

from __future__ import annotations

from skill_ttrl.metrics.metric import SHARE, Metric, Section

READ = "where actions are read (`agent.action_parser`)"

EPISODES = Section(
    "Episodes",
    "",
    (
        Metric("success", *SHARE, "share of rollouts that succeeded", "where the environment says so"),
        Metric(
            "success/<type>",
            *SHARE,
            "share of rollouts of one type of task that succeeded",
            "where training has several types",
        ),
        Metric(
            "score",
            "score",
            "(-∞, 1]",
            "mean of how near rollouts came to a perfect one",
            "where the environment rewards in part",
        ),
        Metric(
            "expert_agreement",
            *SHARE,
            "share of the steps in which the policy did what the expert would have done",
            "`dagger_round`, one line a round of the phase `dagger`",
            trouble="near 1 from the first round: the policy does already what the expert does, and more rounds of the same tasks teach little",
        ),
        Metric(
            "expert_action_not_written",
            *SHARE,
            "share of the steps in which the policy's [form of actions](imitation.md#a-form-of-actions-of-your-own) cannot write what the expert "
            "would have done; nothing is learnt there",
            "as `expert_agreement`, with such a form",
        ),
        Metric(
            "invalid_actions",
            *SHARE,
            "share of the steps whose action could not be read from the model's words",
            READ,
            healthy="[0, 0.9)",
            trouble="high: the model does not write its actions in the asked form; the run warns from 0.9",
            change="more cold start (`sft.steps`), `agent.actions: numbered`, another `agent.action_parser`; `steps[].parse_error` in `trajectories.jsonl`",
        ),
        Metric(
            "repaired_actions",
            *SHARE,
            "share of the steps whose action was read only after a repair of the model's words",
            READ,
        ),
        Metric(
            "episode_steps", "steps", "[0, ∞)", "mean steps of a rollout that did not fail", "`agent.max_turns` above 1"
        ),
        Metric(
            "timeout_fraction",
            *SHARE,
            "share of rollouts that ran out of time",
            "`rollout.rollout_timeout_s`",
            healthy="[0, 0]",
            trouble="above 0: the limit is short for so many turns, or for the queue",
            change="a larger `rollout.rollout_timeout_s`, or fewer `rl.prompts_per_step`",
        ),
        Metric(
            "prompt_truncated/<part>",
            *SHARE,
            "share of the steps whose prompt had no room for all `turns`, `observation_tokens`, `actions`, `skills`",
            "`agent.context_mode: window`; skills in prompts",
            trouble="high: pages, lists or skills are longer than their budget",
            change="a larger `data.max_prompt_tokens`, `agent.max_observation_tokens` or `skills.prompt_max_tokens`; a lower `agent.history_length` or "
            "`skills.prompt_top_k`",
        ),
    ),
)
