"""JSON on stdout, the same for every command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, is_dataclass
from typing import Any


def print_json(value: Any) -> None:
    """Print plain data or dataclasses, alone or in a list."""

    def plain(item: Any) -> Any:
        if is_dataclass(item) and not isinstance(item, type):
            return asdict(item)
        return [plain(each) for each in item] if isinstance(item, list | tuple) else item

    print(json.dumps(plain(value), indent=2, ensure_ascii=False, default=str))


@contextmanager
def prints_aside() -> Iterator[None]:
    """What an environment or a player of the user's prints goes to stderr: stdout is for the result, which may be JSON."""
    with redirect_stdout(sys.stderr):
        yield
