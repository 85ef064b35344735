"""A skill document as a bank's skills, and a bank as a document: one body of knowledge, two forms.

Each section is a skill, called by its heading; with the granularity `item` each item of a list is one. Ids are made from the heading, or for an
item from its text. So the same section is the same skill however the others change, and one that was edited replaces one skill, which keeps
its statistics. `document_changes` says what an edited document changes in a bank.

A document has a place for id, title, text, tier, type of task and when to apply; statistics, lineage and evidence stay in the bank.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import as_successor, normalize_skill, quote
from skill_ttrl.skills.formats.agentskills import slug
from skill_ttrl.skills.formats.document_parts import Granularity, Part, put_together, survives, take_apart
from skill_ttrl.skills.formats.format import FileFormat
from skill_ttrl.skills.formats.records import SkillFile, origin_of
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Change, Skill, SkillStats, Tier

NAME = "document"
PREAMBLE = "document.preamble"
"""Id of the skill that is a document's preamble; those of protected regions are `document.slow_update` and so on."""
PREAMBLE_TITLE = "Preamble"
TIER: Tier = "general"
"""Tier of a skill whose part states none: a document holds for every task."""
MAX_TEXT_CHARS = 10_000
"""Longest text of one skill that an edited document brings into a bank."""
ALIKE = 0.6
"""Least similarity, in [0, 1], of two texts of which the later is taken for an edit of the earlier."""
_REGION_ID = re.compile(r"document\.([a-z][a-z_]*)")
_FIELDS = ("title", "text", "when_to_apply", "tier", "task_type")


@dataclass(frozen=True)
class DocumentUpdate:
    """The change that brings a bank in line with a document: the arguments of `SkillBank.apply`."""

    changes: tuple[Change, ...]
    origin: str
    """The order of the document's parts; see `Snapshot.origin`."""


def skills_of(document: str, granularity: Granularity = "section", *, source: str = NAME) -> list[Skill]:
    """The skills of a document, in its order; any text is a document."""
    parts = take_apart(document, granularity)
    return [_skill(part, name, source) for part, name in zip(parts, _ids(parts), strict=True)]


def document_of(snapshot: Snapshot, granularity: Granularity = "section") -> str:
    """A version's skills as a document, in the order of the document that they came from; others follow by tier and id.

    What a section cannot say in plain words stands in a mark below its heading: `skills_of` gives the same skills again.
    """
    skills = _ordered(snapshot, granularity)
    parts = [_part(skill, granularity) for skill in skills]
    while True:
        wrong = [place for place, name in enumerate(_ids(parts)) if name != skills[place].id]
        if not wrong:
            return put_together(parts)
        for place in wrong:
            marked = {"id": skills[place].id, **parts[place].marked}
            parts[place] = replace(parts[place], marked=marked)


def document_changes(
    snapshot: Snapshot,
    document: str,
    granularity: Granularity = "section",
    *,
    source: str = "optimize",
    round: int | None = None,
) -> DocumentUpdate:
    """The changes that make a bank say what a document says: `replace` for an edited part, `add`, and `evict`.

    A part of the same id is the same skill. One with a new id is an edit of a skill that the document no longer has, where their texts
    are alike; it takes over its statistics. What did not change keeps its version.

    Args:
        snapshot: the bank; all of it is meant to be in the document (`document_of`).
        document: the document as it is now.
        granularity: as it was for `document_of`.
        source: of the skills that are new or changed.
        round: when, for new skills.

    Raises:
        SkillBankError: a part is longer than a skill may be.
    """
    skills = [normalize_skill(skill) for skill in skills_of(document, granularity, source=source)]
    for skill in skills:
        known = snapshot.get(skill.id)
        if len(skill.text) > MAX_TEXT_CHARS and (known is None or known.text != skill.text):
            raise SkillBankError(
                f"The part {quote(skill.title)} of the document has {len(skill.text):,} characters; a skill has at most "
                f"{MAX_TEXT_CHARS:,}. Divide it by further `##` headings."
            )
    ids = {skill.id for skill in skills}
    gone = [skill for skill in snapshot if skill.id not in ids]
    edits = _edits([skill for skill in skills if skill.id not in snapshot], gone)
    changes = [Change("evict", skill, None) for skill in gone if skill.id not in {old.id for old in edits.values()}]
    for skill in skills:
        old = snapshot.get(skill.id) or edits.get(skill.id)
        if old is None:
            changes.append(Change("add", None, replace(skill, stats=SkillStats(created_step=round or 0))))
        elif any(getattr(old, name) != getattr(skill, name) for name in ("id", *_FIELDS)):
            words = {name: getattr(skill, name) for name in ("id", *_FIELDS, "source")}
            changes.append(Change("replace", old, as_successor(old, replace(old, **words))))
    return DocumentUpdate(tuple(changes), _origin(skills))


def _skill(part: Part, name: str, source: str) -> Skill:
    title = part.title or (PREAMBLE_TITLE if part.kind == "preamble" else "")
    values: dict[str, Any] = {
        "tier": TIER,
        "title": title,
        "text": part.text or title or name,
        **part.marked,
        "id": name,
    }
    return Skill(source=source, **values)


def _ids(parts: Sequence[Part]) -> list[str]:
    """The id of each part: what its mark says, else one made from it; a number behind one that is taken."""
    taken = {part.marked["id"] for part in parts if "id" in part.marked}
    stated: set[str] = set()
    found = []
    for part in parts:
        name = part.marked.get("id", "")
        if not name or name in stated:
            name = _free(_made_id(part), taken)
        else:
            stated.add(name)
        taken.add(name)
        found.append(name)
    return found


def _made_id(part: Part) -> str:
    if part.kind == "preamble":
        return PREAMBLE
    if part.kind == "region":
        return f"document.{part.title.lower()}"
    base = slug(part.title) or "section"
    return f"{base}.{_digest(part.text)}" if part.kind == "item" else base


def _free(base: str, taken: set[str]) -> str:
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _part(skill: Skill, granularity: Granularity) -> Part:
    """The part of a document that a skill is; a mark states what is not seen from it."""
    region = _REGION_ID.fullmatch(skill.id)
    if skill.id == PREAMBLE:
        bare = Part("preamble", "", skill.text)
    elif region:
        bare = Part("region", region[1].upper(), "" if skill.text == region[1].upper() else skill.text)
    elif granularity == "item" and _is_item(skill):
        bare = Part("item", " ".join(skill.title.split()), skill.text)
    else:
        bare = Part("section", " ".join(skill.title.split()), "" if skill.text == skill.title else skill.text)
    for part in _attempts(bare, skill):
        found = take_apart(put_together([part]), granularity)
        if len(found) != 1 or not survives(found[0], granularity):
            continue
        read = _skill(found[0], skill.id, "")
        if found[0].kind == bare.kind and all(getattr(read, name) == getattr(skill, name) for name in _FIELDS):
            return found[0]
    raise SkillBankError(f"The skill {quote(skill.id)} cannot be written into a document.")  # pragma: no cover


def _attempts(part: Part, skill: Skill) -> Iterator[Part]:
    """Ways to write a skill, the plainest first: fields that are not assumed, then its id too, then its text as JSON."""
    assumed = Skill("", "", "", tier=TIER)
    marked = {name: getattr(skill, name) for name in ("tier", "task_type", "when_to_apply")}
    marked = {name: value for name, value in marked.items() if value != getattr(assumed, name)}
    yield replace(part, marked=marked)
    yield replace(part, marked={"title": skill.title, **marked})
    yield replace(part, marked={"id": skill.id, **marked})
    everything = {"id": skill.id, "title": skill.title, **marked, "text": skill.text}
    yield replace(part, title=re.sub("[<>]", "", part.title), text="", marked=everything)


def _is_item(skill: Skill) -> bool:
    base = re.escape(slug(skill.title) or "section")
    return re.fullmatch(rf"{base}\.[0-9a-f]{{8}}(-\d+)?", skill.id) is not None


def _ordered(snapshot: Snapshot, granularity: Granularity) -> list[Skill]:
    content = origin_of(snapshot, NAME, list).get("content", [])
    order = dict.fromkeys(name for name in content if isinstance(name, str) and name in snapshot)
    known = [snapshot.skills[name] for name in order]
    tiers = ("general", "task", "mistake")
    for skill in sorted(snapshot, key=lambda each: (tiers.index(each.tier), each.id)):
        if skill.id in order:
            continue
        alike = [place for place, other in enumerate(known) if other.title == skill.title and _is_item(other)]
        place = alike[-1] + 1 if granularity == "item" and _is_item(skill) and alike else len(known)
        known.insert(place, skill)
    kind = {PREAMBLE: 0}
    return sorted(known, key=lambda each: kind.get(each.id, 2 if _REGION_ID.fullmatch(each.id) else 1))


def _edits(new: Sequence[Skill], gone: Sequence[Skill]) -> dict[str, Skill]:
    """For the id of each new part that is an edit of a skill that is gone, that skill: the most alike pairs first."""
    pairs = []
    for place, skill in enumerate(new):
        for index, old in enumerate(gone):
            ratio = difflib.SequenceMatcher(None, old.text, skill.text, autojunk=False).ratio()
            if ratio >= ALIKE:
                pairs.append((-ratio, skill.title != old.title, place, index))
    found: dict[str, Skill] = {}
    used: set[str] = set()
    for _, _, place, index in sorted(pairs):
        if new[place].id not in found and gone[index].id not in used:
            found[new[place].id] = gone[index]
            used.add(gone[index].id)
    return found


def _origin(skills: Iterable[Skill]) -> str:
    return json.dumps({"format": NAME, "content": [skill.id for skill in skills], "layout": {}})


def _file(text: str, granularity: Granularity) -> SkillFile:
    skills = [normalize_skill(skill) for skill in skills_of(text, granularity, source="import")]
    return SkillFile(skills, _origin(skills))


DOCUMENT = FileFormat(NAME, lambda text, where: _file(text, "section"), document_of)
ITEMS = FileFormat(
    f"{NAME}-items", lambda text, where: _file(text, "item"), lambda snapshot: document_of(snapshot, "item")
)
