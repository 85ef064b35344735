"""Embedders: texts in, vectors of length 1 out, so that a dot product is a cosine.

`hash` counts character n-grams; `sentence-transformers` runs a model; `openai` asks the endpoint of the role `embeddings`;
`module:attribute` is one of your own: a callable that takes `model` and `revision` and returns an `Embedder`. The vector of a text must
not depend on the other texts of its batch, or a rebuilt index would hold other vectors than the one it replaces.

A bank's folder stores the name of its embedder's model for later searches. For `openai` this name encodes the endpoint as JSON: its
address and request settings, without a key (`with_endpoint`). A server may return different bits for the same text in another batch;
each text is therefore requested once and its vector remembered.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from skill_ttrl.config import EndpointConfig, EndpointsConfig, SkillsConfig
from skill_ttrl.errors import ConfigError, EndpointError, MissingDependencyError, ModelError
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import BATCH_TEXTS, Client
from skill_ttrl.registry import Registry, naming
from skill_ttrl.skills.log import DEFAULT_MODEL
from skill_ttrl.skills.types import grouped

Vectors = NDArray[np.float32]

EMBED_CHARS = 4096
"""Only so many characters of a text are embedded: skill texts are untrusted and may be of any size."""


class Embedder(Protocol):
    """Turns texts into vectors. The same text gives the same bits, alone or among others, today and tomorrow."""

    name: str
    """Fingerprint: kind, model, revision and dimension. Vectors of two embedders are comparable if theirs are equal."""
    dimension: int

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of shape (len(texts), dimension), rows of Euclidean length 1; zeros for a text without content."""
        ...


def normalised(rows: NDArray[np.float64]) -> Vectors:
    """Rows divided by their Euclidean length; rows of zeros stay."""
    length = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return (rows / np.where(length > 0, length, 1.0)).astype(np.float32)


NGRAMS = (3, 4, 5)
HASH_DIMENSION = 384
HASH_VERSION = 1  # part of the fingerprint: another way of counting must not meet vectors made by this one
BLOCK_TEXTS = 256  # texts hashed at once: bounds the memory to tens of megabytes
WORDS = re.compile(r"[^\W_]+|[+*/=<>^%]|(?<!\w)-")  # words and operators: "x-axis" is two words, "x - 3" has a minus
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
_HASH_BITS = np.uint64(48)  # of a feature; the text's number within its block takes the other 16


class HashEmbedder:
    """Signed hashing of character n-grams and whole words, with sublinear term frequency (1 + ln tf).

    Texts are NFKC-normalised and lower-cased; n-grams of 3 to 5 characters stay within a word and know its edges, so that
    "multiply" and "multiplying" share most of theirs. Signed hashing into a fixed number of dimensions: Weinberger et al.
    2009, "Feature Hashing for Large Scale Multitask Learning", section 2.
    """

    def __init__(self, dimension: int = HASH_DIMENSION) -> None:
        self.dimension = dimension
        self.name = f"hash:v{HASH_VERSION}:{dimension}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Count the n-grams of texts."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(texts), BLOCK_TEXTS):
            block = [words_of(text[:EMBED_CHARS]) for text in texts[start : start + BLOCK_TEXTS]]
            vectors[start : start + len(block)] = self._embed_block(block)
        return vectors

    def _embed_block(self, texts_N: list[list[str]]) -> Vectors:
        features, counts = np.unique(_features(texts_N), return_counts=True)
        owner = (features >> _HASH_BITS).astype(np.int64)
        hashed = (features & np.uint64((1 << 48) - 1)).astype(np.int64)
        sign = 1.0 - 2.0 * (hashed & 1)
        cell = owner * self.dimension + (hashed >> 1) % self.dimension
        weight = sign * (1.0 + np.log(counts))
        sums = np.bincount(cell, weights=weight, minlength=len(texts_N) * self.dimension).astype(np.float64)
        return normalised(sums.reshape(len(texts_N), self.dimension))


def words_of(text: str) -> list[str]:
    """Lower-case words, numbers and arithmetic signs of a text; other signs and underscores only divide."""
    return WORDS.findall(unicodedata.normalize("NFKC", text).lower())


def _features(texts_N: list[list[str]]) -> NDArray[np.uint64]:
    """One number for each n-gram and word of each text: 16 bits for the text, 48 bits of a hash.

    The hash of characters l..r is a polynomial in their code points, taken from differences of one running sum.
    """
    joined = [f" {' '.join(words)} " if words else "" for words in texts_N]
    sizes = [len(text) for text in joined]
    codes = np.frombuffer("".join(joined).encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    if not len(codes):
        return np.zeros(0, dtype=np.uint64)
    owner = np.repeat(np.arange(len(joined), dtype=np.uint64), sizes) << _HASH_BITS
    # With s[i] = sum over j < i of c[j] * B^-j, the polynomial of l..r is (s[r + 1] - s[l]) * B^r, modulo 2^64.
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(codes * _powers(_INVERSE, len(codes)))])
    powers = _powers(_BASE, len(codes))
    space = np.flatnonzero(codes == ord(" "))
    word = np.flatnonzero(np.diff(space) > 1)
    spans = [(space[word], space[word + 1], np.uint64(0))]  # whole words with both edges
    spaces_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(codes == ord(" "))])
    for n in NGRAMS:
        left = np.arange(len(codes) - n + 1)
        inner_spaces = spaces_before[left + n - 1] - spaces_before[left + 1]  # an edge may be first or last only
        left = left[inner_spaces == 0]
        spans.append((left, left + n - 1, np.uint64(n)))
    found = []
    for left, right, kind in spans:
        polynomial = (running[right + 1] - running[left]) * powers[right]
        found.append(owner[left] | (_mixed(polynomial + kind) >> np.uint64(16)))
    return np.concatenate(found)


def _powers(base: np.uint64, count: int) -> NDArray[np.uint64]:
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of the input moves every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


SENTENCES_AT_ONCE = 32
TOKENS_AT_ONCE = 32  # at least


class SentenceTransformerEmbedder:
    """A sentence-transformers model, from a folder or from the Hugging Face hub at one commit.

    Texts are run in batches of the same number of tokens, filled up to `TOKENS_AT_ONCE`: padding changes the last bits of a
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
            raise MissingDependencyError.for_extra("The embedder", "skills", "sentence-transformers") from None
        folder = Path(model).expanduser()
        local = folder.is_dir()
        try:
            commit = f"sha256-{_digest(folder)[:16]}" if local else hub_commit(model, revision)
            where: dict[str, Any] = {"local_files_only": True} if local else {"revision": commit}
            path = str(folder) if local else model
            self._model: Any = SentenceTransformer(path, trust_remote_code=False, **where)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
            raise _not_loaded(model, revision, error) from None
        self._model.eval()
        self.dimension = int(self._model.encode(["dimension"], show_progress_bar=False).shape[1])
        self.revision = commit
        self.name = f"sentence-transformers:{folder.name if local else model}@{commit}:{self.dimension}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Run the model on texts."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        well_formed = [text[:EMBED_CHARS].encode("utf-8", "replace").decode("utf-8") for text in texts]  # no surrogates
        for rows, tokens in self._batches(well_formed):
            batch = [well_formed[row] for row in rows]
            batch += batch[:1] * (-(-TOKENS_AT_ONCE // tokens) - len(batch))
            made = self._model.encode(
                batch,
                batch_size=SENTENCES_AT_ONCE,
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
        ids = tokenizer([texts[row] for row in full], **limit)["input_ids"]
        sizes = dict(zip(full, map(len, ids), strict=True))
        same = grouped(full, key=lambda row: sizes[row])
        starts = [(rows, size, at) for size, rows in same.items() for at in range(0, len(rows), SENTENCES_AT_ONCE)]
        return [(rows[at : at + SENTENCES_AT_ONCE], size) for rows, size, at in starts]


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
    else:
        hint = (
            "Check the path or name, the revision, the network and HF_HUB_OFFLINE; a model in the cache is found without a "
            "network. `skills.embedder: hash` needs no model."
        )
    return ModelError(f"Cannot load the embedding model {model!r}{at}. {hint} ({reason})")


NAME = "openai"
PROBE = "dimension"
"""Text whose vector says how long vectors are."""


def with_endpoint(skills: SkillsConfig | None, endpoints: EndpointsConfig) -> SkillsConfig | None:
    """The skills section with `endpoints.roles.embeddings` in place of the embedder's model, where that is what embeds.

    Raises:
        ConfigError: `skills.embedder` is openai, and the config names no model in `endpoints.roles.embeddings`.
    """
    if skills is None or skills.embedder != NAME or not skills.embeds:
        return skills
    own = endpoints.of("embeddings")
    if own is None:
        raise ConfigError(
            "skills.embedder=openai needs a model of its own. Set endpoints.roles.embeddings.model, and endpoints.roles.embeddings.base_url "
            "unless endpoints names the server."
        )
    return skills.model_copy(update={"embedder_model": own.model_dump_json(exclude_defaults=True)})


class OpenAIEmbedder:
    """Embeds texts with a model at a remote endpoint.

    Args:
        model: the endpoint as JSON, or a model's name at the usual address.
        revision: ignored; the server decides.

    Raises:
        ConfigError: no model is named, or its key or address is missing.
        EndpointError: the server gives no vectors.
        MissingDependencyError: the package openai is not installed.
    """

    def __init__(self, model: str = "", revision: str | None = None) -> None:
        config = _endpoint(model)
        self._client = Client(config, "embeddings")
        self._known: dict[str, list[float]] = {}
        self.dimension = len(self._vectors([PROBE])[0])
        self.name = f"{NAME}:{self._client.host}/{config.model}:{self.dimension}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Ask the endpoint for the vectors of texts.

        Raises:
            EndpointError: the server gives no vectors, or of another dimension than before.
            BudgetError: what may be spent is spent.
        """
        cut = [text[:EMBED_CHARS].encode("utf-8", "replace").decode("utf-8") for text in texts]  # no surrogates
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        full = [row for row, text in enumerate(cut) if text.strip()]  # servers refuse empty texts
        found = self._vectors([cut[row] for row in full])
        for vector in found:
            if len(vector) != self.dimension:
                raise EndpointError(
                    f"{self.name} returned a vector of {len(vector)} numbers: the server's model has changed since the run started.",
                    "malformed",
                )
        if full:
            vectors[full] = normalised(np.asarray(found, dtype=np.float64))
        return vectors

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text; each is asked for once."""
        wanted = [text for text in dict.fromkeys(texts) if text not in self._known]
        for start in range(0, len(wanted), BATCH_TEXTS * self._client.config.max_concurrency):
            part = wanted[start : start + BATCH_TEXTS * self._client.config.max_concurrency]
            self._known.update(zip(part, wait_for(self._client.embed(part)), strict=True))
        return [self._known[text] for text in texts]


def _endpoint(model: str) -> EndpointConfig:
    try:
        found = EndpointConfig.model_validate_json(model) if model.startswith("{") else EndpointConfig(model=model)
    except ValidationError as error:
        # What was found is not shown: somebody may have put a key there.
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"The bank's embedder names no endpoint: {problems}.") from None
    if not found.model or found.model == DEFAULT_MODEL:
        raise ConfigError("The embedder openai needs a model: set endpoints.roles.embeddings.model.")
    return found


EmbedderFactory = Callable[[str, str | None], Embedder]
EMBEDDERS: Registry[EmbedderFactory] = Registry("embedder")


EMBEDDERS.register("hash")(lambda model, revision: HashEmbedder())  # it has no model
EMBEDDERS.register("sentence-transformers")(SentenceTransformerEmbedder)
EMBEDDERS.register(NAME)(OpenAIEmbedder)


def make_embedder(name: str, model: str = DEFAULT_MODEL, revision: str | None = None) -> Embedder:
    """The embedder called `name`.

    Args:
        name: `hash`, `sentence-transformers`, `openai`, or `module:attribute`, which is called as `attribute(model, revision)`.
        model: Hugging Face id or folder; `hash` has none and ignores it.
        revision: commit of a hub model.

    Raises:
        ConfigError: there is no such embedder, or what a user's factory gives is none.
        ExtensionError: a user's factory raised an error.
        ModelError: the model is not there or cannot be read.
        MissingDependencyError: sentence-transformers is not installed.
    """
    factory = EMBEDDERS.get(name)
    with naming(f"The embedder {name!r}", "when it was made"):
        made: Any = factory(model, revision)
    name_fits = isinstance(getattr(made, "name", None), str) and bool(made.name)
    dimension = getattr(made, "dimension", None)
    if not (name_fits and isinstance(dimension, int) and dimension > 0 and callable(getattr(made, "embed", None))):
        raise ConfigError(
            f"{name!r} returned an object of type {type(made).__name__} that is no embedder: it has a name (text), a dimension (a "
            "positive whole number) and embed(texts) -> array (texts, dimension)."
        )
    embedder: Embedder = made
    return embedder
