"""Algorithms: how rewards become advantages, and which loss the gradient follows. One small file for each.

A file holds the options of its algorithm (a pydantic model), its advantages and its loss; the training loop and the learner
know only the protocol `Algorithm`. To add one, write it beside `grpo.py`, file the class with
`ALGORITHMS.register("name")` and import it here; one of your own is named `module:Class`.
"""

from skill_ttrl.rl.algorithms.contract import (
    ALGORITHMS,
    Algorithm,
    AlgorithmType,
    LossInputs,
    TrainingSamples,
    make_batch,
)
from skill_ttrl.rl.algorithms.grpo import GRPO, GRPOOptions, check_advantage
from skill_ttrl.rl.algorithms.make import build_algorithm

__all__ = [
    "ALGORITHMS",
    "GRPO",
    "Algorithm",
    "AlgorithmType",
    "GRPOOptions",
    "LossInputs",
    "TrainingSamples",
    "build_algorithm",
    "check_advantage",
    "make_batch",
]
