"""The merger that asks a language model, for `skills.merger: openai`.

The winners' proposals go out with the skills of the bank that are nearest to them (`proposals_of`). What comes back is checked
against what was asked: an entry that names a proposal or a skill that was not shown, that is empty, too long or one too many
is refused with its reason, as a whole, and the others stand. A proposal that no entry mentions is left out, which is said.
Counting which skills were useful needs no model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict

from skill_ttrl.errors import EndpointError
from skill_ttrl.skills.admit import text_problem
from skill_ttrl.skills.changes import MAX_ID, quote
from skill_ttrl.skills.merge.heuristic import HeuristicMerger
from skill_ttrl.skills.merge.types import Draft, Merged, Rewrite, rewrites_by_base
from skill_ttrl.skills.ops import MAX_TITLE, ParsedOutput
from skill_ttrl.skills.querying import TEXT_CHARS, ListsAnswer, LLMCallStats, LLMQuerier, attribute, fenced
from skill_ttrl.skills.similarity import Similarity, clusters, normalized_tokens
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Message, Skill

REQUEST_CHARS = 48_000
"""Most characters of proposals, and of the skills that they rewrite, in the request: about 12,000 tokens. What does not fit is left
out, the best supported last."""
MAX_WORDINGS = 8
"""Most different rewrites of one skill that are shown, the most frequent first."""
MAX_NEIGHBOURS = 12
"""Most skills of the bank in the request, in addition to those that are rewritten."""
NEAREST = 3
"""Skills of the bank that are looked up for each proposal."""


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


class MergeAnswer(ListsAnswer):
    """Answer requested from the model."""

    new_skills: list[NewSkill]
    rewrites: list[BetterText]
    known: list[SaidAlready]


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
        self,
        outputs: Sequence[ParsedOutput],
        *,
        retrieved: Sequence[Sequence[str]] = (),
        snapshot: Snapshot | None = None,
    ) -> Merged:
        """See `Merger.merge`.

        Raises:
            EndpointError: the request came to nothing, and failures are not to be got over.
            BudgetError: what may be spent is spent; nothing is merged.
        """
        counted = HeuristicMerger().merge(outputs, retrieved=retrieved)
        gone = [each for each in counted.evolved_skills if snapshot is not None and each.base not in snapshot]
        skipped: list[str] = []
        proposals = proposals_of(outputs, counted, {each.base for each in gone}, snapshot, skipped)
        if not proposals:  # the caller reports the skills that are not in the bank
            return Merged((), counted.useful_retrieval_ids, tuple(gone), tuple(skipped))
        skills = in_view(proposals, snapshot, self.heuristic.similarity)
        (answer,) = self.asking.ask([self._question(proposals, skills)], MergeAnswer)
        if not isinstance(answer, EndpointError):
            drafts, rewrites = _read(answer, proposals, skills, snapshot, skipped)
            return Merged(
                tuple(sorted(drafts, key=lambda draft: (-len(draft.support), len(draft.text), draft.text))),
                counted.useful_retrieval_ids,
                tuple(sorted([*gone, *rewrites], key=lambda rewrite: rewrite.base)),
                tuple(skipped),
                LLMCallStats(1),
            )
        asked = self.asking.failure(answer)
        if self.asking.on_failure == "heuristic":
            return replace(self.heuristic.merge(outputs, retrieved=retrieved, snapshot=snapshot), asked=asked)
        skipped += [f"{each}: the language model gave no usable answer" for each in proposals]
        return Merged((), counted.useful_retrieval_ids, tuple(gone), tuple(skipped), asked)

    def _question(self, proposals: Sequence[Proposal], skills: Mapping[str, Skill | None]) -> tuple[Message, ...]:
        templates, most = self.asking.templates, sum(each.base is None for each in proposals)
        limits = {"most": str(most), "title_chars": str(MAX_TITLE), "text_chars": str(TEXT_CHARS)}
        proposed = [
            fenced("generate", each.text, n=number, winners=len(each.places), title=each.title)
            if each.base is None
            else fenced("evolve", each.text, n=number, winners=len(each.places), base=each.base)
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
    answer: MergeAnswer,
    proposals: Sequence[Proposal],
    skills: Mapping[str, Skill | None],
    snapshot: Snapshot | None,
    skipped: list[str],
) -> tuple[list[Draft], list[Rewrite]]:
    """The new and rewritten skills in an answer. Each entry is used as a whole, or refused with its reason in `skipped`."""
    ids = {spelled: name for name in skills for spelled in (attribute(name), name)}
    most = room = sum(each.base is None for each in proposals)
    drafts: list[Draft] = []
    rewrites: dict[str, Rewrite] = {}
    mentioned: set[int] = set()
    entries: list[NewSkill | BetterText | SaidAlready] = [*answer.new_skills, *answer.rewrites, *answer.known]
    for entry in entries:
        valid = {number for number in entry.support if 1 <= number <= len(proposals)}
        mentioned |= valid
        places = tuple(sorted({place for number in valid for place in proposals[number - 1].places}))
        name = entry.text if isinstance(entry, NewSkill) else entry.base
        base = "" if isinstance(entry, NewSkill) else ids.get(entry.base.strip().removeprefix("#"), "")
        skill = skills.get(base)
        problem: str | None = None
        if valid != {*entry.support} or not valid:
            problem = f"it must name proposals from 1 to {len(proposals)}, found {entry.support}"
        elif isinstance(entry, NewSkill):
            problem = text_problem(entry.text, TEXT_CHARS)
            if problem is None and not room:
                problem = f"it is one more than the {most} that were proposed"
            if problem is None:
                room -= 1
                drafts.append(Draft(entry.text.strip(), " ".join(entry.title.split())[:MAX_TITLE], places))
        elif not base:
            problem = "the language model was not shown such a skill"
        elif isinstance(entry, SaidAlready):
            if skill is None:
                problem = "it is not in the bank"
            else:
                drafts.append(Draft(skill.text, "", places))  # in the skill's own words: the merge credits it
        elif base in rewrites:
            problem = "there is another text for it"
        elif skill is not None and len(skill.text) > TEXT_CHARS:
            problem = "the language model was not shown its whole text"
        else:
            problem = text_problem(entry.text, TEXT_CHARS)
            if problem is None:
                rewrites[base] = Rewrite(base, entry.text.strip(), places)
        if problem:
            skipped.append(f"the language model's entry {quote(name)}: {problem}")
    left_out = [each for number, each in enumerate(proposals, 1) if number not in mentioned]
    skipped += [f"{each}: the language model left it out" for each in left_out]
    return drafts, list(rewrites.values())


def proposals_of(
    outputs: Sequence[ParsedOutput],
    counted: Merged,
    gone: Collection[str],
    snapshot: Snapshot | None,
    skipped: list[str],
) -> list[Proposal]:
    """The winners' proposals that one request has room for, independently of the order of outputs.

    Args:
        outputs: parsed outputs of the winners.
        counted: the same outputs, merged by words alone.
        gone: skills that are not in the bank any more.
        snapshot: the bank.
        skipped: takes what is cut or left out.
    """
    found = [Proposal(draft.text, draft.title, None, draft.support) for draft in counted.new_skills]
    for base, written in rewrites_by_base(outputs).items():
        skill = None if snapshot is None else snapshot.get(base)
        if base in gone:
            continue
        if len(base) > MAX_ID or (skill is not None and len(skill.text) > TEXT_CHARS):
            skipped.append(
                f"evolve of {quote(base)}: it is longer than a language model is shown ({TEXT_CHARS} characters)"
            )
            continue
        wordings = [
            Proposal(each.text, "", base, tuple(written[member][0] for member in each.members))
            for each in clusters([text for _, text in written])
        ]
        skipped += [
            f"{each}: there are more rewrites of it than a language model is shown" for each in wordings[MAX_WORDINGS:]
        ]
        found += wordings[:MAX_WORDINGS]
    shown: list[Proposal] = []
    room = REQUEST_CHARS
    for each in found:
        size = min(len(each.text), TEXT_CHARS)
        if each.base is not None and snapshot is not None and all(one.base != each.base for one in shown):
            size += len(snapshot.skills[each.base].text)
        if size > room:
            skipped.append(f"{each}: it did not fit into the request")
            continue
        if len(each.text) > TEXT_CHARS:
            skipped.append(f"{each}: the language model was shown {TEXT_CHARS} of its {len(each.text)} characters")
        shown.append(each)
        room -= size
    return shown


def in_view(
    proposals: Sequence[Proposal], snapshot: Snapshot | None, similarity: Similarity | None
) -> Mapping[str, Skill | None]:
    """The skills that an answer may name: those that are rewritten, then the nearest; without a bank only the ids are known."""
    named = dict.fromkeys(each.base for each in proposals if each.base is not None)
    if snapshot is None:
        return dict(named)
    near = {skill.id: skill for skill in nearest(proposals, snapshot, similarity)}
    return {base: snapshot.skills[base] for base in named} | near


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
