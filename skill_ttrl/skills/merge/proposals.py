"""Requests to a language model that merges: the winners' proposals, in bounded parts, and the bank's skills nearest to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from skill_ttrl.prompts.templates import Templates
from skill_ttrl.skills.changes import MAX_ID, quote
from skill_ttrl.skills.merge.types import Merged, rewrites_by_base
from skill_ttrl.skills.ops import MAX_TITLE, ParsedOutput
from skill_ttrl.skills.querying import TEXT_CHARS, attribute, fenced
from skill_ttrl.skills.similarity import Similarity, clusters, normalized_tokens
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Message, Skill

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
