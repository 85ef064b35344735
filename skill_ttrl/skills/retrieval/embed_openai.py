"""Embedder for `skills.embedder: openai`: the remote model of `endpoints.roles.embeddings` turns texts into vectors.

An embedder is made from a model's name alone, and a bank's folder stores that name for later searches. So the name encodes
the endpoint as JSON: its address and request settings, without a key (`with_endpoint`). A server may return different bits
for the same text in another batch; each text is therefore requested once and its vector remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import ValidationError

from skill_ttrl.config import EndpointConfig, SkillsConfig, SkillTTRLConfig
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import BATCH_TEXTS, Client
from skill_ttrl.skills.retrieval.embedders import EMBED_CHARS, Vectors, normalised
from skill_ttrl.skills.settings import DEFAULT_MODEL

NAME = "openai"
PROBE = "dimension"
"""Text whose vector says how long vectors are."""


def with_endpoint(config: SkillTTRLConfig) -> SkillsConfig | None:
    """The skills section with `endpoints.roles.embeddings` in place of the embedder's model, where that is what embeds.

    Raises:
        ConfigError: `skills.embedder` is openai, and the config names no model in `endpoints.roles.embeddings`.
    """
    skills = config.skills
    if skills is None or skills.embedder != NAME or not skills.embeds:
        return skills
    own = config.endpoints.of("embeddings")
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

    def __init__(self, model: str, revision: str | None = None) -> None:
        config = _endpoint(model)
        self._client = Client(config, "embeddings")
        self._known: dict[str, list[float]] = {}
        self.dimension = len(self._vectors([PROBE])[0])
        self.name = f"{NAME}:{self._client.host}/{config.model}:{self.dimension}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder.embed`.

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
    if not model or model == DEFAULT_MODEL:
        raise ConfigError("The embedder openai needs a model: set endpoints.roles.embeddings.model.")
    if not model.startswith("{"):
        return EndpointConfig(model=model)
    try:
        found = EndpointConfig.model_validate_json(model)
    except ValidationError as error:
        # What was found is not shown: somebody may have put a key there.
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"The bank's embedder names no endpoint: {problems}.") from None
    if not found.model:
        raise ConfigError("The bank's embedder names no model.")
    return found
