"""Names for things that can be exchanged: backends, advantages, losses, rewards, problem families.

A plain dictionary with two additions: an unknown name is answered with the closest known one, and `module:attribute`
is imported, so that an extension is one file of the user's and needs no plug-in machinery. To add a built-in, write the
function in its own module and put it into that module's `Registry`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from skill_ttrl.errors import ConfigError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Built-in things of one kind by name.

    Args:
        kind: what is kept, as a user would call it ("loss", "reward"); appears in messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: file the decorated function or class under `name`."""

        def add(item: T) -> T:
            if name in self._items:
                raise ConfigError(f"A {self.kind} named {name!r} is already registered.")
            self._items[name] = item
            return item

        return add

    def get(self, name: str) -> T:
        """The thing called `name`, or what `module:attribute` names.

        Raises:
            ConfigError: nothing has this name, or the module or attribute is not there.
        """
        if name in self._items:
            return self._items[name]
        if ":" in name:
            return cast(T, import_attribute(name, self.kind))
        raise ConfigError(
            f"Unknown {self.kind} {name!r}.{did_you_mean(name, self._items)} "
            f"One of your own is written 'module:attribute'."
        )

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))


def import_attribute(path: str, kind: str) -> Any:
    """Import `module:attribute`; the working directory is searched too, as `python -m` would.

    Raises:
        ConfigError: the module cannot be imported or has no such attribute.
    """
    module_name, _, attribute = path.partition(":")
    module = import_user_module(module_name, kind)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(
            f"Module {module_name!r} has no {kind} {attribute!r}.{did_you_mean(attribute, public_names(module))}"
        ) from None


def import_user_module(module_name: str, kind: str) -> Any:
    """Import a user's module by name from the Python path or the working directory.

    Raises:
        ConfigError: there is no such module. An error raised *inside* the module is left as it is: it is the user's.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise
        raise ConfigError(
            f"Cannot import {module_name!r} for the {kind}: no such module in {here} or on the Python path."
        ) from None


def public_names(module: Any) -> list[str]:
    """Names of a module that do not start with an underscore."""
    return [name for name in vars(module) if not name.startswith("_")]
