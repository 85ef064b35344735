"""Algorithms: how rewards become advantages, and which loss the gradient follows. One small file for each.

A file holds the options of its algorithm (a pydantic model), its advantages and its loss; the training loop and the learner
know only the protocol `Algorithm`. To add one, write it next to `grpo.py`, file the class with
`ALGORITHMS.register("name")` and import it here; one of your own is named `module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms.contract import (
    ALGORITHMS,
    Algorithm,
    AlgorithmType,
    LossInputs,
    TrainingSamples,
    make_batch,
)
from skill_ttrl.rl.algorithms.grpo import GRPO, GRPOOptions, check_advantage

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


def build_algorithm(settings: RLConfig | Mapping[str, Any]) -> Algorithm:
    """Build the algorithm that the settings name.

    Args:
        settings: The `rl` section: its `algorithm`, or where that is None GRPO of its flat keys. Or such an `algorithm`: `type`
            (a registered name or `module:Class`) with that algorithm's own options.

    Raises:
        ConfigError: there is no such algorithm, estimator or loss, or an option is wrong.
    """
    if isinstance(settings, RLConfig):
        if settings.algorithm is None:
            return GRPO(GRPOOptions.from_settings(settings))
        settings = settings.algorithm
    options = dict(settings)
    kind = ALGORITHMS.get(str(options.pop("type", "grpo")))
    try:
        return kind(kind.options_type(**options))
    except ValidationError as error:
        raise ConfigError(f"Options of the algorithm {settings.get('type', 'grpo')!r}: {error}") from error
