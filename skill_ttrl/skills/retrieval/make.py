"""Embedders and retrievers by the names that a config gives them.

`hash` counts character n-grams (`embed_hash`); `sentence-transformers` runs a model (`embed_sentences`); `openai` asks an
endpoint (`embed_openai`); `module:attribute` is one of your own: a callable that takes `model` and `revision` and returns an
`Embedder`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skill_ttrl.config.skills import SkillsConfig
from skill_ttrl.errors import ConfigError, MissingDependencyError
from skill_ttrl.registry import Registry
from skill_ttrl.skills.retrieval.chroma import ChromaIndex
from skill_ttrl.skills.retrieval.embed_hash import HashEmbedder
from skill_ttrl.skills.retrieval.embed_sentences import SentenceTransformerEmbedder
from skill_ttrl.skills.retrieval.embedders import Embedder
from skill_ttrl.skills.retrieval.retriever import MemoryIndex, Retriever
from skill_ttrl.skills.settings import DEFAULT_MODEL, BankSettings

EmbedderFactory = Callable[[str, str | None], Embedder]
EMBEDDERS: Registry[EmbedderFactory] = Registry("embedder")


@EMBEDDERS.register("hash")
def make_hash_embedder(model: str = "", revision: str | None = None) -> Embedder:
    """Character n-grams; there is no model, and `model` and `revision` are not looked at."""
    return HashEmbedder()


EMBEDDERS.register("sentence-transformers")(SentenceTransformerEmbedder)


@EMBEDDERS.register("openai")
def make_openai_embedder(model: str = "", revision: str | None = None) -> Embedder:
    """Create an embedder for a model at a remote endpoint; see `embed_openai`."""
    from skill_ttrl.skills.retrieval.embed_openai import OpenAIEmbedder

    return OpenAIEmbedder(model, revision)


def make_embedder(name: str, model: str = DEFAULT_MODEL, revision: str | None = None) -> Embedder:
    """The embedder called `name`.

    Args:
        name: `hash`, `sentence-transformers`, `openai`, or `module:attribute`, which is called as `attribute(model, revision)`.
        model: Hugging Face id or folder; `hash` has none and ignores it.
        revision: commit of a hub model.

    Raises:
        ConfigError: there is no such embedder, or what a user's factory gives is none.
        ModelError: the model is not there or cannot be read.
        MissingDependencyError: sentence-transformers is not installed.
    """
    made: Any = EMBEDDERS.get(name)(model, revision)
    kinds: dict[str, Callable[[Any], bool]] = {
        "name": lambda value: isinstance(value, str) and bool(value),
        "dimension": lambda value: isinstance(value, int) and value > 0,
        "embed": callable,
    }
    wrong = [key for key, fits in kinds.items() if not fits(getattr(made, key, None))]
    if wrong:
        raise ConfigError(
            f"{name!r} returned an object of type {type(made).__name__} without a usable {', '.join(wrong)}. An embedder has a name (text), a "
            "dimension (a positive whole number) and embed(texts) -> array (texts, dimension)."
        )
    embedder: Embedder = made
    return embedder


def make_retriever(settings: BankSettings, folder: Path | None = None) -> Retriever:
    """The retriever of a bank. `keyword` and `template` open no embedder and no index.

    Args:
        settings: the bank's.
        folder: the bank's folder, for an embedded Chroma.

    Raises:
        ConfigError: a name that is not known, or Chroma without a folder or server.
        SkillBankError: the index cannot be used (see `ChromaIndex`).
        ModelError: the embedder's model cannot be loaded.
        MissingDependencyError: a package of the extra `skills` is not installed.
    """
    mode, index, server, least = settings.retrieval_mode, settings.index, settings.chroma_server, settings.min_score
    if mode in ("keyword", "template"):
        return Retriever(mode, min_score=least, searched=settings.searched, fallback=settings.fallback)
    if index not in ("memory", "chroma"):
        raise ConfigError(f"Unknown index {index!r}. Known: chroma, memory.")
    if index == "chroma" and folder is None and server is None:
        raise ConfigError(
            "index 'chroma' needs the bank's folder or a chroma_server. Use 'memory' for a bank in memory."
        )
    embedder = make_embedder(settings.embedder, settings.embedder_model, settings.embedder_revision)
    if index == "memory":
        return Retriever(mode, embedder, MemoryIndex(), min_score=least, searched=settings.searched)
    chroma = ChromaIndex(embedder.name, folder=None if server else folder, server=server)
    return Retriever(mode, embedder, chroma, min_score=least, searched=settings.searched)


def check_packages(skills: SkillsConfig) -> None:
    """Refuse skills that cannot be found for want of a package, without importing it.

    Raises:
        MissingDependencyError: one is not installed.
    """
    asks = skills.retrieval != "template" or skills.max_retrievals > 0
    wanted = ["bm25s"] if skills.retrieval != "embedding" and asks else []
    if skills.embeds:
        wanted += ["chromadb"] * (skills.index == "chroma")
        wanted += ["sentence_transformers"] * (skills.embedder == "sentence-transformers")
    for name in wanted:
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError.for_extra(f"The skill bank ({name})", "skills")
