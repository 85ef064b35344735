"""Mergers: the winners' skill operations become one proposal for the bank.

`heuristic` counts; `openai` asks a language model; a custom one is named `module:attribute` and is called with `similarity` and
`threshold`. `make_merger` makes the one that a config names, `SkillMerger` one without a config.

The language model is shown the winners' proposals with the skills of the bank that are nearest to them (`proposals_of`). Its answer
is checked against what it was shown: an entry that names a proposal or a skill that was not shown, that is empty, too long or one too
many is refused with its reason, as a whole, and the others stand. A proposal that no entry mentions is left out, with a note.
Counting which skills were useful needs no model.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from pydantic import BaseModel

from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.registry import Registry, naming, require_methods
from skill_ttrl.skills.admit import text_problem
from skill_ttrl.skills.changes import Snapshot, quote
from skill_ttrl.skills.ops import MAX_TITLE, ParsedOutput
from skill_ttrl.skills.querying import (
    OPENAI,
    TEXT_CHARS,
    ListsAnswer,
    LLMCallStats,
    LLMEndpoints,
    LLMQuerier,
    OnFailure,
    asking_model,
    attribute,
    fenced,
)
from skill_ttrl.skills.similarity import Similarity, clusters, consensus_text, normalized_tokens, sentences
from skill_ttrl.types import Message, Skill, SkillOps


@dataclass(frozen=True, slots=True)
class Draft:
    """A skill that winners wrote, or a better text for one of the bank."""

    text: str
    title: str = ""
    support: tuple[int, ...] = ()
    """Positions of the outputs that wrote it, or whose words are in it."""
    base: str = ""
    """Id of the skill that it is to replace; empty for a new one."""

    def __str__(self) -> str:
        return f"evolve of {quote(self.base)}" if self.base else f"new skill {quote(self.text)}"


@dataclass(frozen=True, slots=True)
class Merged:
    """The winners' operations as one."""

    new_skills: tuple[Draft, ...] = ()
    """Best supported first."""
    useful_retrieval_ids: tuple[str, ...] = ()
    """Skills that more than one winner was given (or the only winner), most used first."""
    evolved_skills: tuple[Draft, ...] = ()
    """At most one for each base."""
    skipped: tuple[str, ...] = ()
    """Items left out, each with its reason."""
    asked: LLMCallStats = field(default_factory=LLMCallStats)


RetrievedIds = Sequence[Sequence[str]]
"""For each output the ids of the skills that it was given; may be left out."""


class Merger(Protocol):
    """Fuses winners' operations. A language model can do it too."""

    def merge(
        self, outputs: Sequence[ParsedOutput], *, retrieved: RetrievedIds = (), snapshot: Snapshot | None = None
    ) -> Merged:
        """Fuse.

        Args:
            outputs: what the winners wrote.
            retrieved: the skills that they were given.
            snapshot: the bank they saw, where the texts of the bases are needed.
        """
        ...


def titles(ops: SkillOps) -> tuple[str, ...]:
    """A title for each new skill; empty where there is none."""
    return (*ops.titles, *[""] * len(ops.generate))[: len(ops.generate)]


def rewrites_by_base(outputs: Sequence[ParsedOutput]) -> dict[str, list[tuple[int, str]]]:
    """For each rewritten skill, in the order of ids, who rewrote it and how: the last text of each output."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for place, output in enumerate(outputs):
        for base, text in {each.base: each.text for each in output.skill_ops.evolve}.items():
            found[base].append((place, text))
    return dict(sorted(found.items()))


TROUBLE = "A language model that merges gave no usable answer"
"""Begins the warning of it."""


@dataclass(frozen=True, slots=True)
class MergeReport(LLMCallStats):
    """Counts of a merge, and of the requests to language models for it."""

    rollouts: int = 0
    winners: int = 0
    generated: int = 0
    """Skill texts that winners wrote."""
    extracted: int = 0
    """Skill texts that were found in winners' solutions."""
    fused: int = 0
    """Texts of both kinds that said the same as another."""
    added: int = 0
    credited: int = 0
    """Skills of the bank whose use was counted; those that were replaced too are among them."""
    evolved: int = 0
    skipped: tuple[str, ...] = ()
    """Items left out, each with its reason."""

    def counts(self) -> dict[str, int]:
        """Return all counts by name; those of language models only if there were requests."""
        asked = ("requests", "failed", "fallback")
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("error", *asked)}
        found["skipped"] = len(self.skipped)
        return found | {name: getattr(self, name) for name in asked if self.requests}

    def trouble(self) -> str | None:
        """Describe the failures of language models in a sentence; None if there were none."""
        if not self.failed and not self.fallback:
            return None
        done = ("its part of the update is left out", "the heuristic does its part")[bool(self.fallback)]
        return f"{TROUBLE} ({self.failed + self.fallback} of {self.requests} requests): {done}. {self.error}"

    def __add__(self, other: MergeReport) -> MergeReport:
        """Counts of both; the error of the first that has one."""
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        return MergeReport(**{**sums, "error": self.error or other.error})


class HeuristicMerger:
    """Fuses by counting: texts that say the same are one, competing rewrites of a skill are voted on (`consensus_text`).

    Args:
        similarity: compares texts whose words differ (`embedding_similarity`); None: only texts that differ in nothing but case,
            punctuation and fillers are fused.
        threshold: least similarity of texts that are fused.
    """

    def __init__(self, *, similarity: Similarity | None = None, threshold: float = 0.95) -> None:
        self.similarity = similarity
        self.threshold = threshold

    def merge(
        self, outputs: Sequence[ParsedOutput], *, retrieved: RetrievedIds = (), snapshot: Snapshot | None = None
    ) -> Merged:
        """Fuse texts that say the same, and vote on rewrites. The texts of rewritten skills come from the snapshot, where there is one."""
        written = [
            (place, text, title)
            for place, output in enumerate(outputs)
            for text, title in zip(output.skill_ops.generate, titles(output.skill_ops), strict=True)
        ]
        drafts = tuple(
            Draft(
                cluster.text,
                _most_frequent([written[member][2] for member in cluster.members]),
                tuple(sorted({written[member][0] for member in cluster.members})),
            )
            for cluster in clusters([text for _, text, _ in written], self.similarity, self.threshold)
        )
        rewrites, skipped = list[Draft](), list[str]()  # one for each skill; skills that stay as they are
        for base, texts in rewrites_by_base(outputs).items():
            skill = snapshot.get(base) if snapshot is not None else None
            known = skill.text if skill is not None else None
            best = consensus_text([text for _, text in texts], self.similarity, self.threshold, base=known)
            if best.members:
                rewrites.append(Draft(best.text, "", tuple(texts[member][0] for member in best.members), base))
            else:
                skipped.append(
                    f"evolve of {quote(base)}: its {len(texts)} rewrites differ, and none says more than the skill does"
                )
        return Merged(drafts, useful_ids(retrieved), tuple(rewrites), tuple(skipped))


def _most_frequent(texts: Sequence[str]) -> str:
    counts = Counter(text for text in texts if text)
    return min(counts, key=lambda text: (-counts[text], len(text), text), default="")


def useful_ids(retrieved: RetrievedIds) -> tuple[str, ...]:
    """Ids that stand in more than one list (or in the only list), most frequent first."""
    counts = Counter(skill_id for given in retrieved for skill_id in set(given))
    least = min(2, len(retrieved))
    return tuple(sorted((name for name in counts if counts[name] >= least), key=lambda name: (-counts[name], name)))


MIN_WINNERS = 2
MOST = 0.6
"""A technique is in more than this share of the winners' solutions."""
RARE = 0.25
"""And in at most this share of the losers'."""
MIN_WORDS = 3
"""Words (not numbers or signs) that it has at least."""
MAX_SENTENCES = 2
MAX_SOLUTIONS = 64
MAX_CHARS = 6000
"""Only so many solutions, and so much of each, is read: the work is bounded."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ANSWERS = re.compile(r"<answer>[^<]*(?:</answer>)?|\\boxed\{[^{}]*\}|</?[a-z_]{1,20}>", re.IGNORECASE)
_SET_PHRASES = re.compile(
    r"\banswer\b|\bstep by step\b|\blet'?s?\b (?:us |me )?(?:think|solve|see|start|begin)|\bwe (?:are|were) (?:given|asked)\b"
    r"|\bin conclusion\b|\bthe (?:result|problem|question|solution)\b|\bi (?:will|need|have)\b|\bfinally\b",
    re.IGNORECASE,
)


def technique(problem: str, winners: Sequence[str], losers: Sequence[str]) -> str | None:
    """Extract the sentences that the winners' solutions share; None if there are none.

    Args:
        problem: text of the task; sentences that only repeat it are no technique.
        winners: solutions that won, at least two.
        losers: solutions that lost; may be empty, and then nothing counts as frequent among them.
    """
    if len(winners) < MIN_WINNERS:
        return None
    given = set(normalized_tokens(_NUMBER.sub("n", problem)))
    won, lost = (
        [{normalized_tokens(part): part for part in sentences(_readable(text))} for text in texts[:MAX_SOLUTIONS]]
        for texts in (winners, losers)
    )
    inside, outside = (Counter(key for parts in solutions for key in parts) for solutions in (won, lost))
    good: dict[tuple[str, ...], float] = {}
    for key, count in inside.items():
        high, low = count / len(won), outside[key] / max(len(lost), 1)
        if count >= MIN_WINNERS and high > MOST and low <= RARE and _says_something(key, given):
            good[key] = high - low
    best = sorted(good, key=lambda key: (-good[key], -len(key), key))[:MAX_SENTENCES]
    if not best:
        return None
    wordings = {key: min(parts[key] for parts in won if key in parts) for key in best}
    speaker = next(list(parts) for parts in won if best[0] in parts)
    order = sorted(best, key=lambda key: speaker.index(key) if key in speaker else len(speaker))
    return " ".join(wordings[key].rstrip(":,;") for key in order)


def _says_something(key: tuple[str, ...], given: set[str]) -> bool:
    """Enough words, most of them not the problem's, and no set phrase."""
    words = [token for token in key if len(token) > 1 and token.isalpha()]
    new = [word for word in words if word not in given]
    return len(words) >= MIN_WORDS and 2 * len(new) >= len(words) and not _SET_PHRASES.search(" ".join(key))


def _readable(text: str) -> str:
    """A solution without answers and tags, numbers as `n`."""
    return _NUMBER.sub("n", _ANSWERS.sub(" ", text[:MAX_CHARS]))


REQUEST_CHARS = 48_000
"""Most characters of proposals, and of the skills that they rewrite, in the request: about 12,000 tokens. What does not fit is left
out, the best supported last."""
MAX_NEIGHBOURS = 12
"""Most skills of the bank in the request, in addition to those that are rewritten."""
NEAREST = 3
"""Skills of the bank that are looked up for each proposal."""


class NewSkill(BaseModel, extra="forbid"):
    """A skill for the bank."""

    title: str
    text: str
    support: list[int]


class BetterText(BaseModel, extra="forbid"):
    """A text that takes the place of a skill's."""

    base: str
    text: str
    support: list[int]


class SaidAlready(BaseModel, extra="forbid"):
    """A skill that says already what proposals say."""

    base: str
    support: list[int]


class MergeAnswer(ListsAnswer):
    """Answer requested from the model."""

    new_skills: list[NewSkill]
    rewrites: list[BetterText]
    known: list[SaidAlready]


class LLMMerger:
    """Fuses winners' operations by asking a language model, with one request a merge.

    Args:
        asking: the model.
        similarity: how alike texts are, to find a proposal's neighbours in the bank; None: by the words in common.
        threshold: least similarity of texts that say the same, for the heuristic that takes the place of a model that failed.
    """

    def __init__(self, asking: LLMQuerier, *, similarity: Similarity | None = None, threshold: float = 0.95) -> None:
        self.asking = asking
        self.heuristic = HeuristicMerger(similarity=similarity, threshold=threshold)
        for name in ("merge", "merge_request"):  # one that cannot be read is found now
            asking.templates.get(name)

    def merge(
        self, outputs: Sequence[ParsedOutput], *, retrieved: RetrievedIds = (), snapshot: Snapshot | None = None
    ) -> Merged:
        """Fuse by one request to the language model.

        Raises:
            EndpointError: the request came to nothing, and failures are not to be got over.
            BudgetError: what may be spent is spent; nothing is merged.
        """
        useful, skipped = useful_ids(retrieved), list[str]()
        proposals = proposals_of(outputs, snapshot, skipped)
        if not proposals:
            return Merged((), useful, (), tuple(skipped))
        skills: dict[str, Skill | None] = dict.fromkeys(each.base for each in proposals if each.base)
        if snapshot is not None:  # without a bank only the ids are known
            skills = {base: snapshot.skills[base] for base in skills}
            skills |= {each.id: each for each in nearest(proposals, snapshot, self.heuristic.similarity)}
        (answer,) = self.asking.ask([self._question(proposals, skills)], MergeAnswer)
        if not isinstance(answer, EndpointError):
            drafts, rewrites = _read(answer, proposals, skills, skipped)
            drafts.sort(key=lambda draft: (-len(draft.support), len(draft.text), draft.text))
            rewrites.sort(key=lambda rewrite: rewrite.base)
            return Merged(tuple(drafts), useful, tuple(rewrites), tuple(skipped), LLMCallStats(1))
        if self.asking.on_failure == "heuristic":
            counted = self.heuristic.merge(outputs, retrieved=retrieved, snapshot=snapshot)
            return replace(counted, asked=LLMCallStats(1, fallback=1, error=str(answer)))
        skipped += [f"{each}: the language model gave no usable answer" for each in proposals]
        return Merged((), useful, (), tuple(skipped), LLMCallStats(1, failed=1, error=str(answer)))

    def _question(self, proposals: Sequence[Draft], skills: Mapping[str, Skill | None]) -> tuple[Message, ...]:
        templates, most = self.asking.templates, sum(not each.base for each in proposals)
        limits = {"most": str(most), "title_chars": str(MAX_TITLE), "text_chars": str(TEXT_CHARS)}
        proposed = [
            fenced("evolve", each.text, n=number, winners=len(each.support), base=each.base)
            if each.base
            else fenced("generate", each.text, n=number, winners=len(each.support), title=each.title)
            for number, each in enumerate(proposals, 1)
        ]
        shown = [
            fenced("skill", each.text, id=each.id, title=each.title[:MAX_TITLE])
            for each in skills.values()
            if each is not None
        ]
        request = templates.render("merge_request", skills="\n".join(shown) or "none", proposals="\n".join(proposed))
        return Message("system", templates.render("merge", **limits)), Message("user", request)


def _read(
    answer: MergeAnswer, proposals: Sequence[Draft], skills: Mapping[str, Skill | None], skipped: list[str]
) -> tuple[list[Draft], list[Draft]]:
    """The new and rewritten skills in an answer. Each entry is used as a whole, or refused with its reason in `skipped`."""
    ids = {spelled: name for name in skills for spelled in (attribute(name), name)}
    most = sum(not each.base for each in proposals)
    new, known, mentioned = list[Draft](), list[Draft](), set[int]()
    rewrites: dict[str, Draft] = {}
    entries: list[NewSkill | BetterText | SaidAlready] = [*answer.new_skills, *answer.rewrites, *answer.known]
    for entry in entries:
        valid = {number for number in entry.support if 1 <= number <= len(proposals)}
        mentioned |= valid
        places = tuple(sorted({place for number in valid for place in proposals[number - 1].support}))
        name = entry.text if isinstance(entry, NewSkill) else entry.base
        base = "" if isinstance(entry, NewSkill) else ids.get(entry.base.strip().removeprefix("#"), "")
        problem = None if isinstance(entry, SaidAlready) else text_problem(entry.text, TEXT_CHARS)
        if valid != {*entry.support} or not valid:
            problem = f"it must name proposals from 1 to {len(proposals)}, found {entry.support}"
        elif isinstance(entry, NewSkill):
            if problem is None and len(new) == most:
                problem = f"it is one more than the {most} that were proposed"
            elif problem is None:
                new.append(Draft(entry.text.strip(), " ".join(entry.title.split())[:MAX_TITLE], places))
        elif not base:
            problem = "the language model was not shown such a skill"
        elif isinstance(entry, SaidAlready):
            skill = skills[base]  # in the skill's own words: the merge credits it
            known += [] if skill is None else [Draft(skill.text, "", places)]
        elif base in rewrites:
            problem = "there is another text for it"
        elif problem is None:
            rewrites[base] = Draft(entry.text.strip(), "", places, base)
        if problem:
            skipped.append(f"the language model's entry {quote(name)}: {problem}")
    left_out = [each for number, each in enumerate(proposals, 1) if number not in mentioned]
    skipped += [f"{each}: the language model left it out" for each in left_out]
    return [*new, *known], list(rewrites.values())


def proposals_of(outputs: Sequence[ParsedOutput], snapshot: Snapshot | None, skipped: list[str]) -> list[Draft]:
    """The winners' proposals that one request has room for, independently of the order of outputs.

    Args:
        outputs: parsed outputs of the winners.
        snapshot: the bank.
        skipped: takes what is cut or left out.
    """
    found = list(HeuristicMerger().merge(outputs).new_skills)
    known: dict[str, str] = {}
    for base, written in rewrites_by_base(outputs).items():
        skill = None if snapshot is None else snapshot.get(base)
        known[base] = "" if skill is None else skill.text
        if skill is None and snapshot is not None:
            skipped.append(f"evolve of {quote(base)}: it is not in the bank (any more)")
        elif len(known[base]) > TEXT_CHARS:
            skipped.append(
                f"evolve of {quote(base)}: it is longer than a language model is shown ({TEXT_CHARS} characters)"
            )
        else:
            wordings = clusters([text for _, text in written])
            found += [Draft(each.text, "", tuple(written[one][0] for one in each.members), base) for each in wordings]
    shown: list[Draft] = []
    room = REQUEST_CHARS
    for each in found:
        size = min(len(each.text), TEXT_CHARS) + len(known.get(each.base, ""))
        if size > room:
            skipped.append(f"{each}: it did not fit into the request")
            continue
        if len(each.text) > TEXT_CHARS:
            skipped.append(f"{each}: the language model was shown {TEXT_CHARS} of its {len(each.text)} characters")
        shown.append(each)
        room -= size
    return shown


def nearest(proposals: Iterable[Draft], snapshot: Snapshot, similarity: Similarity | None) -> list[Skill]:
    """Skills of the bank most like the proposals: the nearest to each first, ties by id, `MAX_NEIGHBOURS` at most."""
    texts, skills = [each.text for each in proposals], [each for each in snapshot if len(each.text) <= TEXT_CHARS]
    if not skills:
        return []
    if similarity is None:  # the share of words in common (Jaccard index)
        words = [set(normalized_tokens(f"{skill.title} {skill.text}")) for skill in skills]
        own = [set(normalized_tokens(text)) for text in texts]
        rows: Sequence[Sequence[float]] = [[len(a & b) / len(a | b) for b in words] for a in own]
    else:
        rows = similarity(texts, [skill.text for skill in skills])
    ranked = [
        [place for near, place in sorted((-value, place) for place, value in enumerate(row)) if near < 0]
        for row in rows
    ]
    in_turn = dict.fromkeys(order[turn] for turn in range(NEAREST) for order in ranked if turn < len(order))
    return [skills[place] for place in list(in_turn)[:MAX_NEIGHBOURS]]


MERGERS: Registry[Callable[..., Merger]] = Registry("merger")
MERGERS.register("heuristic")(HeuristicMerger)
MERGERS.register(OPENAI)(lambda models, **how: LLMMerger(models.asking("merger"), **how))


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
        ExtensionError: a user's factory raised an error.
        MissingDependencyError: the packages that it needs are not installed.
    """
    factory = MERGERS.get(name)
    first = (models or LLMEndpoints(),) if name == OPENAI else ()
    with naming(f"The merger {name!r}", "when it was made with similarity= and threshold="):
        made = factory(*first, similarity=similarity, threshold=threshold)
    require_methods(made, name, "merge")
    return made


class SkillMerger:
    """Fuses by counting (`HeuristicMerger`), or with `use_api` by asking a language model (`LLMMerger`).

    `use_api` may be set to False and True again on a merger that has a model.

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
        self.use_api = model is not None if use_api is None else use_api
        if self.use_api and model is None:
            raise ConfigError(
                "SkillMerger(use_api=True) needs the name of the language model to ask: "
                'SkillMerger(use_api=True, model="gpt-4o"), and base_url= where it is not OpenAI\'s own.'
            )
        self._heuristic = HeuristicMerger(similarity=similarity, threshold=threshold)
        self._model: Merger = self._heuristic
        if model is not None and self.use_api:
            asking = asking_model(model, api_key=api_key, base_url=base_url, on_failure=on_failure)
            self._model = LLMMerger(asking, similarity=similarity, threshold=threshold)

    def merge(self, outputs: Sequence[ParsedOutput], **given: Any) -> Merged:
        """Fuse by counting or by the language model; the arguments are those of `Merger.merge`.

        Raises:
            EndpointError: the language model gave no usable answer, under `on_failure="stop"`.
        """
        return (self._model if self.use_api else self._heuristic).merge(outputs, **given)
