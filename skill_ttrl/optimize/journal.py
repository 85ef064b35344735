"""The journal of an optimization: every finished call and rollout, once.

The loop is a deterministic function of its inputs, its seed and this file. A resumed run replays the loop from its start: what the
journal holds is answered from there and costs nothing, so it makes the same calls and ends with the same document as a run that was
never stopped. Nothing else is read back; the other files of the folder are views.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.storage.append_log import append_whole, cut_torn_line
from skill_ttrl.storage.jsonl import read_jsonl

JOURNAL = "journal.jsonl"


class Journal:
    """Results by key, saved line by line in a file.

    Args:
        path: the file, continued where it exists; None: results stay in memory.

    Raises:
        RunFolderError: the file cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._results: dict[str, Any] = {}
        self._lock = threading.Lock()
        if path is not None and path.exists():
            cut_torn_line(path)
            for number, row in enumerate(read_jsonl(path), 1):
                if row.keys() != {"key", "result"}:
                    raise RunFolderError(f"{path}:{number} is no line of a journal. The file was changed.")
                self._results[str(row["key"])] = row["result"]
        self.replayed = len(self._results)
        """Results that were there when it was opened."""

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: str) -> Mapping[str, Any] | None:
        """The result of a finished piece of work; None where it is not finished."""
        found: Mapping[str, Any] | None = self._results.get(key)
        return found

    def put(self, key: str, result: Mapping[str, Any], *, durable: bool = True) -> None:
        """Keep a result, on the disk when this returns where it is `durable`. Safe to call from several threads.

        Raises:
            RunFolderError: the file cannot be written.
        """
        with self._lock:
            if self.path is not None:
                append_whole(
                    self.path, f"{json.dumps({'key': key, 'result': dict(result)})}\n".encode(), durable=durable
                )
            self._results[key] = result
