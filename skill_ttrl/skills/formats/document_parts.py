r"""A skill document taken apart: preamble, `##` sections, items of lists, and protected regions. Text in, text out.

    # Rules of the house                        preamble: all that stands before the first `##`

    ## Dates                                    a section
    <!-- skill: {"tier": "mistake"} -->         a mark: fields that differ from what is assumed

    Write them as YYYY-MM-DD.

    <!-- SLOW_UPDATE_START -->
    kept as a whole                             a protected region; they stand behind the sections
    <!-- SLOW_UPDATE_END -->

A heading in a fence is text. A heading in a section's text is written `\## so`. A mark counts only where it is one: what a model has mangled
is text. So every text is a document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal, get_args

from skill_ttrl.errors import SkillBankError
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.skills.changes import TIERS, check_id
from skill_ttrl.storage.jsonl import parse_json

Granularity = Literal["section", "item"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)
Kind = Literal["preamble", "section", "item", "region"]
REGIONS = ("SLOW_UPDATE", "APPENDIX")
"""Protected regions in the order in which they stand; others follow by name."""
MARKED = ("id", "title", "tier", "task_type", "when_to_apply", "text")
"""Fields of a skill that a mark may state."""

_REGION = re.compile(r"<!-- (?P<name>[A-Z][A-Z_]*)_START -->(?P<text>.*?)<!-- (?P=name)_END -->", re.DOTALL)
_MARK = re.compile(r"<!-- skill: (\{.*\}) -->")
_ITEM_MARK = re.compile(rf"\A(.*?) ?{_MARK.pattern}\Z")
_MARKER = re.compile(r"<!-- [A-Z][A-Z_]*_(?:START|END) -->")
_FENCE = re.compile(r"\s*(?:[-*+]\s+|\d+[.)]\s+)?(`{3,}(?=[^`]*\Z)|~{3,})")
_ESCAPED = re.compile(r"\\+## ")


@dataclass(frozen=True)
class Part:
    """One piece of a document."""

    kind: Kind
    title: str
    """The heading of a section, and of the section that an item is in; the name of a region."""
    text: str
    """Without outer empty lines."""
    marked: Mapping[str, str] = field(default_factory=dict)
    """Fields that its mark states."""


def take_apart(document: str, granularity: Granularity = "section") -> list[Part]:
    """The parts of a document, in their order.

    Args:
        document: any text.
        granularity: `item`: of a section that is a list and has no mark, each item is a part.
    """
    text = replace_surrogates(document).replace("\r\n", "\n").replace("\r", "\n")
    regions = [_region(found["name"], found["text"]) for found in _REGION.finditer(text)]
    pieces = [piece.strip("\n") for piece in _REGION.split(text)[::3]]
    blocks = list(_blocks("\n\n".join(filter(None, pieces)).split("\n")))
    parts = []
    for heading, lines in blocks:
        marked, body = _marked(lines)
        if heading is None:
            parts += [Part("preamble", _first_heading(body), body, marked)] if body or "text" in marked else []
        elif granularity == "item" and not marked and (items := _items(body)):
            parts += [replace(item, title=heading) for item in items]
        elif heading or body or marked:
            parts.append(Part("section", heading, body, marked))
    return [*parts, *sorted(regions, key=_region_order)]


def put_together(parts: Iterable[Part]) -> str:
    """The document of these parts: the preamble first, regions last, items in a row under one heading."""
    rows = sorted(parts, key=lambda part: {"preamble": 0, "region": 2}.get(part.kind, 1))
    rows = [row for row in rows if row.kind != "region"] + sorted(
        (row for row in rows if row.kind == "region"), key=_region_order
    )
    blocks = []
    for (kind, title), group in groupby(rows, key=lambda part: (part.kind, part.title)):
        if kind == "item":
            blocks.append("\n".join([f"## {title}", "", *map(_written_item, group)]))
        else:
            blocks += map(_written, group)
    return "\n\n".join(blocks) + "\n" if blocks else ""


def survives(part: Part, granularity: Granularity) -> bool:
    """True if a part is read back from a document as it was written, whatever stands around it."""
    if _MARKER.search(part.title) or _MARKER.search(part.text):
        return False
    around = {"item": Part("item", part.title, "x")}.get(part.kind, Part("section", "x", "x"))
    before, after = ([], [around]) if part.kind == "preamble" else ([around], [around])
    if part.kind == "region":
        before, after = [around], []
    found = take_apart(put_together([*before, part, *after]), granularity)
    return found == [*before, part, *after]


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
    if found.get("tier", TIERS[0]) not in TIERS or not found.get("text", "x").strip():
        return {}
    try:
        check_id(found.get("id", "x"))
    except SkillBankError:
        return {}
    return {name: replace_surrogates(value) for name, value in found.items()}


def _items(body: str) -> list[Part]:
    """The items of a text that is a list and nothing else; else none."""
    items: list[list[str]] = []
    for line in body.split("\n"):
        if line.startswith("- ") and line[2:].strip():
            items.append([line[2:]])
        elif items and (line.startswith("  ") or not line):
            items[-1].append(line[2:])
        else:
            return []
    return [_item("\n".join(lines).strip("\n")) for lines in items]


def _item(text: str) -> Part:
    first, newline, rest = text.partition("\n")
    found = _ITEM_MARK.match(first)
    marked = read_mark(found[2]) if found else {}
    if found is None or not marked:
        return Part("item", "", text)
    return Part("item", "", f"{found[1]}{newline}{rest}", marked)


def _region(name: str, text: str) -> Part:
    marked, body = _marked(text.strip("\n").split("\n"))
    return Part("region", name, body, marked)


def _region_order(part: Part) -> tuple[int, str]:
    return REGIONS.index(part.title) if part.title in REGIONS else len(REGIONS), part.title


def _first_heading(text: str) -> str:
    first = text.partition("\n")[0]
    return first[2:].strip() if first.startswith("# ") else ""


def _written(part: Part) -> str:
    mark = _written_mark(part.marked)
    if part.kind == "region":
        lines = [f"<!-- {part.title}_START -->", *filter(None, [mark, part.text]), f"<!-- {part.title}_END -->"]
        return "\n".join(lines)
    heading = "" if part.kind == "preamble" else f"## {part.title}"
    head = "\n".join(filter(None, [heading, mark]))
    return "\n\n".join(filter(None, [head, _escaped(part.text)]))


def _written_item(part: Part) -> str:
    first, *rest = part.text.split("\n")
    mark = _written_mark(part.marked)
    return "\n".join([" ".join(filter(None, ["-", first, mark])), *(f"  {line}" if line else "" for line in rest)])


def _written_mark(marked: Mapping[str, str]) -> str:
    if not marked:
        return ""
    text = json.dumps(dict(marked), ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
    return f"<!-- skill: {text} -->"


def _escaped(text: str) -> str:
    """A section's text in which no line outside of fences begins a section."""
    lines = _with_fences(text.split("\n"))
    return "\n".join(f"\\{line}" if not fenced and re.match(r"\\*## ", line) else line for line, fenced in lines)
