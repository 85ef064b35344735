"""Vectors in Chroma, embedded in the bank's folder."""

from __future__ import annotations

import shutil
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.errors import MissingDependencyError, RunFolderError, SkillBankError, on_error
from skill_ttrl.skills.embedders import Vectors
from skill_ttrl.storage.files import acquire_lock, release_lock

INDEX_SCHEMA = 1
CHROMA_FOLDER = "chroma"


class _NotOurs(ValueError):
    """A collection that this program did not make."""


class ChromaIndex:
    """Vectors in a Chroma database in a folder that this process alone may open.

    It holds one collection, made by one embedder. What is damaged is made again: it holds nothing but what the bank's texts give.

    Args:
        embedder: fingerprint of the embedder whose vectors these are.
        folder: the bank's folder; vectors go to `chroma` in it.

    Raises:
        SkillBankError: the folder holds another embedder's vectors, or another process has it open.
        MissingDependencyError: chromadb is not installed.
    """

    def __init__(self, embedder: str, folder: Path) -> None:
        try:
            import chromadb
        except ImportError:
            raise MissingDependencyError.for_extra("The Chroma index", "skills", "chromadb") from None
        self._chromadb: Any = chromadb
        self._metadata = {"embedder": embedder, "schema": INDEX_SCHEMA}
        self._client: Any = None
        self._folder = folder / CHROMA_FOLDER
        self._lock: int | None = _lock(self._folder)
        with on_error(self.close):
            try:
                self._open()
            except (chromadb.errors.InternalError, _NotOurs) as error:
                self._reset(error)

    def fetch(self, keys: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """The vectors that are stored, bit for bit as they were added; none where what is stored is damaged."""
        found: dict[str, NDArray[np.float32]] = {}
        try:
            for start in range(0, len(keys), self._batch_size):
                batch = list(keys[start : start + self._batch_size])
                rows = self._collection.get(ids=batch, include=["embeddings"])
                found.update(zip(rows["ids"], np.asarray(rows["embeddings"], dtype=np.float32), strict=True))
        except (self._chromadb.errors.InternalError, self._chromadb.errors.NotFoundError) as error:
            self._reset(error)
            return {}
        return found

    def add(self, keys: Sequence[str], vectors: Vectors) -> None:
        """Store these vectors, of shape (len(keys), dimension)."""
        for _ in range(2):
            try:
                for start in range(0, len(keys), self._batch_size):
                    batch = slice(start, start + self._batch_size)
                    self._collection.upsert(ids=list(keys[batch]), embeddings=vectors[batch])
                return
            except (self._chromadb.errors.InternalError, self._chromadb.errors.NotFoundError) as error:
                self._reset(error)
        raise SkillBankError(
            f"Chroma in {self._folder} cannot store vectors, even after a reset. Use `skills.index: memory`."
        )

    def close(self) -> None:
        """Close the client and free the folder for another process. More than once is fine."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._lock is not None:
            release_lock(self._folder, self._lock)
            self._lock = None

    def _open(self) -> None:
        # Each database has a folder of its own: Chroma keeps what it opened in a table by path, damaged ones too.
        found = sorted(path for path in self._folder.iterdir() if path.is_dir())
        path = found[0] if found else self._folder / f"vectors-{uuid.uuid4().hex[:8]}"
        settings = self._chromadb.Settings(anonymized_telemetry=False)
        self._client = self._chromadb.PersistentClient(str(path), settings=settings)
        try:
            collection = self._client.get_collection("skills", embedding_function=None)
        except self._chromadb.errors.NotFoundError:
            collection = self._client.get_or_create_collection(
                "skills", embedding_function=None, metadata=self._metadata, configuration={"hnsw": {"space": "l2"}}
            )
        if _embeds_itself([collection.configuration_json, collection._model.serialized_schema]):
            raise _NotOurs("its collection has its own embedder, whose code Chroma would load")
        made = collection.metadata or {}
        if made != self._metadata:
            raise SkillBankError(
                f"The vectors of Chroma in {self._folder} were made by the embedder {made.get('embedder')!r} (schema "
                f"{made.get('schema')!r}), the queries come from {self._metadata['embedder']!r} (schema {INDEX_SCHEMA}): "
                "they cannot be compared. Use that embedder (skills.embedder, embedder_model, embedder_revision), or remove "
                f"{self._folder}: it is rebuilt from the bank."
            )
        self._collection = collection
        self._batch_size = int(self._client.get_max_batch_size())

    def _reset(self, reason: Exception) -> None:
        """Put the stored vectors away, and begin with none."""
        text = " ".join(str(reason).split())[:200]
        warnings.warn(f"Chroma in {self._folder} is damaged and is rebuilt from the bank ({text}).", stacklevel=2)
        if self._client is not None:
            self._client.close()
            self._client = None
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        self._open()


def _embeds_itself(record: Any) -> bool:
    """True if Chroma's record of a collection names an embedder anywhere: Chroma creates it when it next reads the schema."""
    if isinstance(record, list):
        return any(map(_embeds_itself, record))
    if not isinstance(record, dict):
        return False
    named = record.get("embedding_function")
    kind = named.get("type") if isinstance(named, dict) else named
    return kind not in (None, "legacy", "unknown") or _embeds_itself(list(record.values()))


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return acquire_lock(folder)
    except OSError as error:
        raise SkillBankError(f"Cannot create {folder} for the skills' vectors: {error.strerror or error}.") from None
    except RunFolderError as error:
        raise SkillBankError(
            f"Cannot open the skills' vectors: {str(error).partition('. ')[0]}. One process owns an embedded Chroma: a second "
            "would read stale rows. Wait until it ends, or use `skills.index: memory`."
        ) from None
