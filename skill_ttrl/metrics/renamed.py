"""Former names of metrics, with the present ones: files of earlier runs are read under the present names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED: Mapping[str, str] = {
    "answered_rate": "retrieval_hit_rate",
    "answers_given_up": "undecided_answers",
    "advice_not_written": "expert_action_not_written",
    "cut_off": "completions/clipped_ratio",
    "evaluate/agreement": "evaluate/majority_ratio",
    "inserted_tokens": "retrieved_tokens",
    "ops_errors": "skill_op_parse_errors",
    "response_tokens": "completions/mean_length",
    "sampler_capped": "rollout_corr/rollout_is_ratio_fraction_high",
    "sampler_gap": "sampling/logp_difference/mean",
    "sampler_gap_max": "sampling/logp_difference/max",
    "sampler_kl": "rollout_corr/kl",
    "sampler_weight": "rollout_corr/rollout_is_mean",
    "skills_credited": "skills_used",
    "skills_refused": "skills_rejected",
    "skills_retired": "skills_evicted",
    "timeouts": "timeout_fraction",
    "uniform_groups": "frac_reward_zero_std",
}
"""Former name → present one."""
PREFIXES: Mapping[str, str] = {"left_out/": "prompt_truncated/"}
"""Former beginning of a name → present one."""


def current_name(name: str) -> str:
    """The present name of a metric, given a former one or the present one."""
    for former, present in PREFIXES.items():
        if name.startswith(former):
            return present + name.removeprefix(former)
    return RENAMED.get(name, name)


def with_current_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl` under the present names."""
    return {current_name(name): value for name, value in row.items()}
