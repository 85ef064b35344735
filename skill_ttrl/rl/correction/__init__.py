"""Corrections for a rollout backend whose log-probs are not the learner's own.

An engine computes the same weights with other kernels, in another precision or some updates late, so tokens come from a
distribution pi_sampler that is near to the learner's pi_old and not equal to it. There are two ways:

- With rescoring (`rollout.py`) the learner scores the batch itself before it learns from it. Its own log-probs are the denominators of
  the policy ratio, and each token's loss is weighted by what separates the two (verl's decoupled mode, TRL).
- Without (`in_update.py`) the policy ratio is taken against the sampler, which costs no forward pass, and what is too far away is
  left out as the update sees it (verl's bypass mode, prime-rl).

Weights and masks are the same functions in both (`weights.py`).
"""

from skill_ttrl.rl.correction.in_update import UpdateCorrection
from skill_ttrl.rl.correction.rollout import CORRECTIONS, choose_correction, corrected
from skill_ttrl.rl.correction.sequences import FlatSequences, PaddedSequences
from skill_ttrl.rl.correction.weights import WeightRule, importance_weights, kept_tokens, weight_rule

__all__ = [
    "CORRECTIONS",
    "FlatSequences",
    "PaddedSequences",
    "UpdateCorrection",
    "WeightRule",
    "choose_correction",
    "corrected",
    "importance_weights",
    "kept_tokens",
    "weight_rule",
]
