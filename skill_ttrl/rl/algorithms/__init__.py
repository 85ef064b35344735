"""Algorithms: how rewards become advantages. One file a family, its formulas (pure functions) first.

The training loop and the learner know only the protocol `Algorithm` (`contract.py`). To add one, write it in the file of its
family, register the class with `ALGORITHMS.register("name")` and import it here; one of your own is named `module:Class`. An outcome
estimator maps the rewards of N rollouts and the group of each onto one number a rollout; a token-level one maps padded (N, T) rewards
onto (N, T) advantages. One that also takes `episodes` (`StepwiseEstimator`) can be used where steps of an episode differ.

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

from skill_ttrl.rl.algorithms.baselines import (
    GPG,
    OPO,
    RLOO,
    PassK,
    gpg_advantages,
    opo_advantages,
    passk_advantages,
    rloo_advantages,
)
from skill_ttrl.rl.algorithms.contract import (
    ALGORITHMS,
    AdvantageEstimate,
    Algorithm,
    AlgorithmType,
    Requirement,
    TrainingSamples,
    requirements,
)
from skill_ttrl.rl.algorithms.episodes import (
    SUCCESS,
    Edge,
    GiGPO,
    GiGPOOptions,
    GraphGPO,
    GraphGPOOptions,
    anchor_groups,
    discounted_returns,
    distances_to_success,
    edge_returns,
    state_advantages,
    state_metrics,
)
from skill_ttrl.rl.algorithms.grpo import (
    DAPO,
    GDPO,
    GRPO,
    AdvantageEstimator,
    CISPOAlgorithm,
    DrGRPO,
    GroupLevel,
    GroupRelative,
    GRPOOptions,
    GSPOAlgorithm,
    MaxRL,
    RewardScale,
    SAPOAlgorithm,
    StepwiseEstimator,
    add_step_advantages,
    compute_grpo_advantage,
    decoupled_advantages,
    group_advantages,
    is_stepwise,
    relative_advantages,
    shape_advantages,
    step_advantages,
)
from skill_ttrl.rl.algorithms.negative import (
    GRPONSR,
    NSR,
    PSR,
    Half,
    WReinforce,
    compute_grpo_nsr_outcome_advantage,
    grpo_nsr_advantages,
    is_correct,
    nsr_advantages,
    reward_to_go,
)
from skill_ttrl.rl.algorithms.tokens import (
    GAE,
    GAEOptions,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReMax,
    compute_gae_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_remax_advantage,
    returns_to_go,
    whiten_advantages,
)
from skill_ttrl.rl.algorithms.votes import (
    GMAE,
    SCRL,
    TTPO,
    EvolRL,
    GroupContexts,
    SCRLLabels,
    cosine_similarity,
    evol_rl_rewards,
    group_contexts,
    ngram_similarity,
    novelty,
    poisson_binomial_advantages,
    scrl_labels,
    scrl_reward,
)
from skill_ttrl.rl.options import build_from

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
