"""The embedder `sentence-transformers`: a model from a folder or from the Hugging Face hub."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skill_ttrl.errors import MissingDependencyError, ModelError
from skill_ttrl.skills.retrieval.embedders import EMBED_CHARS, Vectors, normalised
from skill_ttrl.skills.settings import DEFAULT_MODEL

BATCH_TEXTS = 32
BATCH_TOKENS = 32  # at least


class SentenceTransformerEmbedder:
    """A sentence-transformers model, from a folder or from the Hugging Face hub at one commit.

    Texts are run in batches of the same number of tokens, filled up to `BATCH_TOKENS`: padding changes the last bits of a
    vector, and so do matrix products of very few rows. Otherwise the bits were equal for batches of 1 to 64 texts
    (measured in float32 on a CPU, with 1 and 2 threads; below 12 tokens they were not).

    Args:
        model: folder or hub id.
        revision: commit, branch or tag of a hub model; what it means now is resolved and recorded in `name`.

    Raises:
        ModelError: the model is not there, is not whole, or needs code that is not trusted.
        MissingDependencyError: sentence-transformers is not installed.
    """

    def __init__(self, model: str = DEFAULT_MODEL, revision: str | None = None) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise MissingDependencyError.for_extra("The sentence-transformers embedder", "skills") from None
        folder = Path(model).expanduser()
        try:
            if folder.is_dir():
                commit = f"sha256-{_digest(folder)[:16]}"
                self._model: Any = SentenceTransformer(str(folder), trust_remote_code=False, local_files_only=True)
            else:
                commit = hub_commit(model, revision)
                self._model = SentenceTransformer(model, revision=commit, trust_remote_code=False)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
            raise _not_loaded(model, revision, error) from None
        self._model.eval()
        self.dimension = int(self._model.encode(["dimension"], show_progress_bar=False).shape[1])
        self.revision = commit
        self.name = f"sentence-transformers:{folder.name if folder.is_dir() else model}@{commit}:{self.dimension}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder.embed`."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        well_formed = [text[:EMBED_CHARS].encode("utf-8", "replace").decode("utf-8") for text in texts]  # no surrogates
        for rows, tokens in self._batches(well_formed):
            batch = [well_formed[row] for row in rows]
            batch += batch[:1] * (-(-BATCH_TOKENS // tokens) - len(batch))
            made = self._model.encode(
                batch,
                batch_size=BATCH_TEXTS,
                show_progress_bar=False,
                convert_to_numpy=True,
                normalize_embeddings=False,
            )
            vectors[rows] = normalised(np.asarray(made[: len(rows)], dtype=np.float64))
        return vectors

    def _batches(self, texts: list[str]) -> list[tuple[list[int], int]]:
        """Rows of texts with the same number of tokens, and that number; texts of spaces are left out."""
        full = [row for row, text in enumerate(texts) if text.strip()]
        if not full:
            return []
        tokenizer = self._model.tokenizer
        longest = self._model.max_seq_length
        limit = {"truncation": True, "max_length": longest} if longest else {}
        sizes = [len(ids) for ids in tokenizer([texts[row] for row in full], **limit)["input_ids"]]
        same: dict[int, list[int]] = {}
        for row, size in zip(full, sizes, strict=True):
            same.setdefault(size, []).append(row)
        starts = [(rows, size, at) for size, rows in same.items() for at in range(0, len(rows), BATCH_TEXTS)]
        return [(rows[at : at + BATCH_TEXTS], size) for rows, size, at in starts]


def hub_commit(model: str, revision: str | None = None) -> str:
    """Commit that a hub model's revision means now (from the cache where there is no network).

    Raises:
        OSError: there is no such model, or it is neither on the hub nor in the cache.
    """
    from huggingface_hub import hf_hub_download

    # <cache>/models--NAME/snapshots/COMMIT/modules.json
    return Path(hf_hub_download(model, "modules.json", revision=revision)).parent.name


def _digest(folder: Path) -> str:
    """Identify the model in a folder, independently of the folder's path: SHA-256 over the names and contents of its files."""
    digest = hashlib.sha256()
    kinds = {".json", ".txt", ".safetensors", ".bin", ".model"}
    for path in sorted(path for path in folder.rglob("*") if path.suffix in kinds and path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _not_loaded(model: str, revision: str | None, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:300]
    at = f" at revision {revision!r}" if revision else ""
    if Path(model).expanduser().is_dir():
        hint = "The folder exists but holds no complete sentence-transformers model."
    elif model.startswith((".", "/", "~")) or model.count("/") > 1:
        hint = f"There is no folder {model}."
    else:
        hint = (
            "Check the name, the revision, the network and HF_HUB_OFFLINE; a model in the cache is found without a "
            "network. `skills.embedder: hash` needs no model."
        )
    return ModelError(f"Cannot load the embedding model {model!r}{at}. {hint} ({reason})")
