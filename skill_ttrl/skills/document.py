r"""A skill document as a bank's skills, and a bank as a document.

    # Rules of the house                        preamble: all that stands before the first `##`

    ## Dates                                    a section
    <!-- skill: {"tier": "mistake"} -->         a mark: fields that differ from what is assumed

    Write them as YYYY-MM-DD.

    <!-- SLOW_UPDATE_START -->
    kept as a whole                             a protected region; they stand behind the sections
    <!-- SLOW_UPDATE_END -->

Each part is a skill, called by its heading, with an id made from it: the same section is the same skill however the others change, and
one that was edited replaces one skill, which keeps its statistics. `document_changes` says what an edited document changes in a bank.
Statistics, lineage and evidence have no place in a document.

A heading in a fence is text. A heading in a section's text is written `\## so`. A mark counts only where it is one: what a model has mangled
is text. So every text is a document.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from skill_ttrl.errors import SkillBankError
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.skills.changes import TIERS, Snapshot, as_successor, free_names, is_id, normalize_skill, quote
from skill_ttrl.storage.jsonl import parse_json
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
Kind = Literal["preamble", "section", "region"]
REGIONS = ("SLOW_UPDATE", "APPENDIX")
"""Protected regions in the order in which they stand; others follow by name."""
MARKED = ("id", "title", "tier", "task_type", "when_to_apply", "text")
"""Fields of a skill that a mark may state."""

_REGION = re.compile(r"<!-- (?P<name>[A-Z][A-Z_]*)_START -->(?P<text>.*?)<!-- (?P=name)_END -->", re.DOTALL)
_MARK = re.compile(r"<!-- skill: (\{.*\}) -->")
_MARKER = re.compile(r"<!-- [A-Z][A-Z_]*_(?:START|END) -->")
_FENCE = re.compile(r"\s*(?:[-*+]\s+|\d+[.)]\s+)?(`{3,}(?=[^`]*\Z)|~{3,})")
_ESCAPED = re.compile(r"\\+## ")


def slug(text: str) -> str:
    """The letters and digits of a text as a name of at most 64 characters in lower case; empty if it has none."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")[:64].rstrip("-")


def skills_of(document: str, *, source: str = NAME) -> list[Skill]:
    """The skills of a document, in its order; any text is a document."""
    parts = take_apart(document)
    return [_skill(part, name, source) for part, name in zip(parts, _ids(parts), strict=True)]


def document_of(snapshot: Snapshot) -> str:
    """A version's skills as a document, in the order of the document that they came from; others follow by tier and id.

    What a section cannot say in plain words stands in a mark below its heading: `skills_of` gives the same skills again.
    """
    skills = _ordered(snapshot)
    parts = [_part(skill) for skill in skills]
    while True:
        wrong = [place for place, name in enumerate(_ids(parts)) if name != skills[place].id]
        if not wrong:
            return put_together(parts)
        for place in wrong:
            marked = {"id": skills[place].id, **parts[place].marked}
            parts[place] = replace(parts[place], marked=marked)


def document_changes(
    snapshot: Snapshot, document: str, *, source: str = "optimize", round: int | None = None
) -> tuple[tuple[Change, ...], str]:
    """The changes that make a bank say what a document says (`replace` for an edited part, `add`, and `evict`), and its `Snapshot.origin`.

    A part of the same id is the same skill. One with a new id is an edit of a skill that the document no longer has, where their texts
    are alike; it takes over its statistics. What did not change keeps its version.

    Args:
        snapshot: the bank; all of it is meant to be in the document (`document_of`).
        document: the document as it is now.
        source: of the skills that are new or changed.
        round: when, for new skills.

    Raises:
        SkillBankError: a part is longer than a skill may be.
    """
    skills = [normalize_skill(skill) for skill in skills_of(document, source=source)]
    for skill in skills:
        known = snapshot.get(skill.id)
        if len(skill.text) > MAX_TEXT_CHARS and (known is None or known.text != skill.text):
            raise SkillBankError(
                f"The part {quote(skill.title)} of the document has {len(skill.text):,} characters; a skill has at most "
                f"{MAX_TEXT_CHARS:,}. Divide it with further `##` headings."
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
    return tuple(changes), order_as_origin(skills)


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
    found: list[str] = []
    for part in parts:
        name = part.marked.get("id", "")
        if not name or name in found:
            made = {"preamble": PREAMBLE, "region": f"document.{part.title.lower()}"}
            name = made.get(part.kind) or slug(part.title) or "section"
            name = next(free_names(name, "-", taken))
        taken.add(name)
        found.append(name)
    return found


def _part(skill: Skill) -> Part:
    """The part of a document that a skill is; a mark states what is not seen from it."""
    region = _REGION_ID.fullmatch(skill.id)
    if skill.id == PREAMBLE:
        bare = Part("preamble", "", skill.text)
    elif region:
        bare = Part("region", region[1].upper(), "" if skill.text == region[1].upper() else skill.text)
    else:
        bare = Part("section", " ".join(skill.title.split()), "" if skill.text == skill.title else skill.text)
    for part in _attempts(bare, skill):
        found = survivor(part)
        if found is None or found.kind != bare.kind:
            continue
        read = _skill(found, skill.id, "")
        if all(getattr(read, name) == getattr(skill, name) for name in _FIELDS):
            return found
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


def _ordered(snapshot: Snapshot) -> list[Skill]:
    order = {name: place for place, name in enumerate(dict.fromkeys(_order_of(snapshot)))}

    def place_of(skill: Skill) -> tuple[int, int, int, str]:
        kind = 0 if skill.id == PREAMBLE else 2 if _REGION_ID.fullmatch(skill.id) else 1
        return kind, order.get(skill.id, len(order)), TIERS.index(skill.tier), skill.id

    return sorted(snapshot, key=place_of)


def _edits(new: Sequence[Skill], gone: Sequence[Skill]) -> dict[str, Skill]:
    """For the id of each new part that is an edit of a skill that is gone, that skill: the most alike pairs first."""
    pairs = []
    for place, skill in enumerate(new):
        for index, old in enumerate(gone):
            ratio = difflib.SequenceMatcher(None, old.text, skill.text, autojunk=False).ratio()
            if ratio >= ALIKE:
                pairs.append((-ratio, skill.title != old.title, place, index))
    found: dict[str, Skill] = {}
    for _, _, place, index in sorted(pairs):
        if new[place].id not in found and gone[index] not in found.values():
            found[new[place].id] = gone[index]
    return found


def order_as_origin(skills: Iterable[Skill]) -> str:
    """The order of a document's parts, as `Snapshot.origin` holds it."""
    return json.dumps({"format": NAME, "content": [skill.id for skill in skills]})


def _order_of(snapshot: Snapshot) -> list[str]:
    """The ids in the order of the document that a version came from; empty where it came from none."""
    try:
        found = parse_json(snapshot.origin)
    except ValueError:
        return []
    content = found.get("content") if isinstance(found, dict) and found.get("format") == NAME else None
    return [name for name in content if isinstance(name, str)] if isinstance(content, list) else []


# A document taken apart, and put together.


@dataclass(frozen=True)
class Part:
    """One piece of a document."""

    kind: Kind
    title: str
    """The heading of a section; the name of a region."""
    text: str
    """Without outer empty lines."""
    marked: Mapping[str, str] = field(default_factory=dict)
    """Fields that its mark states."""


def take_apart(document: str) -> list[Part]:
    """The parts of a document, which may be any text, in their order."""
    text = replace_surrogates(document).replace("\r\n", "\n").replace("\r", "\n")
    pieces = [piece.strip("\n") for piece in _REGION.split(text)[::3]]
    parts = []
    for heading, lines in _blocks("\n\n".join(filter(None, pieces)).split("\n")):
        marked, body = _marked(lines)
        if heading is None:
            first = body.partition("\n")[0]
            title = first[2:].strip() if first.startswith("# ") else ""
            parts += [Part("preamble", title, body, marked)] if body or "text" in marked else []
        elif heading or body or marked:
            parts.append(Part("section", heading, body, marked))
    for found in _REGION.finditer(text):
        marked, body = _marked(found["text"].strip("\n").split("\n"))
        parts.append(Part("region", found["name"], body, marked))
    return sorted(parts, key=_place)


def put_together(parts: Iterable[Part]) -> str:
    """The document of these parts: the preamble first, regions last."""
    rows = list(map(_written, sorted(parts, key=_place)))
    return "\n\n".join(rows) + "\n" if rows else ""


def survivor(part: Part) -> Part | None:
    """The part as it is read back from a document with others around it; None where it or these are not what they were."""
    around = Part("section", "x", "x")
    before = [] if part.kind == "preamble" else [around]
    after = [] if part.kind == "region" else [around]
    alone = take_apart(put_together([part]))
    if len(alone) != 1 or _MARKER.search(alone[0].title) or _MARKER.search(alone[0].text):
        return None
    whole = [*before, alone[0], *after]
    return alone[0] if take_apart(put_together(whole)) == whole else None


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str | None, list[str]]]:
    """(heading, lines below) of each section; the heading None stands for what is before the first."""
    heading, below = None, list[str]()
    for line, fenced in _with_fences(lines):
        if not fenced and line.startswith("## "):
            yield heading, below
            heading, below = line[3:].strip(), []
        else:
            below.append(line[1:] if not fenced and _ESCAPED.match(line) else line)
    yield heading, below


def _with_fences(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is in a fence or one of its ends."""
    fence = ""
    for line in lines:
        opening = _FENCE.match(line)
        yield line, bool(fence or opening)
        if not fence:
            fence = opening[1] if opening else ""
        elif line.strip().startswith(fence) and {*line.strip()} == {fence[0]}:
            fence = ""


def _marked(lines: Sequence[str]) -> tuple[dict[str, str], str]:
    """The mark at the head of a section's lines, and its text without it."""
    text = "\n".join(lines).strip("\n")
    first, _, rest = text.partition("\n")
    marked = read_mark(found[1]) if (found := _MARK.fullmatch(first)) else {}
    body = rest.strip("\n") if marked else text
    return marked, body if body.strip() else ""


def read_mark(text: str) -> dict[str, str]:
    """The fields that a mark states; none where it is no mark."""
    try:
        found = parse_json(text)
    except ValueError:
        return {}
    if not isinstance(found, dict) or not all(name in MARKED and isinstance(found[name], str) for name in found):
        return {}
    fits = found.get("tier", TIERS[0]) in TIERS and is_id(found.get("id", "x")) and found.get("text", "x").strip()
    return {name: replace_surrogates(value) for name, value in found.items()} if fits else {}


def _place(part: Part) -> tuple[int, int, str]:
    """Sort key: the preamble, the sections in their order, then the regions in theirs."""
    if part.kind != "region":
        return int(part.kind == "section"), 0, ""
    return 2, REGIONS.index(part.title) if part.title in REGIONS else len(REGIONS), part.title


def _written(part: Part) -> str:
    text = json.dumps(dict(part.marked), ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
    mark = f"<!-- skill: {text} -->" if part.marked else ""
    if part.kind == "region":
        lines = [f"<!-- {part.title}_START -->", *filter(None, [mark, part.text]), f"<!-- {part.title}_END -->"]
        return "\n".join(lines)
    heading = "" if part.kind == "preamble" else f"## {part.title}"
    head = "\n".join(filter(None, [heading, mark]))
    return "\n\n".join(filter(None, [head, _escaped(part.text)]))


def _escaped(text: str) -> str:
    """A section's text in which no line outside of fences begins a section."""
    lines = _with_fences(text.split("\n"))
    return "\n".join(f"\\{line}" if not fenced and re.match(r"\\*## ", line) else line for line, fenced in lines)
