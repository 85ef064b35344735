"""Advantages: how much better than expected a rollout was. Pure functions, one small file for each estimator.

An outcome estimator maps the rewards of N rollouts and the group of each onto one number a rollout; a token-level one maps padded
(N, T) rewards onto (N, T) advantages. Which one a run uses is its algorithm's (`rl.algorithms`). An estimator that also takes
`episodes` (`StepwiseEstimator`) can be used where steps of an episode differ; see `episodes.py`.
"""

from skill_ttrl.rl.advantages.episodes import GroupLevel, step_advantages
from skill_ttrl.rl.advantages.estimator import AdvantageEstimator, StepwiseEstimator, is_stepwise
from skill_ttrl.rl.advantages.gae import compute_gae_advantage, whiten_advantages
from skill_ttrl.rl.advantages.grpo import compute_grpo_advantage, group_advantages
from skill_ttrl.rl.advantages.negative import (
    Half,
    centred_advantages,
    compute_grpo_nsr_outcome_advantage,
    grpo_nsr_advantages,
    is_correct,
    nsr_advantages,
    reward_to_go,
)
from skill_ttrl.rl.advantages.shaping import shape_advantages

__all__ = [
    "AdvantageEstimator",
    "GroupLevel",
    "Half",
    "centred_advantages",
    "StepwiseEstimator",
    "compute_gae_advantage",
    "compute_grpo_advantage",
    "compute_grpo_nsr_outcome_advantage",
    "group_advantages",
    "grpo_nsr_advantages",
    "is_correct",
    "is_stepwise",
    "nsr_advantages",
    "reward_to_go",
    "shape_advantages",
    "step_advantages",
    "whiten_advantages",
]
