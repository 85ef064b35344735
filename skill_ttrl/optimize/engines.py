"""Engines (`optimize.engine`: how a document is trained) and optimizers (`optimize.optimizer`: who proposes edits) by name, and their prompts."""

from __future__ import annotations

import importlib.resources
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from skill_ttrl.config import EndpointsConfig, OptimizeConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.optimize import gepa
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.induction import make_induction
from skill_ttrl.optimize.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.loop import Loop, optimize, step_sizes
from skill_ttrl.optimize.record import Optimized, OptimizeTask, Watch
from skill_ttrl.optimize.types import Edit, Optimizer, Patch, RawPatch, StepView
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import Registry, naming

OPTIMIZERS: Registry[Callable[[Calls, OptimizeConfig, Templates], Optimizer]] = Registry("optimizer")
PROMPTS = Templates(base="optimize")
"""Prompts of the optimizers."""
OPTIMIZERS.register("openai")(LLMOptimizer)
OPTIMIZERS.register("induce")(make_induction)
EXPECTED = (
    "An optimizer is a class that is called with (calls, config, templates) and has the methods reflect(view), "
    "merge(view, patches) and select(view, patch, max_edits): see docs/optimize.md."
)


class OwnOptimizer:
    """A user's optimizer: errors that it raises name it, and so do those about what it returns.

    Args:
        name: `module:attribute`.
        own: the optimizer itself.

    Raises:
        ConfigError: it lacks a method.
    """

    def __init__(self, name: str, own: Any) -> None:
        self.name, self.own = name, own
        if missing := [each for each in ("reflect", "merge", "select") if not callable(getattr(own, each, None))]:
            raise ConfigError(f"The optimizer {name!r} has no {' and no '.join(missing)}. {EXPECTED}")

    def reflect(self, view: StepView) -> list[RawPatch]:
        """Its patches."""
        made = self._call("reflect", view)
        if not isinstance(made, list | tuple) or not all(isinstance(raw, RawPatch) for raw in made):
            raise self._problem("reflect", "a list of RawPatch", made)
        for raw in made:
            self._checked("reflect", raw.patch)
        return [*made]

    def merge(self, view: StepView, patches: Sequence[RawPatch]) -> Patch:
        """Its patch for several."""
        return self._checked("merge", self._call("merge", view, patches))

    def select(self, view: StepView, patch: Patch, max_edits: int) -> Patch:
        """Its most important edits."""
        return self._checked("select", self._call("select", view, patch, max_edits))

    def _call(self, method: str, view: StepView, *arguments: Any) -> Any:
        with naming(f"The optimizer {self.name!r}", f"in {method} of step {view.step}"):
            return getattr(self.own, method)(view, *arguments)

    def _checked(self, method: str, made: Any) -> Patch:
        edits: Any = made.edits if isinstance(made, Patch) else None
        if not isinstance(made, Patch) or not isinstance(edits, list) or not all(isinstance(e, Edit) for e in edits):
            raise self._problem(method, "a Patch with a list of Edit", made)
        return made

    def _problem(self, method: str, expected: str, made: Any) -> ConfigError:
        where = f"The optimizer {self.name!r}: {method} must return {expected} (skill_ttrl.optimize.types)"
        return ConfigError(f"{where}, found {made!r:.100}.")


def asks_endpoint(config: OptimizeConfig, endpoints: EndpointsConfig) -> bool:
    """True if the optimizer's model is the endpoint of the role `optimizer`, unless the caller provides another."""
    return config.optimizer == "openai" or "optimizer" in endpoints.roles


def check_optimizer(name: str) -> Callable[[Calls, OptimizeConfig, Templates], Optimizer]:
    """The factory of an optimizer, checked as far as it can be without being called.

    Raises:
        ConfigError: nothing has this name, it cannot be called with the three arguments, or it is a class without the methods.
    """
    factory = OPTIMIZERS.get(name)
    if name not in OPTIMIZERS:
        try:
            inspect.signature(factory).bind(None, None, None)
        except TypeError as error:
            raise ConfigError(f"The optimizer {name!r} cannot be made: {error}. {EXPECTED}") from None
        if inspect.isclass(factory):
            OwnOptimizer(name, factory)
    return factory


def make_optimizer(calls: Calls, config: OptimizeConfig) -> Optimizer:
    """The optimizer of the config.

    Raises:
        ConfigError: as `check_optimizer`, or what was made lacks a method; ExtensionError: its own code raised.
    """
    name, factory = config.optimizer, check_optimizer(config.optimizer)
    if name in OPTIMIZERS:
        return factory(calls, config, PROMPTS)
    with naming(f"The optimizer {name!r}", "when it was made"):
        made = factory(calls, config, PROMPTS)
    return OwnOptimizer(name, made)


def prompt_texts(templates: Templates) -> dict[str, str]:
    """The texts of all prompts of an optimization by name: a run's results depend on them."""
    folder = importlib.resources.files("skill_ttrl").joinpath("prompts", "optimize")
    names = sorted(entry.name.removesuffix(".md") for entry in folder.iterdir() if entry.name.endswith(".md"))
    return {name: templates.get(name).template for name in names}


def run_engine(
    task: OptimizeTask, document: str, config: OptimizeConfig, calls: Calls, *, seed: int, watch: Watch
) -> Optimized:
    """Train a document with the engine of the config. Raises as `loop.optimize`."""
    if config.engine == "gepa":
        return gepa.optimize(task, document, config, calls, seed=seed, watch=watch)
    return optimize(Loop(task, config, calls, make_optimizer(calls, config), seed, watch), document)


def sizes_of(config: OptimizeConfig, train: int) -> tuple[int, int]:
    """Steps of an optimization on so many training items, and the items of a step."""
    if config.engine == "gepa":
        return gepa.iterations_of(config, train), gepa.MINIBATCH
    return step_sizes(config, train)
