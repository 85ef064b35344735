"""Optimizers by name (`optimize.optimizer`)."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable
from pathlib import Path

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.optimizer import Optimizer
from skill_ttrl.optimize.reflection.induction import make_induction
from skill_ttrl.optimize.reflection.llm_optimizer import LLMOptimizer
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import Registry

OptimizerFactory = Callable[[Calls, OptimizeConfig, Templates], Optimizer]
OPTIMIZERS: Registry[OptimizerFactory] = Registry("optimizer", key="optimize.optimizer")
OPTIMIZERS.register("openai")(LLMOptimizer)
OPTIMIZERS.register("induce")(make_induction)


def prompt_names() -> list[str]:
    """Names of the prompts of an optimisation."""
    folder = importlib.resources.files("skill_ttrl").joinpath("prompts", "optimize")
    return sorted(entry.name.removesuffix(".md") for entry in folder.iterdir() if entry.name.endswith(".md"))


def prompt_texts(templates: Templates) -> dict[str, str]:
    """The texts of all prompts of an optimisation by name: a run's results depend on them."""
    return {name: templates.get(name).template for name in prompt_names()}


def check_prompts(prompts: str | None) -> None:
    """Check a user's folder of prompts (`optimize.prompts`): every Markdown file in it is one of ours by name, and can be used.

    Raises:
        ConfigError: there is no such folder, nothing in it has a known name, or a file has another one or lacks a place.
    """
    templates = Templates(prompts, base="optimize")
    prompt_texts(templates)
    if prompts is None or not Path(prompts).is_dir():
        return
    found = sorted(file.stem for file in Path(prompts).glob("*.md"))
    for name in found or [""]:
        if name not in prompt_names():
            raise ConfigError(
                f"optimize.prompts: {prompts} has no prompt of the optimizer, found {name!r}.{did_you_mean(name, prompt_names())}"
            )
