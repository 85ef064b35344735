"""Answers saved on disk by what was asked: the same request is answered from there and costs nothing.

`AnswerCache` is a folder that the user names and that stays. `PaidAnswers` is one file of a run or a folder of samples, for the
answers of a piece of work that is not finished.

In both a question is a hash. The name of a file is the hash of address, model, path and body, so nothing of a question can be read from the folder, and
another seed, temperature or number of samples is another request. Files are put in place in one step; one that cannot be
read is asked for anew.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skill_ttrl.errors import RunFolderError
from skill_ttrl.storage.append_log import append_whole, cut_torn_line
from skill_ttrl.storage.files import wrap_os_errors, write_atomic
from skill_ttrl.storage.jsonl import read_jsonl


class AnswerCache:
    """A folder of answers, made with the first one."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()

    @staticmethod
    def key(address: str, model: str, path: str, body: Mapping[str, Any]) -> str:
        """SHA-256 of what is asked of whom."""
        asked = json.dumps([address, model, path, body], sort_keys=True, ensure_ascii=True, default=str)
        return hashlib.sha256(asked.encode()).hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """The server's answer; None where there is none, or it is not whole."""
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
        with wrap_os_errors("write", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, json.dumps(answer).encode())

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


class PaidAnswers:
    """Answers to questions of a piece of work that was stopped before its end, in the order in which they came.

    Each answer of an earlier process is given once, so that a question that was asked twice has both of its answers again. What this
    process adds is for the next one. The file, of JSON lines, is made with the first answer; a torn last line is cut.

    Raises:
        RunFolderError: it cannot be read, or was changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._waiting: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._count = 0
        if not path.exists():
            return
        cut_torn_line(path)
        for number, row in enumerate(read_jsonl(path), 1):
            key, answer = row.get("key"), row.get("answer")
            if not isinstance(key, str) or not isinstance(answer, dict):
                raise RunFolderError(
                    f"{path}:{number} is no paid answer. The file was changed; remove it to pay again."
                )
            self._waiting[key].append(answer)
            self._count += 1

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: str) -> bool:
        return bool(self._waiting.get(key))

    def take(self, key: str) -> dict[str, Any] | None:
        """The next answer of an earlier process to this question; None where there is none left."""
        with self._lock:
            waiting = self._waiting.get(key)
            return waiting.pop(0) if waiting else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Save an answer.

        Raises:
            RunFolderError: the file cannot be written.
        """
        line = json.dumps({"key": key, "answer": answer}).encode() + b"\n"
        with self._lock:
            append_whole(self.path, line)
            self._count += 1

    def clear(self) -> None:
        """Forget all answers, also on the disk.

        Raises:
            RunFolderError: the file cannot be removed.
        """
        with self._lock, wrap_os_errors("remove", self.path):
            self._waiting.clear()
            self._count = 0
            self.path.unlink(missing_ok=True)
