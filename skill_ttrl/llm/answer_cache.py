"""Answers kept on disk by what was asked: the same request is answered from there and costs nothing.

The name of a file is the hash of address, model, path and body, so nothing of a question can be read from the folder, and
another seed, temperature or number of samples is another request. Files are put in place in one step; one that cannot be
read is asked for anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skill_ttrl.runs.files import explaining, write_atomic


class AnswerCache:
    """A folder of answers.

    Args:
        folder: made when the first answer is kept.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()

    @staticmethod
    def key(address: str, model: str, path: str, body: Mapping[str, Any]) -> str:
        """SHA-256 of what is asked of whom."""
        asked = json.dumps([address, model, path, body], sort_keys=True, ensure_ascii=True, default=str)
        return hashlib.sha256(asked.encode()).hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """The server's answer; None where none is kept, or what is kept is no whole answer."""
        try:
            found = json.loads(self._file(key).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        file = self._file(key)
        with explaining("write", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, json.dumps(answer).encode())

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
