"""Optimizers by name (`optimize.optimizer`)."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.induction import make_induction
from skill_ttrl.optimize.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.optimizer import Optimizer
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import Registry

OptimizerFactory = Callable[[Calls, OptimizeConfig, Templates], Optimizer]
OPTIMIZERS: Registry[OptimizerFactory] = Registry("optimizer", key="optimize.optimizer")
OPTIMIZERS.register("openai")(LLMOptimizer)
OPTIMIZERS.register("induce")(make_induction)


def prompt_texts(templates: Templates) -> dict[str, str]:
    """The texts of all prompts of an optimisation by name: a run's results depend on them."""
    folder = importlib.resources.files("skill_ttrl").joinpath("prompts", "optimize")
    names = sorted(entry.name.removesuffix(".md") for entry in folder.iterdir() if entry.name.endswith(".md"))
    return {name: templates.get(name).template for name in names}
