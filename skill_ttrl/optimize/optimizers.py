"""Optimizers by name (`optimize.optimizer`)."""

from __future__ import annotations

import importlib.resources
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.induction import make_induction
from skill_ttrl.optimize.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.types import Edit, Optimizer, Patch, RawPatch, StepView
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import Registry, naming

OptimizerFactory = Callable[[Calls, OptimizeConfig, Templates], Optimizer]
OPTIMIZERS: Registry[OptimizerFactory] = Registry("optimizer", key="optimize.optimizer")
OPTIMIZERS.register("openai")(LLMOptimizer)
OPTIMIZERS.register("induce")(make_induction)
METHODS = ("reflect", "merge", "select")
EXPECTED = (
    "An optimizer is a class that is called with (calls, config, templates) and has the methods reflect(view), "
    "merge(view, patches) and select(view, patch, max_edits): see docs/optimize.md."
)


@dataclass
class OwnOptimizer:
    """A user's optimizer: errors that it raises name it, and so do those about what it returns.

    Args:
        name: `module:attribute`.
        own: the optimizer itself; its further attributes (`writer`, `state_dict`) are found here too.
    """

    name: str
    own: Any

    def reflect(self, view: StepView) -> list[RawPatch]:
        """Patches that the rollouts suggest.

        Raises:
            ConfigError: it is no list of patches; ExtensionError: it raised. The same for the other methods.
        """
        found = self._call("reflect", view, view)
        if not isinstance(found, list | tuple) or not all(isinstance(raw, RawPatch) for raw in found):
            raise self._wrong("reflect", "a list of RawPatch", found)
        for raw in found:
            self._check("reflect", raw.patch)
        return [*found]

    def merge(self, view: StepView, patches: Sequence[RawPatch]) -> Patch:
        """One patch for several. Raises as `reflect`."""
        return self._check("merge", self._call("merge", view, view, patches))

    def select(self, view: StepView, patch: Patch, max_edits: int) -> Patch:
        """The `max_edits` most important edits of a patch. Raises as `reflect`."""
        return self._check("select", self._call("select", view, view, patch, max_edits))

    def __getattr__(self, name: str) -> Any:
        if name == "own":  # before there is one, such as in a copy
            raise AttributeError(name)
        return getattr(self.own, name)

    def _call(self, method: str, view: StepView, *arguments: Any) -> Any:
        with naming(f"The optimizer {self.name!r}", f"in {method} of step {view.step}"):
            return getattr(self.own, method)(*arguments)

    def _check(self, method: str, found: Any) -> Patch:
        edits: Any = found.edits if isinstance(found, Patch) else None
        if (
            isinstance(found, Patch)
            and isinstance(edits, list | tuple)
            and all(isinstance(edit, Edit) for edit in edits)
        ):
            return found
        raise self._wrong(method, "a Patch with a list of Edit", found)

    def _wrong(self, method: str, wanted: str, found: Any) -> ConfigError:
        return ConfigError(
            f"The optimizer {self.name!r}: {method} must return {wanted} (skill_ttrl.optimize.types), found {found!r:.100}."
        )


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
    return OwnOptimizer(name, made)


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
