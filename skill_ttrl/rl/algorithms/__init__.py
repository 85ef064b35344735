"""Algorithms: how rewards become advantages. One small file for each, with its own options.

The training loop and the learner know only the protocol `Algorithm` (`contract.py`). To add one, write it in a file in the room it
belongs to, register the class with `ALGORITHMS.register("name")` and import it here; one of your own is named `module:Class`. The
formula itself, from rewards to advantages, is a pure function in `rl.advantages`.

- `group_relative`: rollouts of a group against each other: GRPO, its variants, RLOO, OPO, pass@k, GPG, GDPO; DAPO, GSPO, CISPO, SAPO.
- `tokens`: returns from each token on: REINFORCE++, ReMax; GAE (PPO) over the values of a critic.
- `votes`: the halves of a vote and more: GRPO-NSR, PSR, NSR, W-REINFORCE, GMAE, TTPO, SCRL, EVOL-RL.
- `episodes`: steps against steps from the same state: GiGPO, GraphGPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.rl.algorithms.contract import (
    ALGORITHMS,
    AdvantageEstimate,
    Algorithm,
    AlgorithmType,
    Requirement,
    TrainingSamples,
    requirements,
)
from skill_ttrl.rl.algorithms.episodes.gigpo import GiGPO, GiGPOOptions
from skill_ttrl.rl.algorithms.episodes.graphgpo import GraphGPO, GraphGPOOptions
from skill_ttrl.rl.algorithms.group_relative.baselines import GPG, OPO, RLOO, PassK
from skill_ttrl.rl.algorithms.group_relative.gdpo import GDPO
from skill_ttrl.rl.algorithms.group_relative.grpo import GRPO, DrGRPO, GRPOOptions, MaxRL
from skill_ttrl.rl.algorithms.group_relative.other_losses import DAPO, CISPOAlgorithm, GSPOAlgorithm, SAPOAlgorithm
from skill_ttrl.rl.algorithms.group_relative.relative import GroupRelative, add_step_advantages, relative_advantages
from skill_ttrl.rl.algorithms.tokens.gae import GAE, GAEOptions
from skill_ttrl.rl.algorithms.tokens.reinforce import ReinforcePlusPlus, ReinforcePlusPlusBaseline, ReMax
from skill_ttrl.rl.algorithms.votes.evol_rl import EvolRL
from skill_ttrl.rl.algorithms.votes.gmae import GMAE
from skill_ttrl.rl.algorithms.votes.grpo_nsr import GRPONSR
from skill_ttrl.rl.algorithms.votes.nsr import NSR, PSR, WReinforce
from skill_ttrl.rl.algorithms.votes.scrl import SCRL
from skill_ttrl.rl.algorithms.votes.ttpo import TTPO
from skill_ttrl.rl.options import build_from

__all__ = [
    "ALGORITHMS",
    "GAE",
    "GDPO",
    "GMAE",
    "GPG",
    "GRPO",
    "GRPONSR",
    "NSR",
    "OPO",
    "PSR",
    "RLOO",
    "SCRL",
    "TTPO",
    "EvolRL",
    "AdvantageEstimate",
    "Algorithm",
    "AlgorithmType",
    "CISPOAlgorithm",
    "DAPO",
    "DrGRPO",
    "GAEOptions",
    "GRPOOptions",
    "GSPOAlgorithm",
    "GiGPO",
    "GiGPOOptions",
    "GraphGPO",
    "GraphGPOOptions",
    "GroupRelative",
    "MaxRL",
    "PassK",
    "ReMax",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "Requirement",
    "SAPOAlgorithm",
    "TrainingSamples",
    "WReinforce",
    "add_step_advantages",
    "build_algorithm",
    "relative_advantages",
    "requirements",
    "takes_shaped_votes",
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
