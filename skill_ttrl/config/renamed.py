"""Former names of config keys and of their values, with the present ones.

A user's file with a former name is answered by an error that names the present one (`load`). The config of a run is data: it is read
under the present names (`with_current_names`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import AfterValidator

ROLES = ("policy", "teacher", "merger", "embeddings", "optimizer")

RENAMED: Mapping[str, str] = {
    "waits_for": "requires",
    "agent.constrain_actions": "agent.structured_actions",
    "agent.constrain_by": "agent.structured_by",
    "agent.history": "agent.history_length",
    "agent.memory": "agent.context_mode",
    "agent.observation_tokens": "agent.max_observation_tokens",
    "agent.order": "agent.action_order",
    "agent.projection": "agent.action_parser",
    "agent.unlisted": "agent.hidden_verbs",
    "collect.explore": "collect.epsilon",
    "collect.tries": "collect.rollouts_per_task",
    "dagger.checkpoint_every": "dagger.save_steps",
    "dagger.constrain_actions": "dagger.structured_actions",
    "dagger.validate_every": "dagger.eval_rounds",
    "demonstrations.other_skills": "demonstrations.random_skill_fraction",
    "demonstrations.thought": "demonstrations.rationale",
    "demonstrations.without_skills": "demonstrations.no_skill_fraction",
    "distill.prompt_tokens": "distill.prompt_max_tokens",
    **{f"endpoints.{role}.dialect": f"endpoints.{role}.server_type" for role in ROLES},
    "evolve.deep": "evolve.max_failures_below_threshold",
    "evolve.prompt_tokens": "evolve.prompt_max_tokens",
    "evolve.shallow": "evolve.max_failures_above_threshold",
    "model.embedded": "model.builtin",
    "optimize.gate.use": "optimize.gate.enabled",
    "optimize.skill_aware.use": "optimize.skill_aware.enabled",
    "optimize.slow_update.use": "optimize.slow_update.enabled",
    "rl.checkpoint_every": "rl.save_steps",
    "rl.critic.epochs": "rl.critic.ppo_epochs",
    "rl.epochs": "rl.ppo_epochs",
    "rl.invalid_penalty": "rl.invalid_action_penalty_coef",
    "rl.mini_batch_prompts": "rl.mini_batch_size",
    "rl.reference_mixup_alpha": "rl.ref_model_mixup_alpha",
    "rl.reference_refresh_steps": "rl.ref_model_sync_steps",
    "rl.schedule": "rl.lr_scheduler",
    "rl.validate_every": "rl.eval_steps",
    "rollout.episode_seconds": "rollout.rollout_timeout_s",
    "rollout.schedule": "rollout.mode",
    "run.keep_checkpoints": "run.save_total_limit",
    "run.tracker": "run.report_to",
    "sft.checkpoint_every": "sft.save_steps",
    "sft.clean_fraction": "sft.noise_free_fraction",
    "sft.order": "sft.shuffle",
    "sft.restart_after": "sft.lr_restart_at",
    "sft.restart_scale": "sft.lr_restart_scale",
    "sft.schedule": "sft.lr_scheduler",
    "sft.whole_fraction": "sft.prompt_loss_fraction",
    "skills.extract": "skills.extract_from_solutions",
    "skills.fuse_above": "skills.dedup_threshold",
    "skills.in_prompt": "skills.prompt_top_k",
    "skills.own_notes": "skills.episode_notes",
    "skills.prompt_tokens": "skills.prompt_max_tokens",
    "skills.retrieve_k": "skills.retrieval_top_k",
    "skills.retrieve_tokens": "skills.retrieval_max_tokens",
    "skills.stale_after": "skills.stale_after_steps",
    "skills.use": "skills.enabled",
    "vllm.max_gap": "vllm.max_logprob_diff",
    "vllm.sleep": "vllm.enable_sleep_mode",
    "vllm.transfer_folder": "vllm.weight_transfer_dir",
    "vllm.updates": "vllm.weight_sync",
    "vote_sft.checkpoint_every": "vote_sft.save_steps",
    "vote_sft.schedule": "vote_sft.lr_scheduler",
}
"""Former key → present one."""

VALUES: Mapping[str, Mapping[str, Any]] = {
    "demonstrations.label": {"won": "success", "advice": "expert"},
    "demonstrations.rationale": {"aim": "next_subgoal"},
    "model.path": {"embedded": "builtin"},
    "rl.stop_rule": {"agreement": "majority_ratio"},
    "rollout.mode": {"lockstep": "sync", "free": "async"},
    "sft.shuffle": {"shuffled": True, "given": False},
    "vllm.mode": {"engine": "colocate"},
    "vllm.weight_sync": {"weights": "full"},
}
"""Present key → its former values, each with the present one."""

FAMILY, SYNTHETIC = "family:", "synthetic:"
"""Former and present prefix of generated problems, in a source's `path` and in `skills.bank`."""


def present_value(key: str, value: Any) -> Any:
    """The present form of a value of the present key `key`; the value itself where it has no other."""
    if not isinstance(value, str):
        return value
    if value.startswith(FAMILY) and (key == "skills.bank" or key.endswith("path")):
        return SYNTHETIC + value.removeprefix(FAMILY)
    return VALUES.get(key, {}).get(value, value)


def former_value(key: str, value: Any) -> str:
    """Say what a former value is called now, as a sentence; empty for another value."""
    present = present_value(key, value)
    if present == value:
        return ""
    return f"the value {value!r} is now {str(present).lower() if isinstance(present, bool) else repr(present)}."


def present(key: str) -> AfterValidator:
    """Refuse former values of a field that takes any text, naming the present ones."""

    def check(value: Any) -> Any:
        if said := former_value(key, value):
            raise ValueError(said.removesuffix("."))
        return value

    return AfterValidator(check)


def with_current_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run, as its file states them, under the present names; keys that are not known stay."""
    return _renamed(copy.deepcopy(dict(data)), "")


def _renamed(section: dict[str, Any], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in section.items():
        key = RENAMED.get(f"{path}{name}", f"{path}{name}")
        ours = _renamed(value, f"{key}.") if isinstance(value, dict) else present_value(key, value)
        found[key.rpartition(".")[2]] = ours
    return found
