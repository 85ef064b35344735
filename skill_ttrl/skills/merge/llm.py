"""The merger that asks a language model, for `skills.merger: openai`.

The winners' proposals go out with the skills of the bank that are nearest to them (`proposals`). What comes back is checked
against what was asked: an entry that names a proposal or a skill that was not shown, that is empty, too long or one too many
is refused with its reason, as a whole, and the others stand. A proposal that no entry mentions is left out, which is said.
Counting which skills were useful needs no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from skill_ttrl.errors import EndpointError
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.admit import text_problem
from skill_ttrl.skills.changes import MAX_ID, quote
from skill_ttrl.skills.merge.heuristic import HeuristicMerger
from skill_ttrl.skills.merge.types import Draft, Merged, Rewrite, rewrites_by_base, select_ops
from skill_ttrl.skills.ops import MAX_TITLE, ParsedOutput
from skill_ttrl.skills.querying import TEXT_CHARS, LLMCallStats, LLMQuerier, attribute, fenced
from skill_ttrl.skills.similarity import Similarity, clusters, normalized_tokens
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Message, Skill


class NewSkill(BaseModel):
    """A skill for the bank."""

    model_config = ConfigDict(extra="forbid")
    title: str
    text: str
    support: list[int]


class BetterText(BaseModel):
    """A text that takes the place of a skill's."""

    model_config = ConfigDict(extra="forbid")
    base: str
    text: str
    support: list[int]


class SaidAlready(BaseModel):
    """A skill that says already what proposals say."""

    model_config = ConfigDict(extra="forbid")
    base: str
    support: list[int]


class MergeAnswer(BaseModel):
    """Answer requested from the model."""

    model_config = ConfigDict(extra="forbid")
    new_skills: list[NewSkill]
    rewrites: list[BetterText]
    known: list[SaidAlready]

    @model_validator(mode="before")
    @classmethod
    def _lists_may_be_left_out(cls, answer: Any) -> Any:
        """The schema asks for all three, but a model without structured output leaves out what would be empty."""
        if not isinstance(answer, dict) or not answer.keys() & cls.model_fields.keys():
            return answer
        return {name: [] for name in cls.model_fields} | answer


class LLMMerger:
    """Fuses winners' operations by asking a language model. The requests of one merge go out together.

    Args:
        asking: the model.
        similarity: how alike texts are, to find a proposal's neighbours in the bank; None: by the words in common.
        threshold: least similarity of texts that say the same, for skills from different requests and for the heuristic
            that takes the place of a model that failed.
    """

    def __init__(self, asking: LLMQuerier, *, similarity: Similarity | None = None, threshold: float = 0.95) -> None:
        self.asking = asking
        self.heuristic = HeuristicMerger(similarity=similarity, threshold=threshold)
        for name in ("merge", "merge_request"):  # one that cannot be read is found now
            asking.templates.get(name)

    def merge(
        self,
        outputs: Sequence[ParsedOutput],
        *,
        retrieved: Sequence[Sequence[str]] = (),
        snapshot: Snapshot | None = None,
    ) -> Merged:
        """See `Merger.merge`.

        Raises:
            EndpointError: a request came to nothing, and failures are not to be got over.
            BudgetError: what may be spent is spent; nothing is merged.
        """
        counted = HeuristicMerger().merge(outputs, retrieved=retrieved)
        gone = [each for each in counted.evolved_skills if snapshot is not None and each.base not in snapshot]
        nowhere = {each.base for each in gone}
        found = _Found({each.base: each for each in gone})  # the merge says that they are not in the bank
        asked = [each for each in proposals_of(outputs, counted) if each[0].base not in nowhere]
        parts = parts_of(asked, snapshot, self.heuristic.similarity, found.skipped)
        answers = self.asking.ask([part.question(self.asking.templates) for part in parts], MergeAnswer)
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, EndpointError):
                self._without(part, answer, outputs, snapshot, found)
            else:
                found.asked += LLMCallStats(1)
                _Reading(part, snapshot, found).take(answer)
        drafts = found.drafts if len(parts) < 2 else self._fused(found.drafts)
        return Merged(
            tuple(sorted(drafts, key=lambda draft: (-len(draft.support), len(draft.text), draft.text))),
            counted.useful_retrieval_ids,
            tuple(sorted(found.rewrites.values(), key=lambda rewrite: rewrite.base)),
            tuple(found.skipped),
            found.asked,
        )

    def _without(
        self,
        part: Part,
        error: EndpointError,
        outputs: Sequence[ParsedOutput],
        snapshot: Snapshot | None,
        found: _Found,
    ) -> None:
        """A part for which no usable answer came."""
        found.asked += self.asking.failure(error)
        if self.asking.on_failure == "heuristic":
            merged = self.heuristic.merge([_only(output, part) for output in outputs], snapshot=snapshot)
            found.skipped += merged.skipped
            found.drafts += merged.new_skills
            found.rewrites |= {each.base: each for each in merged.evolved_skills}
        else:
            found.skipped += [f"{proposal}: the language model gave no usable answer" for proposal in part.proposals]

    def _fused(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Different requests may have led to the same skill."""
        found = clusters([draft.text for draft in drafts], self.heuristic.similarity, self.heuristic.threshold)
        return [
            Draft(
                each.text,
                next((drafts[place].title for place in each.members if drafts[place].text == each.text), ""),
                tuple(sorted({place for member in each.members for place in drafts[member].support})),
            )
            for each in found
        ]


class _Found:
    """Results of the answers read so far."""

    def __init__(self, rewrites: dict[str, Rewrite]) -> None:
        self.rewrites = rewrites
        self.drafts: list[Draft] = []
        self.skipped: list[str] = []
        self.asked = LLMCallStats()


class _Reading:
    """Takes one answer, entry by entry: each is used as a whole or refused with its reason."""

    def __init__(self, part: Part, snapshot: Snapshot | None, found: _Found) -> None:
        self.part, self.snapshot, self.found = part, snapshot, found
        self.made = 0
        self.mentioned: set[int] = set()

    def take(self, answer: MergeAnswer) -> None:
        """The answer of this part."""
        skipped = self.found.skipped
        for new in answer.new_skills:
            skipped += _refused("new skill", new.text, self._support(new.support) or self._new(new))
        for better in answer.rewrites:
            skipped += _refused("text for", better.base, self._support(better.support) or self._rewrite(better))
        for known in answer.known:
            skipped += _refused("reference to", known.base, self._support(known.support) or self._known(known))
        for number, proposal in enumerate(self.part.proposals, 1):
            if number not in self.mentioned:
                skipped.append(f"{proposal}: the language model left it out")

    def _support(self, numbers: Sequence[int]) -> str | None:
        """Return the problem with an entry's support, or None; mark its valid proposals as mentioned."""
        count = len(self.part.proposals)
        beyond = [number for number in numbers if not 1 <= number <= count]
        self.mentioned |= {*numbers}.difference(beyond)
        if beyond:
            return f"it names the proposal {quote(beyond[0])} of {count}"
        return None if numbers else "it names no proposal"

    def _new(self, entry: NewSkill) -> str | None:
        problem = text_problem(entry.text, TEXT_CHARS)
        if problem is None and self.made == self.part.most_new:
            problem = f"it is one more than the {self.made} that were proposed"
        if problem is None:
            self.made += 1
            title = " ".join(entry.title.split())[:MAX_TITLE]
            self.found.drafts.append(Draft(entry.text.strip(), title, self._places(entry.support)))
        return problem

    def _rewrite(self, entry: BetterText) -> str | None:
        base = self._base(entry.base)
        if base is None:
            return self._unknown(entry.base)
        if base in self.found.rewrites:
            return "there is another text for it"
        skill = self._skill(base)
        problem = text_problem(entry.text, TEXT_CHARS)
        if problem is None and skill is not None and not self.part.shows_whole(skill):
            problem = "the language model was not shown its whole text"
        if problem is None:
            self.found.rewrites[base] = Rewrite(base, entry.text.strip(), self._places(entry.support))
        return problem

    def _known(self, entry: SaidAlready) -> str | None:
        """A draft in the skill's own words: the merge credits the skill with it."""
        base = self._base(entry.base)
        skill = None if base is None else self._skill(base)
        if skill is None:
            return self._unknown(entry.base)
        self.found.drafts.append(Draft(skill.text, "", self._places(entry.support)))
        return None

    def _base(self, written: str) -> str | None:
        return self.part.ids.get(written.strip().removeprefix("#"))

    def _skill(self, base: str) -> Skill | None:
        return None if self.snapshot is None else self.snapshot.get(base)

    def _unknown(self, written: str) -> str:
        there = self._skill(written.strip().removeprefix("#")) is not None
        return "the language model was not shown it" if there else "it is not in the bank"

    def _places(self, support: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({place for number in support for place in self.part.proposals[number - 1].places}))


def _refused(what: str, which: str, problem: str | None) -> list[str]:
    return [f"the language model's {what} {quote(which)}: {problem}"] if problem else []


def _only(output: ParsedOutput, part: Part) -> ParsedOutput:
    """The output with those of its operations that are in this part."""
    new = {normalized_tokens(each.text) for each in part.proposals if each.base is None}
    bases = {each.base for each in part.proposals}
    mine = select_ops(output.skill_ops, lambda text: normalized_tokens(text) in new, lambda each: each.base in bases)
    return replace(output, skill_ops=mine)


REQUEST_CHARS = 24_000
"""Most characters of proposals, and of the skills that they rewrite, in one request: about 6,000 tokens."""
MAX_REQUESTS = 4
"""Most requests for one update; proposals that do not fit are left out, the best supported last."""
MAX_WORDINGS = 8
"""Most different rewrites of one skill that are shown, the most frequent first."""
MAX_NEIGHBOURS = 12
"""Most skills of the bank in one request, in addition to those that are rewritten."""
NEIGHBOUR_CHARS = 1000
"""Most characters of each of them."""
NEAREST = 3
"""Skills of the bank that are looked up for each proposal."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A text that winners wrote; wordings that say the same are one."""

    text: str
    title: str
    base: str | None
    """The skill that it is to replace; None for a new one."""
    places: tuple[int, ...]
    """Positions of the outputs that wrote it."""

    def __str__(self) -> str:
        return f"new skill {quote(self.text)}" if self.base is None else f"evolve of {quote(self.base)}"


@dataclass(frozen=True)
class Part:
    """One request: proposals, numbered from 1, and the skills that are shown with them."""

    proposals: tuple[Proposal, ...]
    skills: tuple[Skill, ...] = ()
    ids: dict[str, str] = field(default_factory=dict)
    """Skills that an answer may name, by the ways in which their ids may be written."""

    @property
    def most_new(self) -> int:
        """Most new skills that an answer may hold: those that were proposed."""
        return sum(each.base is None for each in self.proposals)

    def shows_whole(self, skill: Skill) -> bool:
        """True if the request holds the whole text of a skill. A skill that is cut must not be rewritten."""
        return len(skill.text) <= self._shown(skill)

    def _shown(self, skill: Skill) -> int:
        """Most characters of a skill's text."""
        return TEXT_CHARS if any(each.base == skill.id for each in self.proposals) else NEIGHBOUR_CHARS

    def question(self, templates: Templates) -> tuple[Message, ...]:
        """The request as a conversation."""
        rules = {"most": str(self.most_new), "title_chars": str(MAX_TITLE), "text_chars": str(TEXT_CHARS)}
        proposals = [
            fenced("generate", each.text, n=number, winners=len(each.places), title=each.title)
            if each.base is None
            else fenced("evolve", each.text, n=number, winners=len(each.places), base=each.base)
            for number, each in enumerate(self.proposals, 1)
        ]
        skills = [
            fenced("skill", each.text, self._shown(each), id=each.id, title=each.title[:MAX_TITLE])
            for each in self.skills
        ]
        asked = templates.render("merge_request", skills="\n".join(skills) or "none", proposals="\n".join(proposals))
        return Message("system", templates.render("merge", **rules)), Message("user", asked)


def proposals_of(outputs: Sequence[ParsedOutput], counted: Merged) -> list[list[Proposal]]:
    """Group the winners' proposals, independently of the order of outputs: new skills, then the rewrites of each skill together.

    Args:
        outputs: parsed outputs of the winners.
        counted: the same outputs, merged by words alone.
    """
    found = [[Proposal(draft.text, draft.title, None, draft.support)] for draft in counted.new_skills]
    for base, written in rewrites_by_base(outputs).items():
        same = clusters([text for _, text in written])
        found.append(
            [Proposal(each.text, "", base, tuple(written[member][0] for member in each.members)) for each in same]
        )
    return found


def parts_of(
    proposals: Iterable[Sequence[Proposal]],
    snapshot: Snapshot | None,
    similarity: Similarity | None,
    skipped: list[str],
) -> list[Part]:
    """Requests for all proposals; what is cut or left out is noted in `skipped`. Rewrites of one skill stay together."""
    filled: list[list[Proposal]] = []
    room = 0
    for together in proposals:
        taken, size = _that_fit(together, snapshot, skipped)
        if not taken:
            continue
        if not filled or size > room:
            if len(filled) == MAX_REQUESTS:
                skipped += [f"{each}: it did not fit into {MAX_REQUESTS} requests" for each in taken]
                continue
            filled.append([])
            room = REQUEST_CHARS
        filled[-1] += taken
        room -= size
    return [_part(group, snapshot, similarity) for group in filled]


def _that_fit(
    together: Sequence[Proposal], snapshot: Snapshot | None, skipped: list[str]
) -> tuple[list[Proposal], int]:
    """Those of a skill's rewrites (or the one new skill) that a request holds, and their size in characters."""
    base = together[0].base
    skill = None if base is None or snapshot is None else snapshot.get(base)
    size = 0 if skill is None else len(skill.text)
    if base is not None and (size > TEXT_CHARS or len(base) > MAX_ID):
        skipped.append(
            f"evolve of {quote(base)}: it is longer than a language model is shown ({TEXT_CHARS} characters)"
        )
        return [], 0
    taken: list[Proposal] = []
    for each in together:
        length = min(len(each.text), TEXT_CHARS)
        if len(taken) == MAX_WORDINGS or size + length > REQUEST_CHARS:
            skipped.append(f"{each}: there are more rewrites of it than a language model is shown")
            continue
        if len(each.text) > TEXT_CHARS:
            skipped.append(f"{each}: the language model was shown {TEXT_CHARS} of its {len(each.text)} characters")
        taken.append(each)
        size += length
    return taken, size


def _part(proposals: Sequence[Proposal], snapshot: Snapshot | None, similarity: Similarity | None) -> Part:
    named = list(dict.fromkeys(each.base for each in proposals if each.base is not None))
    skills: list[Skill] = []
    if snapshot is not None:
        near = nearest(proposals, snapshot, similarity)
        skills = [snapshot.skills[base] for base in named] + [skill for skill in near if skill.id not in named]
        named = [skill.id for skill in skills]
    return Part(
        tuple(proposals), tuple(skills), {written: name for name in named for written in (attribute(name), name)}
    )


def nearest(proposals: Iterable[Proposal], snapshot: Snapshot, similarity: Similarity | None) -> list[Skill]:
    """Skills of the bank most like the proposals: the nearest to each first, ties by id, `MAX_NEIGHBOURS` at most."""
    texts, skills = [each.text for each in proposals], list(snapshot)
    if not skills:
        return []
    rows = _overlaps(texts, skills) if similarity is None else similarity(texts, [skill.text for skill in skills])
    ranked = [
        [place for near, place in sorted((-value, place) for place, value in enumerate(row)) if near < 0]
        for row in rows
    ]
    in_turn = dict.fromkeys(order[turn] for turn in range(NEAREST) for order in ranked if turn < len(order))
    return [skills[place] for place in list(in_turn)[:MAX_NEIGHBOURS]]


def _overlaps(texts: Sequence[str], skills: Sequence[Skill]) -> Iterator[list[float]]:
    """Share of words in common (Jaccard index), for each text with each skill."""
    words = [set(normalized_tokens(f"{skill.title} {skill.text}")) for skill in skills]
    for text in texts:
        own = set(normalized_tokens(text))
        yield [len(own & other) / len(own | other) for other in words]
