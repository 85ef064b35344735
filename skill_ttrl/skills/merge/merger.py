"""Mergers: the operations of many winners become one of each kind.

`SkillMerger` counts and needs no language model; with `use_api` it asks one (`merge_llm`). One of your own is called by name
as `module:attribute`: anything that can be called with `similarity` and `threshold` and gives a `Merger`. What becomes of the
outcome is `merge`'s business.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from skill_ttrl.errors import ConfigError
from skill_ttrl.registry import Registry
from skill_ttrl.skills.bank.changes import quote
from skill_ttrl.skills.bank.snapshot import Snapshot
from skill_ttrl.skills.ops import ParsedOutput
from skill_ttrl.skills.querying import OPENAI, LLMCallStats, LLMEndpoints, OnFailure, asking_model
from skill_ttrl.skills.similarity import Similarity, clusters, consensus_text
from skill_ttrl.types import SkillOps


@dataclass(frozen=True, slots=True)
class Draft:
    """A skill that winners wrote."""

    text: str
    title: str = ""
    support: tuple[int, ...] = ()
    """Positions of the outputs that wrote it, or one like it."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A better text for a skill, from all that were written for it."""

    base: str
    text: str
    support: tuple[int, ...] = ()
    """Positions of the outputs whose words are in it."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The winners' operations as one."""

    new_skills: tuple[Draft, ...] = ()
    """Best supported first."""
    useful_retrieval_ids: tuple[str, ...] = ()
    """Skills that more than one winner was given (or the only winner), most used first."""
    evolved_skills: tuple[Rewrite, ...] = ()
    """At most one for each base."""
    skipped: tuple[str, ...] = ()
    """Items left out, each with its reason."""
    asked: LLMCallStats = field(default_factory=LLMCallStats)


class Merger(Protocol):
    """Fuses winners' operations. A language model can do it too."""

    def merge(
        self,
        outputs: Sequence[ParsedOutput],
        *,
        retrieved: Sequence[Sequence[str]] = (),
        snapshot: Snapshot | None = None,
    ) -> Merged:
        """Fuse.

        Args:
            outputs: what the winners wrote.
            retrieved: for each output the ids of the skills it was given; may be left out.
            snapshot: the bank they saw, where the texts of the bases are needed.
        """
        ...


class SkillMerger:
    """Fuses by counting: texts that say the same are one, competing rewrites of a skill are voted on (`fuse.consensus_text`).

    With `use_api` a language model fuses; `use_api` may be set on a merger that has a model.

    Args:
        mode: only "heuristic".
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
        ConfigError: another mode; `use_api` without a model; no key for a server that needs one.
        MissingDependencyError: a language model is to be asked, and the packages of the extra `openai` are not installed.
    """

    def __init__(
        self,
        mode: Literal["heuristic"] = "heuristic",
        *,
        use_api: bool | None = None,
        model: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        on_failure: OnFailure = "stop",
        similarity: Similarity | None = None,
        threshold: float = 0.95,
    ) -> None:
        if mode != "heuristic":
            raise ConfigError(f"Unknown mode {mode!r} of SkillMerger. Known: heuristic.")
        if use_api and model is None:
            raise ConfigError(
                "SkillMerger(use_api=True) needs the name of the language model to ask: "
                'SkillMerger(use_api=True, model="gpt-4o"), and base_url= where it is not OpenAI\'s own.'
            )
        self.use_api = model is not None if use_api is None else use_api
        self.similarity = similarity
        self.threshold = threshold
        self._model: Merger | None = None
        if model is not None and self.use_api:
            from skill_ttrl.skills.merge.llm import LLMMerger

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
        if self.use_api:
            if self._model is None:
                raise ConfigError("This SkillMerger has no language model to ask: make it with SkillMerger(model=…).")
            return self._model.merge(outputs, retrieved=retrieved, snapshot=snapshot)
        rewrites, skipped = self._rewrites(outputs, snapshot)
        return Merged(self._drafts(outputs), _useful(retrieved), rewrites, skipped)

    def _drafts(self, outputs: Sequence[ParsedOutput]) -> tuple[Draft, ...]:
        written = [
            (place, text, title)
            for place, output in enumerate(outputs)
            for text, title in zip(output.skill_ops.generate, titles(output.skill_ops), strict=True)
        ]
        found = clusters([text for _, text, _ in written], self.similarity, self.threshold)
        return tuple(
            Draft(
                cluster.text,
                _most_frequent([written[member][2] for member in cluster.members]),
                tuple(sorted({written[member][0] for member in cluster.members})),
            )
            for cluster in found
        )

    def _rewrites(
        self, outputs: Sequence[ParsedOutput], snapshot: Snapshot | None
    ) -> tuple[tuple[Rewrite, ...], tuple[str, ...]]:
        """One rewrite for each skill, and which skills stay as they are, with the reason."""
        texts: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for place, output in enumerate(outputs):
            last = {each.base: each.text for each in output.skill_ops.evolve}  # one voice for each winner
            for base, text in last.items():
                texts[base].append((place, text))
        found, skipped = list[Rewrite](), list[str]()
        for base, written in sorted(texts.items()):
            skill = snapshot.get(base) if snapshot is not None else None
            known = skill.text if skill is not None else None
            best = consensus_text([text for _, text in written], self.similarity, self.threshold, base=known)
            if best.members:
                found.append(Rewrite(base, best.text, tuple(written[member][0] for member in best.members)))
            else:
                skipped.append(
                    f"evolve of {quote(base)}: its {len(written)} rewrites differ, and none says more than the skill does"
                )
        return tuple(found), tuple(skipped)


MERGERS: Registry[Callable[..., Merger]] = Registry("merger")
MERGERS.register("heuristic")(SkillMerger)


@MERGERS.register(OPENAI)
def _openai(models: LLMEndpoints, *, similarity: Similarity | None = None, threshold: float = 0.95) -> Merger:
    from skill_ttrl.skills.merge.llm import LLMMerger

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
        raise ConfigError(f"{name!r} gave a {type(made).__name__} without merge(outputs, retrieved=, snapshot=).")
    return made


def titles(ops: SkillOps) -> tuple[str, ...]:
    """A title for each new skill; empty where there is none."""
    return (*ops.titles, *[""] * len(ops.generate))[: len(ops.generate)]


def _most_frequent(texts: Sequence[str]) -> str:
    counts = Counter(text for text in texts if text)
    return min(counts, key=lambda text: (-counts[text], len(text), text), default="")


def _useful(retrieved: Sequence[Sequence[str]]) -> tuple[str, ...]:
    counts = Counter(skill_id for given in retrieved for skill_id in set(given))
    least = min(2, len(retrieved))
    return tuple(sorted((name for name in counts if counts[name] >= least), key=lambda name: (-counts[name], name)))
