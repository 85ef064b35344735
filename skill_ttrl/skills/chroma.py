"""Vectors in Chroma, embedded in the bank's folder or on a server."""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.errors import MissingDependencyError, RunFolderError, SkillBankError
from skill_ttrl.skills.embedders import Vectors
from skill_ttrl.storage.files import acquire_lock, release_lock

T = TypeVar("T")

INDEX_SCHEMA = 1
CHROMA_FOLDER = "chroma"
SERVER_SECONDS = 120.0
"""Timeout of a request to the server."""
SERVER_PAUSES = (0.05, 0.2, 0.8, 2.0)
"""Seconds before each repetition of a request that failed inside the server: Chroma 1.5.9 fails to read a collection while another client
writes its first rows ("Nothing found on disk"). Every request here may be repeated."""


class _NotOurs(ValueError):
    """A collection that this program did not make."""


class ChromaIndex:
    """Vectors in Chroma: embedded in a folder that this process alone may open, or on a server.

    A folder holds one collection, made by one embedder. On a server each embedder has a collection of its own, shared by
    all banks: keys are hashes of texts, so they cannot clash.

    Args:
        embedder: fingerprint of the embedder whose vectors these are.
        folder: the bank's folder; vectors go to `chroma` in it.
        server: `host:port` of a running server, in place of a folder.

    Raises:
        SkillBankError: the folder holds another embedder's vectors, another process has it open, or no server answers.
        MissingDependencyError: chromadb is not installed.
    """

    def __init__(self, embedder: str, *, folder: Path | None = None, server: str | None = None) -> None:
        if (folder is None) == (server is None):
            raise ValueError("Chroma needs a folder or a server, and not both")
        try:
            import chromadb
        except ImportError:
            raise MissingDependencyError.for_extra("The Chroma index", "skills") from None
        self._chromadb: Any = chromadb
        self._metadata = {"embedder": embedder, "schema": INDEX_SCHEMA}
        self._server = server
        self._client: Any = None
        self._lock: int | None = None
        self._folder = Path() if folder is None else folder / CHROMA_FOLDER
        if server is None:
            self._lock = _lock(self._folder)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def fetch(self, keys: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """The vectors that are stored, bit for bit as they were added."""

        def read() -> dict[str, NDArray[np.float32]]:
            found: dict[str, NDArray[np.float32]] = {}
            for batch in self._batches(keys):
                rows = self._collection.get(ids=batch, include=["embeddings"])
                vectors = np.asarray(rows["embeddings"], dtype=np.float32)
                if len(vectors) != len(
                    rows["ids"]
                ):  # seen while another client writes: which belong together is unknown
                    raise self._chromadb.errors.InternalError(f"{len(vectors)} vectors for {len(rows['ids'])} keys")
                found.update(zip(rows["ids"], vectors, strict=True))
            return found

        return self._try(read, {})

    def add(self, keys: Sequence[str], vectors: Vectors) -> None:
        """Store these vectors, of shape (len(keys), dimension)."""

        def write() -> bool:
            for start, batch in zip(range(0, len(keys), self._batch_size), self._batches(keys), strict=True):
                self._collection.upsert(ids=batch, embeddings=vectors[start : start + len(batch)])
            return True

        if not self._try(write, False) and not self._try(write, False):
            raise SkillBankError(
                f"{self._where()} cannot store vectors, even after a reset. Use `skills.index: memory`."
            )

    def close(self) -> None:
        """Close the client and free the folder for another process. More than once is fine."""
        if self._client is not None:
            self._client.close()
            if self._server is not None:
                for part in (self._client, self._client._admin_client):
                    part._server._session.close()  # Chroma leaves its connections open
            self._client = None
        if self._lock is not None:
            release_lock(self._folder, self._lock)
            self._lock = None

    # --- opening, and what can be wrong with what is found ---

    def _open(self) -> None:
        """Open the collection, or make it. Damaged files are put away: they hold nothing that cannot be made again."""
        if self._server is not None:
            with self._explaining():
                self._client = self._connect()
                self._collection = self._get_or_create(
                    f"skill-ttrl-{INDEX_SCHEMA}-{_short(self._metadata['embedder'])}"
                )
                self._batch_size = int(self._client.get_max_batch_size())
            return
        try:
            self._open_folder()
        except (self._chromadb.errors.InternalError, _NotOurs) as error:
            self._discard(error)
            self._open_folder()

    def _open_folder(self) -> None:
        # Each database has a folder of its own: Chroma keeps what it opened in a table by path, damaged ones too.
        found = sorted(path for path in self._folder.iterdir() if path.is_dir())
        path = found[0] if found else self._folder / f"vectors-{uuid.uuid4().hex[:8]}"
        settings = self._chromadb.Settings(anonymized_telemetry=False)
        self._client = self._chromadb.PersistentClient(str(path), settings=settings)
        self._collection = self._get_or_create("skills")
        self._batch_size = int(self._client.get_max_batch_size())

    def _get_or_create(self, name: str) -> Any:
        try:
            collection = self._client.get_collection(name, embedding_function=None)
        except self._chromadb.errors.NotFoundError:
            collection = self._client.get_or_create_collection(
                name, embedding_function=None, metadata=self._metadata, configuration={"hnsw": {"space": "l2"}}
            )
        if _embeds_itself([collection.configuration_json, collection._model.serialized_schema]):
            raise _NotOurs(
                f"The collection {name!r} in {self._where()} has its own embedder, whose code Chroma would load"
            )
        found = collection.metadata or {}
        if found != self._metadata:
            remedy = (
                f"Use that embedder (skills.embedder, embedder_model, embedder_revision), or remove {self._folder}: it is rebuilt from the bank."
                if self._server is None
                else f"Delete the collection {name!r} there, or use another server."
            )
            raise SkillBankError(
                f"The vectors of {self._where()} were made by the embedder {found.get('embedder')!r} (schema "
                f"{found.get('schema')!r}), the queries come from {self._metadata['embedder']!r} (schema {INDEX_SCHEMA}): "
                f"they cannot be compared. {remedy}"
            )
        return collection

    def _connect(self) -> Any:
        host, _, port = (self._server or "").rpartition(":")
        settings = self._chromadb.Settings(anonymized_telemetry=False)
        client = self._chromadb.HttpClient(host=host, port=int(port), settings=settings)
        client._server._session.timeout = SERVER_SECONDS  # Chroma would wait for ever
        return client

    def _try(self, action: Callable[[], T], otherwise: T) -> T:
        """Return the result of `action`; if the vectors are damaged or gone, start with none and return `otherwise`."""
        with self._explaining():
            try:
                return self._repeated(action)
            except self._chromadb.errors.NotFoundError as error:  # the collection was deleted under us
                reason: Exception = error
            except self._chromadb.errors.InternalError as error:
                if self._server is not None:
                    raise
                reason = error
        if self._server is None:
            self._discard(reason)
        self._open()
        return otherwise

    def _repeated(self, action: Callable[[], T]) -> T:
        """Return the result of `action`; one that fails inside a server is repeated (`SERVER_PAUSES`)."""
        for seconds in SERVER_PAUSES if self._server is not None else ():
            try:
                return action()
            except self._chromadb.errors.InternalError:
                time.sleep(seconds)
        return action()

    def _discard(self, reason: Exception) -> None:
        text = " ".join(str(reason).split())[:200]
        warnings.warn(f"{self._where()} is damaged and is rebuilt from the bank ({text}).", stacklevel=2)
        if self._client is not None:
            self._client.close()
            self._client = None
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn what a server does wrong into a `SkillBankError`; an embedded Chroma's faults pass through."""
        if self._server is None:
            yield
            return
        import httpx

        try:
            yield
        except (self._chromadb.errors.ChromaError, httpx.HTTPError, ValueError, OSError) as error:
            if isinstance(error, self._chromadb.errors.NotFoundError):
                raise
            reason = " ".join(str(error).split())[:300]
            raise SkillBankError(
                f"{self._where()} does not serve the skills' vectors: {reason} Start it (chroma run --path FOLDER --port "
                "PORT), correct skills.chroma_server, or use skills.index=memory."
            ) from None

    def _where(self) -> str:
        return f"Chroma in {self._folder}" if self._server is None else f"The Chroma server {self._server}"

    def _batches(self, keys: Sequence[str]) -> Iterator[list[str]]:
        for start in range(0, len(keys), self._batch_size):
            yield list(keys[start : start + self._batch_size])


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
            "would read stale rows. Wait until it ends, or use `skills.index: memory` or a server (skills.chroma_server)."
        ) from None


def _short(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()[:16]
