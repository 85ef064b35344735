"""Choose and build an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.algorithms.contract import ALGORITHMS, Algorithm
from skill_ttrl.rl.algorithms.grpo import GRPO, GRPOOptions


def build_algorithm(settings: RLConfig | Mapping[str, Any]) -> Algorithm:
    """Build the algorithm that the settings name.

    Args:
        settings: The `rl` section, whose flat keys are those of GRPO; or `type` (a registered name or `module:Class`) with
            that algorithm's own options.

    Raises:
        ConfigError: there is no such algorithm, estimator or loss, or an option is wrong.
    """
    if isinstance(settings, RLConfig):
        return GRPO(GRPOOptions.from_settings(settings))
    options = dict(settings)
    kind = ALGORITHMS.get(str(options.pop("type", "grpo")))
    try:
        return kind(kind.options_type(**options))
    except ValidationError as error:
        raise ConfigError(f"Options of the algorithm {settings.get('type', 'grpo')!r}: {error}") from error
