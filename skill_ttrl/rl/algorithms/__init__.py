"""Algorithms: how rewards become advantages. One file a family, its formulas (pure functions) first.

The training loop and the learner know only the protocol `Algorithm` (in `grpo.py`). To add one, write it in the file of its
family and register the class with `ALGORITHMS.register("name")`; one of your own is named `module:Class`.

- `grpo`: rollouts of a group against each other: GRPO and its variants (a table); RLOO.
- `tokens`: returns from each token on: REINFORCE++; GAE (PPO) over the values of a critic.
- `negative`: correct and wrong samples apart: PSR, NSR, W-REINFORCE, GRPO-NSR.
- `votes`: TTPO.
- `episodes`: steps against steps from the same state: GiGPO, GraphGPO.
"""

from __future__ import annotations

from skill_ttrl.rl.algorithms import episodes, votes  # noqa: F401  # they register themselves
from skill_ttrl.rl.algorithms.grpo import (
    ALGORITHMS,
    AdvantageEstimate,
    Algorithm,
    GroupRelative,
    Requirement,
    TrainingSamples,
    build_algorithm,
    compute_grpo_advantage,
    group_advantages,
    relative_advantages,
    requirements,
)
from skill_ttrl.rl.algorithms.negative import compute_grpo_nsr_outcome_advantage
from skill_ttrl.rl.algorithms.tokens import compute_gae_advantage, whiten_advantages

__all__ = [
    "ALGORITHMS",
    "AdvantageEstimate",
    "Algorithm",
    "GroupRelative",
    "Requirement",
    "TrainingSamples",
    "build_algorithm",
    "compute_gae_advantage",
    "compute_grpo_advantage",
    "compute_grpo_nsr_outcome_advantage",
    "group_advantages",
    "relative_advantages",
    "requirements",
    "whiten_advantages",
]
