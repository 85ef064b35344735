"""Algorithms: how rewards become advantages. One file a family, its formulas (pure functions) first.

The training loop and the learner know only the protocol `Algorithm` (`contract.py`). To add one, write it in the file of its
family and register the class with `ALGORITHMS.register("name")`; one of your own is named `module:Class`.

- `grpo`: rollouts of a group against each other: GRPO, Dr. GRPO, MaxRL, GDPO; DAPO, GSPO, CISPO, SAPO.
- `baselines`: RLOO, OPO, pass@k, GPG.
- `tokens`: returns from each token on: REINFORCE++, ReMax; GAE (PPO) over the values of a critic.
- `negative`: correct and wrong samples apart: PSR, NSR, W-REINFORCE, GRPO-NSR.
- `votes`: GMAE, SCRL, TTPO, EVOL-RL.
- `episodes`: steps against steps from the same state: GiGPO, GraphGPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.rl.algorithms import baselines, episodes, votes  # noqa: F401  # they register themselves
from skill_ttrl.rl.algorithms.contract import (
    ALGORITHMS,
    AdvantageEstimate,
    Algorithm,
    AlgorithmType,
    Requirement,
    TrainingSamples,
    requirements,
)
from skill_ttrl.rl.algorithms.grpo import GroupRelative, compute_grpo_advantage, group_advantages, relative_advantages
from skill_ttrl.rl.algorithms.negative import compute_grpo_nsr_outcome_advantage
from skill_ttrl.rl.algorithms.tokens import compute_gae_advantage, whiten_advantages
from skill_ttrl.rl.options import build_from

__all__ = [
    "ALGORITHMS",
    "AdvantageEstimate",
    "Algorithm",
    "AlgorithmType",
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
    "takes_shaped_votes",
    "whiten_advantages",
]


def build_algorithm(settings: Mapping[str, Any]) -> Algorithm:
    """Build the algorithm that `rl.algorithm` names.

    Args:
        settings: `type` (a registered name or `module:Class`) and that algorithm's options.

    Raises:
        ConfigError: there is no such algorithm, or an option is wrong.
    """
    built: Algorithm = build_from(ALGORITHMS, settings)
    return built


def takes_shaped_votes(algorithm: object) -> bool:
    """True unless an algorithm says that votes cannot shape its advantages (RESTRAIN, Guard: `advantages.shaping`)."""
    return bool(getattr(algorithm, "takes_shaped_votes", True))
