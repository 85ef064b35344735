"""Engines by name (`optimize.engine`): how a document is trained. Ours is the loop, `gepa` another behind the same gate and budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.loop import optimize, step_sizes
from skill_ttrl.optimize.optimizers import make_optimizer
from skill_ttrl.optimize.record import Optimized, OptimizeTask
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import Registry

Engine = Callable[..., Optimized]
"""Trains a document: called as `run_skillopt`, it raises as `loop.optimize`, and the same call continues the run.

Everything it requests goes through `calls`, and everything it draws at random comes from `seed`.
"""
ENGINES: Registry[Engine] = Registry("engine", key="optimize.engine")


@ENGINES.register("skillopt")
def run_skillopt(
    task: OptimizeTask, document: str, config: OptimizeConfig, calls: Calls, templates: Templates, **how: Any
) -> Optimized:
    """Train a document with the loop of SkillOpt and the optimizer that `optimize.optimizer` names; `how` holds `seed` and `watch`."""
    return optimize(task, document, config, calls, make_optimizer(config.optimizer, calls, config, templates), **how)


@ENGINES.register("gepa")
def run_gepa(
    task: OptimizeTask, document: str, config: OptimizeConfig, calls: Calls, templates: Templates, **how: Any
) -> Optimized:
    """Train a document with GEPA; needs the extra `gepa`. Its request for a new document is its own: `templates` are not used."""
    from skill_ttrl.optimize.engines import gepa

    return gepa.optimize(task, document, config, calls, **how)


def sizes_of(config: OptimizeConfig, train: int) -> tuple[int, int] | None:
    """Steps of an optimization on so many training items, and the items of a step; None for an engine of the user's own.

    Raises:
        ConfigError: `engine_options` are wrong.
    """
    if config.engine == "gepa":
        from skill_ttrl.optimize.engines.gepa import GepaOptions

        options = GepaOptions.of(config.engine_options)
        return options.iterations_of(config.epochs, train), options.minibatch_size
    return step_sizes(config, train) if config.engine == "skillopt" else None
