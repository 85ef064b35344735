"""Options of TRL and verl by name, and where they are found here; docs/coming-from.md says what differs."""

from __future__ import annotations

from collections.abc import Mapping

ELSEWHERE: Mapping[str, str] = {
    # TRL's GRPOConfig
    "beta": "rl.kl_coef",
    "epsilon": "rl.loss.clip_ratio",
    "epsilon_high": "rl.loss.clip_ratio_high",
    "delta": "rl.loss.delta",
    "importance_sampling_level": "rl.loss=gspo",
    "loss_type": "rl.loss and rl.loss_aggregation",
    "mask_truncated_completions": "rl.overlong={penalty: false, filter: true}",
    "max_completion_length": "rollout.max_new_tokens",
    "max_grad_norm": "rl.grad_clip",
    "max_steps": "rl.steps",
    "num_generations": "rollout.n_samples_per_prompt and rollout.n_votes_per_prompt",
    "num_iterations": "rl.ppo_epochs",
    "off_policy_mask_threshold": "rl.rollout_correction.off_policy_kl",
    "per_device_train_batch_size": "rl.micro_batch_size",
    "reward_weights": "rl.extra_rewards",
    "scale_rewards": "rl.algorithm.scale_rewards",
    "use_bias_correction_kl": "rl.kl_bias_correction",
    "use_vllm": "rollout.backend=vllm",
    "vllm_importance_sampling_correction": "rl.rollout_correction",
    "vllm_importance_sampling_mode": "rl.rollout_correction.type",
    # verl
    "adv_estimator": "rl.algorithm",
    "clip_ratio_c": "rl.loss.dual_clip",
    "clip_ratio_low": "rl.loss.clip_ratio",
    "entropy_coeff": "rl.entropy_coef",
    "filter_groups": "rl.dynamic_sampling",
    "gamma": "rl.algorithm={type: gae, gamma: 1.0}",
    "kl_ctrl": "rl.kl_in_reward",
    "kl_loss_coef": "rl.kl_coef",
    "kl_loss_type": "rl.kl_estimator",
    "kl_penalty": "rl.kl_in_reward.estimator",
    "lam": "rl.algorithm={type: gae, lam: 1.0}",
    "loss_agg_mode": "rl.loss_aggregation",
    "loss_mode": "rl.loss",
    "lr": "rl.learning_rate",
    "n": "rollout.n_samples_per_prompt and rollout.n_votes_per_prompt",
    "norm_adv_by_std_in_grpo": "rl.algorithm.scale_rewards=none",
    "ppo_max_token_len_per_gpu": "rl.micro_batch_tokens",
    "ppo_micro_batch_size_per_gpu": "rl.micro_batch_size",
    "ppo_mini_batch_size": "rl.mini_batch_size",
    "train_batch_size": "rl.prompts_per_step",
    "use_kl_in_reward": "rl.kl_in_reward={}",
    "use_kl_loss": "rl.kl_coef",
    "use_remove_padding": "model.packing",
}
"""Advice, by an option's own name. A key of ours with such a name is never looked up here."""
VERL_SECTIONS = ("actor_rollout_ref", "algorithm", "trainer")
"""Sections at the top of verl's configs that none of ours is called like."""
PAGE = "docs/coming-from.md"


def instead_of(name: str) -> str:
    """Advise what to set in place of an option of TRL's or verl's, as a sentence; empty for another name."""
    instead = ELSEWHERE.get(name)
    return f"by its name one of TRL's or verl's. Set {instead} ({PAGE})." if instead else ""
