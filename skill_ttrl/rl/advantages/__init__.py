"""Advantages: how much better than expected a rollout was. Pure functions, one small file for each estimator.

An outcome estimator maps the rewards of N rollouts and the group of each onto one number a rollout; a token-level one maps padded
(N, T) rewards onto (N, T) advantages. Which one a run uses is its algorithm's (`rl.algorithms`). An estimator that also takes
`episodes` (`StepwiseEstimator`) can be used where steps of an episode differ; see `episodes.py`.
"""

from skill_ttrl.rl.advantages.baselines import gpg_advantages, opo_advantages, passk_advantages, rloo_advantages
from skill_ttrl.rl.advantages.episodes import GroupLevel, step_advantages
from skill_ttrl.rl.advantages.estimator import AdvantageEstimator, StepwiseEstimator, is_stepwise
from skill_ttrl.rl.advantages.gae import compute_gae_advantage, whiten_advantages
from skill_ttrl.rl.advantages.gigpo import anchor_groups, discounted_returns
from skill_ttrl.rl.advantages.gmae import GroupContexts, group_contexts, poisson_binomial_advantages
from skill_ttrl.rl.advantages.graph import SUCCESS, Edge, distances_to_success, edge_returns
from skill_ttrl.rl.advantages.grpo import (
    RewardScale,
    compute_grpo_advantage,
    decoupled_advantages,
    group_advantages,
)
from skill_ttrl.rl.advantages.negative import (
    Half,
    compute_grpo_nsr_outcome_advantage,
    grpo_nsr_advantages,
    is_correct,
    nsr_advantages,
    reward_to_go,
)
from skill_ttrl.rl.advantages.novelty import cosine_similarity, evol_rl_rewards, ngram_similarity, novelty
from skill_ttrl.rl.advantages.reinforce import (
    compute_reinforce_plus_plus_advantage,
    compute_remax_advantage,
    returns_to_go,
)
from skill_ttrl.rl.advantages.scrl import SCRLLabels, scrl_labels, scrl_reward
from skill_ttrl.rl.advantages.shaping import shape_advantages
from skill_ttrl.rl.advantages.states import state_advantages, state_metrics

__all__ = [
    "SUCCESS",
    "AdvantageEstimator",
    "Edge",
    "GroupContexts",
    "GroupLevel",
    "Half",
    "RewardScale",
    "SCRLLabels",
    "StepwiseEstimator",
    "anchor_groups",
    "compute_gae_advantage",
    "cosine_similarity",
    "evol_rl_rewards",
    "ngram_similarity",
    "novelty",
    "compute_grpo_advantage",
    "compute_grpo_nsr_outcome_advantage",
    "compute_reinforce_plus_plus_advantage",
    "compute_remax_advantage",
    "decoupled_advantages",
    "discounted_returns",
    "distances_to_success",
    "edge_returns",
    "gpg_advantages",
    "group_advantages",
    "group_contexts",
    "grpo_nsr_advantages",
    "is_correct",
    "is_stepwise",
    "nsr_advantages",
    "opo_advantages",
    "passk_advantages",
    "poisson_binomial_advantages",
    "returns_to_go",
    "reward_to_go",
    "rloo_advantages",
    "scrl_labels",
    "scrl_reward",
    "shape_advantages",
    "state_advantages",
    "state_metrics",
    "step_advantages",
    "whiten_advantages",
]
