"""Engines by name (`optimize.engine`): how a document is trained. Ours is the loop, `gepa` another behind the same gate and budget."""

from __future__ import annotations

import math
from typing import Protocol

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.epoch import Watch
from skill_ttrl.optimize.loop import optimize
from skill_ttrl.optimize.optimizers import make_optimizer
from skill_ttrl.optimize.record import Optimized, OptimizeTask
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import Registry


class Engine(Protocol):
    """Trains a document. Everything it asks for goes through `calls`, and everything it draws at random comes from `seed`."""

    def __call__(
        self,
        task: OptimizeTask,
        document: str,
        config: OptimizeConfig,
        calls: Calls,
        templates: Templates,
        *,
        seed: int = 42,
        watch: Watch | None = None,
    ) -> Optimized:
        """The outcome. Raises as `loop.optimize` does; the same call continues the run."""
        ...


ENGINES: Registry[Engine] = Registry("engine", key="optimize.engine")


@ENGINES.register("skillopt")
def run_skillopt(
    task: OptimizeTask,
    document: str,
    config: OptimizeConfig,
    calls: Calls,
    templates: Templates,
    *,
    seed: int = 42,
    watch: Watch | None = None,
) -> Optimized:
    """Train a document with the loop of SkillOpt and the optimizer that `optimize.optimizer` names."""
    optimizer = make_optimizer(config.optimizer, calls, config, templates)
    return optimize(task, document, config, calls, optimizer, seed=seed, watch=watch)


@ENGINES.register("gepa")
def run_gepa(
    task: OptimizeTask,
    document: str,
    config: OptimizeConfig,
    calls: Calls,
    templates: Templates,
    *,
    seed: int = 42,
    watch: Watch | None = None,
) -> Optimized:
    """Train a document with GEPA; needs the extra `gepa`. Its request for a new document is its own: `templates` are not used."""
    from skill_ttrl.optimize.engines import gepa

    return gepa.optimize(task, document, config, calls, seed=seed, watch=watch)


def step_sizes(config: OptimizeConfig, train: int) -> tuple[int, int] | None:
    """Steps of an optimization on so many training items, and the items of a step; None for an engine of the user's own.

    Raises:
        ConfigError: `engine_options` are wrong.
    """
    if config.engine == "gepa":
        from skill_ttrl.optimize.engines.gepa import GepaOptions

        options = GepaOptions.of(config.engine_options)
        return options.iterations_of(config.epochs, train), options.minibatch_size
    if config.engine != "skillopt":
        return None
    size = config.batch_size * config.accumulation
    return config.epochs * math.ceil(train / size), size
