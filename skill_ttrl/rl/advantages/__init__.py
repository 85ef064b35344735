"""Advantages: how much better than expected a rollout was. One small file for each estimator.

An estimator maps the rewards of many rollouts and the group of each onto one number a rollout:
`(rewards, groups, epsilon) -> advantages_N`. To add one, write it in a file beside `grpo.py`, file it with
`ADVANTAGES.register("name")(function)` and import it here; one of your own is named `module:function` in `rl.advantage`.
An estimator that also takes `episodes` (`StepwiseEstimator`) can be used where steps of an episode differ; see `episodes.py`.
"""

from skill_ttrl.rl.advantages.episodes import GroupStatistics, step_advantages
from skill_ttrl.rl.advantages.gae import compute_gae_advantage, whiten_advantages
from skill_ttrl.rl.advantages.grpo import compute_grpo_advantage, group_advantages
from skill_ttrl.rl.advantages.registry import ADVANTAGES, AdvantageEstimator, StepwiseEstimator, is_stepwise
from skill_ttrl.rl.advantages.shaping import shape_advantages

__all__ = [
    "ADVANTAGES",
    "AdvantageEstimator",
    "GroupStatistics",
    "StepwiseEstimator",
    "compute_gae_advantage",
    "compute_grpo_advantage",
    "group_advantages",
    "is_stepwise",
    "shape_advantages",
    "step_advantages",
    "whiten_advantages",
]
