"""From a config's `{type: NAME, …options}` to the thing itself, for algorithms and losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pydantic import BaseModel, ValidationError

from skill_ttrl.config.section import explain_problem
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.registry import Registry, naming


def naming_own(kind: str, settings: Mapping[str, Any]) -> AbstractContextManager[None]:
    """`registry.naming` for a class of the user's own; an error in a built-in one is a bug and stays as it is."""
    name = str(settings["type"])
    return naming(f"The {kind} {name!r}") if ":" in name else nullcontext()


def build_from(registry: Registry[Any], settings: Mapping[str, Any]) -> Any:
    """Build what `settings["type"]` names from the rest of the settings.

    Raises:
        ConfigError: nothing has this name, or an option is wrong; each wrong option is named.
        ExtensionError: a class of the user's own raised.
    """
    name = str(settings["type"])
    kind = registry.get(name)
    stated = {option: value for option, value in settings.items() if option != "type"}
    options = {**getattr(kind, "option_defaults", {}), **stated}
    what = f"The {registry.kind} {name!r}"
    if not hasattr(kind, "options_type"):
        raise ConfigError(f"{what} is no {registry.kind}: expected a class with `options_type`, found {kind!r:.80}.")
    try:
        chosen = kind.options_type(**options)
    except ValidationError as error:
        raise ConfigError(f"{what}: " + " ".join(_explained(error, kind.options_type))) from None
    with naming(what):
        return kind(chosen)


def _explained(error: ValidationError, options_type: type[BaseModel]) -> Iterator[str]:
    """A sentence for each wrong option, or for several that do not go together."""
    for problem in error.errors():
        option = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            yield f"no option {option!r}.{did_you_mean(option, options_type.model_fields) or ' It has none.'}"
            continue
        for text in explain_problem(problem, options_type):
            yield f"{option}: {text}" if option else text
