"""Names for things that can be exchanged: backends, advantages, losses, rewards, problem families.

A plain dictionary with two additions: an unknown name is answered with the closest known one, and `module:attribute`
is imported, so that an extension is one file of the user's and needs no plug-in machinery. To add a built-in, write the
function in its own module and put it into that module's `Registry`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from skill_ttrl.errors import ConfigError, ExtensionError, SkillTTRLError, did_you_mean
from skill_ttrl.trust import check_import, split_import

T = TypeVar("T")


class Registry(Generic[T]):
    """Built-in things of one kind by name.

    Args:
        kind: the items, as a user would call them ("loss", "reward"); appears in messages.
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
            f"Unknown {self.kind} {name!r}.{did_you_mean(name, self._items)} Your own is written 'module:attribute'."
        )

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))


@contextmanager
def naming(what: str, where: str = "") -> Iterator[None]:
    """Turn whatever a user's own code raises into one error that says which code it was, and on what; ours pass.

    Raises:
        ExtensionError: the code raised; its error is the cause, which `--debug` shows.
    """
    try:
        yield
    except SkillTTRLError:
        raise
    except (Exception, SystemExit) as error:
        place = f" {where}" if where else ""
        raise ExtensionError(
            f"{what} failed{place}: {type(error).__name__}: {error}. Fix it; --debug shows the traceback."
        ) from error


def require_methods(made: object, name: str, *methods: str) -> None:
    """Check that the object that `name` returned has these methods.

    Raises:
        ConfigError: it lacks one.
    """
    if missing := [each for each in methods if not callable(getattr(made, each, None))]:
        raise ConfigError(f"{name!r} returned an object of type {type(made).__name__} without {' and '.join(missing)}.")


def import_attribute(path: str, kind: str) -> Any:
    """Import `module:attribute`; see `import_user_module`.

    Raises:
        ConfigError: the module cannot be imported or has no such attribute.
    """
    module, attribute = import_user_module(path, kind)
    try:
        return getattr(module, attribute)
    except AttributeError:
        known = [name for name in vars(module) if not name.startswith("_")]
        raise ConfigError(
            f"Module {module.__name__!r} has no {kind} {attribute!r}.{did_you_mean(attribute, known)}"
        ) from None


def import_user_module(path: str, kind: str) -> tuple[ModuleType, str]:
    """Import the module of `module:attribute`, and return it with the attribute's name: the one place that imports by a name from data.

    The working directory is searched too, as `python -m` would.

    Raises:
        ConfigError: `path` is no such name, there is no such module, or it raises when it is imported (`ExtensionError`).
        TrustError: a file of others names it, and nobody has trusted that file.
    """
    parts = split_import(path)
    if parts is None:
        raise ConfigError(
            f"{path[:200]!r} cannot name the {kind}: one of your own is written module:attribute, without folder, ending and blanks, such "
            "as my_module:my_name. The module is looked for in the working directory too."
        )
    module_name, attribute = parts
    check_import(module_name)
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        with naming(f"The {kind}'s module {module_name!r}", "while it was imported"):
            return importlib.import_module(module_name), attribute
    except ExtensionError as failed:
        error = failed.__cause__
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not (module_name == missing or module_name.startswith(missing + ".")):
            raise
        raise ConfigError(
            f"Cannot import {module_name!r} for the {kind}: no such module in {here} or on the Python path."
        ) from None
