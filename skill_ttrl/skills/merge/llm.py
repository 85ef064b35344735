"""The merger that asks a language model, for `skills.merger: openai`.

The winners' proposals go out with the skills of the bank that are nearest to them (`proposals`). What comes back is checked
against what was asked: an entry that names a proposal or a skill that was not shown, that is empty, too long or one too many
is refused with its reason, as a whole, and the others stand. A proposal that no entry mentions is left out, which is said.
Counting which skills were useful needs no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        found = _Found({each.base: each for each in gone})  # the merge reports that they are not in the bank
        asked = [each for each in proposals_of(outputs, counted) if each[0].base not in nowhere]
        parts = parts_of(asked, snapshot, self.heuristic.similarity, found.skipped)
        answers = self.asking.ask([part.question(self.asking.templates) for part in parts], MergeAnswer)
        for part, answer in zip(parts, answers, strict=True):
            if not isinstance(answer, EndpointError):
                found.asked += LLMCallStats(1)
                found.take(part, answer, snapshot)
                continue
            found.asked += self.asking.failure(answer)
            if self.asking.on_failure == "heuristic":
                merged = self.heuristic.merge([_only(output, part) for output in outputs], snapshot=snapshot)
                found.skipped += merged.skipped
                found.drafts += merged.new_skills
                found.rewrites |= {each.base: each for each in merged.evolved_skills}
            else:
                found.skipped += [f"{each}: the language model gave no usable answer" for each in part.proposals]
        drafts = found.drafts if len(parts) < 2 else self._fused(found.drafts)
        return Merged(
            tuple(sorted(drafts, key=lambda draft: (-len(draft.support), len(draft.text), draft.text))),
            counted.useful_retrieval_ids,
            tuple(sorted(found.rewrites.values(), key=lambda rewrite: rewrite.base)),
            tuple(found.skipped),
            found.asked,
        )

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

    def take(self, part: Part, answer: MergeAnswer, snapshot: Snapshot | None) -> None:
        """Read one answer entry by entry: each is used as a whole or refused with its reason."""
        mentioned: set[int] = set()
        room = part.most_new
        entries: list[NewSkill | BetterText | SaidAlready] = [*answer.new_skills, *answer.rewrites, *answer.known]
        for entry in entries:
            valid = {number for number in entry.support if 1 <= number <= len(part.proposals)}
            mentioned |= valid
            places = tuple(sorted({place for number in valid for place in part.proposals[number - 1].places}))
            name = entry.text if isinstance(entry, NewSkill) else entry.base
            if valid != {*entry.support} or not valid:
                problem: str | None = f"it must name proposals from 1 to {len(part.proposals)}, found {entry.support}"
            elif isinstance(entry, NewSkill):
                problem = text_problem(entry.text, TEXT_CHARS)
                if problem is None and not room:
                    problem = f"it is one more than the {part.most_new} that were proposed"
                if problem is None:
                    room -= 1
                    title = " ".join(entry.title.split())[:MAX_TITLE]
                    self.drafts.append(Draft(entry.text.strip(), title, places))
            else:
                problem = self._named(part, entry, places, snapshot)
            if problem:
                self.skipped.append(f"the language model's entry {quote(name)}: {problem}")
        for number, proposal in enumerate(part.proposals, 1):
            if number not in mentioned:
                self.skipped.append(f"{proposal}: the language model left it out")

    def _named(
        self, part: Part, entry: BetterText | SaidAlready, places: tuple[int, ...], snapshot: Snapshot | None
    ) -> str | None:
        """Take an entry that names a skill; the problem if it cannot be used."""
        base = part.ids.get(entry.base.strip().removeprefix("#"))
        skill = None if base is None or snapshot is None else snapshot.get(base)
        if base is None:
            return "the language model was not shown such a skill"
        if isinstance(entry, SaidAlready):
            if skill is None:
                return "it is not in the bank"
            self.drafts.append(Draft(skill.text, "", places))  # in the skill's own words: the merge credits it
            return None
        if base in self.rewrites:
            return "there is another text for it"
        if skill is not None and not part.shows_whole(skill):
            return "the language model was not shown its whole text"
        problem = text_problem(entry.text, TEXT_CHARS)
        if problem is None:
            self.rewrites[base] = Rewrite(base, entry.text.strip(), places)
        return problem


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
        base = together[0].base
        skill = None if base is None or snapshot is None else snapshot.get(base)
        size = 0 if skill is None else len(skill.text)
        if base is not None and (size > TEXT_CHARS or len(base) > MAX_ID):
            skipped.append(
                f"evolve of {quote(base)}: it is longer than a language model is shown ({TEXT_CHARS} characters)"
            )
            continue
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
        if size > room and len(filled) == MAX_REQUESTS:
            skipped += [f"{each}: it did not fit into {MAX_REQUESTS} requests" for each in taken]
            continue
        if size > room or not filled:
            filled.append([])
            room = REQUEST_CHARS
        filled[-1] += taken
        room -= size
    return [_part(group, snapshot, similarity) for group in filled if group]


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
