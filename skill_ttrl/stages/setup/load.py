"""Loading a config for a command: a mistake in it is refused before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skill_ttrl.config import SkillTTRLConfig, load_config


def load_checked(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    notice: Callable[[str], object] = lambda text: None,
) -> SkillTTRLConfig:
    """`load_config`, where another algorithm than the source's has its own defaults.

    Args:
        source: see `load_config`.
        overrides: as for `--set`.
        notice: called with the keys of the source that give way to another algorithm (`superseded`).

    Raises:
        ConfigError, TrustError: see `load_config`.
    """
    config = load_config(source, overrides)
    from skill_ttrl.stages.setup.defaults import superseded

    if not (keys := superseded(source, overrides)):  # after the source is known to be trusted: it may name code
        return config
    names = ", ".join(f"rl.{key}" for key in keys)
    notice(
        f"rl.algorithm={config.rl.algorithm['type']} replaces the config's algorithm, so its defaults replace the values set for the old one: {names}. To override them, use --set."
    )
    return load_config(source, overrides, without=keys)
