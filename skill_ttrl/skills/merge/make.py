"""Mergers by name.

`heuristic` counts; `openai` asks a language model. A custom one is named `module:attribute` and is called with `similarity`
and `threshold`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skill_ttrl.errors import ConfigError
from skill_ttrl.registry import Registry
from skill_ttrl.skills.merge.heuristic import HeuristicMerger
from skill_ttrl.skills.merge.llm import LLMMerger
from skill_ttrl.skills.merge.types import Merged, Merger
from skill_ttrl.skills.ops import ParsedOutput
from skill_ttrl.skills.querying import OPENAI, LLMEndpoints, OnFailure, asking_model
from skill_ttrl.skills.similarity import Similarity
from skill_ttrl.skills.snapshot import Snapshot

MERGERS: Registry[Callable[..., Merger]] = Registry("merger")
MERGERS.register("heuristic")(HeuristicMerger)


@MERGERS.register(OPENAI)
def _openai_merger(models: LLMEndpoints, *, similarity: Similarity | None = None, threshold: float = 0.95) -> Merger:
    return LLMMerger(models.asking("merger"), similarity=similarity, threshold=threshold)


def make_merger(
    name: str = "heuristic",
    *,
    similarity: Similarity | None = None,
    threshold: float = 0.95,
    models: LLMEndpoints | None = None,
) -> Merger:
    """The merger called `name`, made with `similarity` and `threshold`; `models` says whom `openai` asks.

    Raises:
        ConfigError: there is none of that name, the config lacks what it needs, or what a user's factory gives has no `merge`.
        MissingDependencyError: the packages that it needs are not installed.
    """
    factory = MERGERS.get(name)
    first = (models or LLMEndpoints(),) if name == OPENAI else ()
    try:
        made = factory(*first, similarity=similarity, threshold=threshold)
    except TypeError as error:
        raise ConfigError(f"Merger {name!r} cannot be made with similarity= and threshold=: {error}.") from None
    if not callable(getattr(made, "merge", None)):
        raise ConfigError(
            f"{name!r} returned an object of type {type(made).__name__} without merge(outputs, retrieved=, snapshot=)."
        )
    return made


class SkillMerger:
    """Fuses by counting (`HeuristicMerger`), or with `use_api` by asking a language model (`LLMMerger`).

    `use_api` may be set on a merger that has a model.

    Args:
        use_api: ask a language model; None: where `model` is given.
        model: its name, as the server knows it, e.g. "gpt-4o".
        api_key: None: that of the environment variable `OPENAI_API_KEY`. It is kept in memory only.
        base_url: address of a server that speaks OpenAI's protocol; None: `OPENAI_BASE_URL`, else OpenAI's own.
        on_failure: what becomes of proposals for which the model gives no usable answer: "stop" (an error), "skip" (they are
            left out) or "heuristic"; the two latter are counted in `Merged.asked`.
        similarity: how alike texts are, to fuse those whose words differ too (`embedding_similarity`);
            None: only those that differ in nothing but case, punctuation and fillers.
        threshold: least similarity of texts that are fused.

    Raises:
        ConfigError: `use_api` without a model; no key for a server that needs one.
        MissingDependencyError: a language model is to be asked, and the packages of the extra `openai` are not installed.
    """

    def __init__(
        self,
        *,
        use_api: bool | None = None,
        model: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        on_failure: OnFailure = "stop",
        similarity: Similarity | None = None,
        threshold: float = 0.95,
    ) -> None:
        if use_api and model is None:
            raise ConfigError(
                "SkillMerger(use_api=True) needs the name of the language model to ask: "
                'SkillMerger(use_api=True, model="gpt-4o"), and base_url= where it is not OpenAI\'s own.'
            )
        self.use_api = model is not None if use_api is None else use_api
        self._heuristic = HeuristicMerger(similarity=similarity, threshold=threshold)
        self._model: Merger | None = None
        if model is not None and self.use_api:
            asking = asking_model(model, api_key=api_key, base_url=base_url, on_failure=on_failure)
            self._model = LLMMerger(asking, similarity=similarity, threshold=threshold)

    def merge(
        self,
        outputs: Sequence[ParsedOutput],
        *,
        retrieved: Sequence[Sequence[str]] = (),
        snapshot: Snapshot | None = None,
    ) -> Merged:
        """See `Merger.merge`. Counting takes the texts of rewritten skills from the snapshot, where there is one; a language
        model is shown the bank's skills from it.

        Raises:
            EndpointError: the language model gave no usable answer, under `on_failure="stop"`.
        """
        if self.use_api and self._model is None:
            raise ConfigError("This SkillMerger has no language model to ask: make it with SkillMerger(model=…).")
        merger = self._model if self.use_api and self._model is not None else self._heuristic
        return merger.merge(outputs, retrieved=retrieved, snapshot=snapshot)
