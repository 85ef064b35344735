"""Engines (`optimize.engine`: how a document is trained) and optimizers (`optimize.optimizer`: who proposes edits) by name, and their prompts."""

from __future__ import annotations

import importlib.resources
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.induction import make_induction
from skill_ttrl.optimize.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.loop import optimize, step_sizes
from skill_ttrl.optimize.record import Optimized, OptimizeTask
from skill_ttrl.optimize.types import Edit, Optimizer, Patch, RawPatch, StepView
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import Registry, naming

OptimizerFactory = Callable[[Calls, OptimizeConfig, Templates], Optimizer]
OPTIMIZERS: Registry[OptimizerFactory] = Registry("optimizer", key="optimize.optimizer")
OPTIMIZERS.register("openai")(LLMOptimizer)
OPTIMIZERS.register("induce")(make_induction)
METHODS = {
    "reflect": "a list of RawPatch, each with a list of Edit",
    "merge": "a Patch with a list of Edit",
    "select": "a Patch with a list of Edit",
}
"""Methods of an optimizer, and what each must return."""
EXPECTED = (
    "An optimizer is a class that is called with (calls, config, templates) and has the methods reflect(view), "
    "merge(view, patches) and select(view, patch, max_edits): see docs/optimize.md."
)


class OwnOptimizer:
    """A user's optimizer: errors that it raises name it, and so do those about what it returns.

    Args:
        name: `module:attribute`.
        own: the optimizer itself; its further attributes (`state_dict`) are found here too.
    """

    def __init__(self, name: str, own: Any) -> None:
        self.name, self.own = name, own

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "own":  # before there is one, such as in a copy
            raise AttributeError(attribute)
        found = getattr(self.own, attribute)
        if attribute not in METHODS:
            return found

        def call(view: StepView, *arguments: Any) -> Any:
            with naming(f"The optimizer {self.name!r}", f"in {attribute} of step {view.step}"):
                made = found(view, *arguments)
            raw = made if attribute == "reflect" else [RawPatch(made)]
            if isinstance(raw, list | tuple) and all(
                isinstance(each, RawPatch) and _is_patch(each.patch) for each in raw
            ):
                return made
            raise ConfigError(
                f"The optimizer {self.name!r}: {attribute} must return {METHODS[attribute]} (skill_ttrl.optimize.types), found {made!r:.100}."
            )

        return call


def _is_patch(found: Any) -> bool:
    edits: Any = found.edits if isinstance(found, Patch) else None
    return isinstance(edits, list | tuple) and all(isinstance(edit, Edit) for edit in edits)


def check_optimizer(name: str) -> OptimizerFactory:
    """The factory of an optimizer, checked as far as it can be without being called.

    Raises:
        ConfigError: nothing has this name, it cannot be called with the three arguments, or it is a class without the methods.
    """
    factory = OPTIMIZERS.get(name)
    if name in OPTIMIZERS:
        return factory
    try:
        inspect.signature(factory).bind(None, None, None)
    except TypeError as error:
        raise ConfigError(f"The optimizer {name!r} cannot be made: {error}. {EXPECTED}") from None
    if inspect.isclass(factory):
        _check_methods(name, factory)
    return factory


def make_optimizer(name: str, calls: Calls, config: OptimizeConfig, templates: Templates) -> Optimizer:
    """The optimizer called `name`, or one of the user's own.

    Raises:
        ConfigError: as `check_optimizer`, or what was made lacks a method; ExtensionError: its own code raised.
    """
    factory = check_optimizer(name)
    if name in OPTIMIZERS:
        return factory(calls, config, templates)
    with naming(f"The optimizer {name!r}", "when it was made"):
        made = factory(calls, config, templates)
    _check_methods(name, made)
    own: Any = OwnOptimizer(name, made)  # its methods are found by name
    return cast(Optimizer, own)


def _check_methods(name: str, made: Any) -> None:
    missing = [each for each in METHODS if not callable(getattr(made, each, None))]
    if missing:
        raise ConfigError(f"The optimizer {name!r} has no {' and no '.join(missing)}. {EXPECTED}")


def prompt_names() -> list[str]:
    """Names of the prompts of an optimization."""
    folder = importlib.resources.files("skill_ttrl").joinpath("prompts", "optimize")
    return sorted(entry.name.removesuffix(".md") for entry in folder.iterdir() if entry.name.endswith(".md"))


def prompt_texts(templates: Templates) -> dict[str, str]:
    """The texts of all prompts of an optimization by name: a run's results depend on them."""
    return {name: templates.get(name).template for name in prompt_names()}


def check_prompts(prompts: str | None) -> None:
    """Check a user's folder of prompts (`optimize.prompts`): every Markdown file in it is one of ours by name, and can be used.

    Raises:
        ConfigError: there is no such folder, nothing in it has a known name, or a file has another one or lacks a place.
    """
    prompt_texts(Templates(prompts, base="optimize"))
    if prompts is not None and Path(prompts).is_dir():
        for name in sorted(file.stem for file in Path(prompts).glob("*.md")) or [""]:
            if name not in prompt_names():
                raise ConfigError(
                    f"optimize.prompts: {prompts} has no such prompt: {name!r}.{did_you_mean(name, prompt_names())}"
                )


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
    from skill_ttrl.optimize import gepa

    return gepa.optimize(task, document, config, calls, **how)


def sizes_of(config: OptimizeConfig, train: int) -> tuple[int, int] | None:
    """Steps of an optimization on so many training items, and the items of a step; None for an engine of the user's own."""
    if config.engine == "gepa":
        from skill_ttrl.optimize.gepa import MINIBATCH, iterations_of

        return iterations_of(config, train), MINIBATCH
    return step_sizes(config, train) if config.engine == "skillopt" else None
