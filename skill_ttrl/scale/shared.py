"""A value that many items name: stored once in the cluster, and taken from there once by each worker."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Generic, TypeVar

T = TypeVar("T")
MOST_HELD = 8
"""Values that a worker holds; those go that were asked for longest ago."""
_held: OrderedDict[str, Any] = OrderedDict()


class Shared(Generic[T]):
    """A handle that can be sent to workers, in the place of its value.

    Args:
        value: stored in the cluster that this process is connected to, for as long as anybody has the handle.
    """

    def __init__(self, value: T) -> None:
        import ray

        self._reference = ray.put(value)
        self.key: str = self._reference.hex()
        """Tells values apart."""

    def fetch(self) -> T:
        """Return the value, and hold no copy of it."""
        import ray

        found: T = ray.get(self._reference)
        return found

    def get(self) -> T:
        """Return the value; in a worker, the same object each time, as long as it is held."""
        if self.key not in _held:
            _held[self.key] = self.fetch()
        _held.move_to_end(self.key)
        if len(_held) > MOST_HELD:
            _held.popitem(last=False)
        value: T = _held[self.key]
        return value
