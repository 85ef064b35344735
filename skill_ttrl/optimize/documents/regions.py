"""Protected blocks of a document: text between two markers, which the edits of a step cannot touch.

    rules of the body, changed by every step

    <!-- SLOW_UPDATE_START -->
    guidance, rewritten once an epoch
    <!-- SLOW_UPDATE_END -->

    <!-- APPENDIX_START -->
    reminders of rules that are in the body
    <!-- APPENDIX_END -->

Protection is by construction: a document is taken apart, edits see its body alone, and the blocks are put behind the new body again.
There is at most one block of a kind. Markers in a text that goes into a document are removed, so no edit can open or close a block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from skill_ttrl.optimize.documents.edits import apply_edit_with_report
from skill_ttrl.optimize.types import Edit, Patch

SLOW_UPDATE = "SLOW_UPDATE"
"""Kind of the block that the slow update writes."""
APPENDIX = "APPENDIX"
"""Kind of the block with the execution notes."""
KINDS = (SLOW_UPDATE, APPENDIX)
"""In the order in which they stand behind the body."""
PROTECTED_STATUS = "skipped_protected_region"
STATED_STATUS = "skipped_already_stated"

_MARKER = re.compile(rf"<!-- ({'|'.join(KINDS)})_(START|END) -->")
_BULLET = re.compile(r"^(?:[-*+•]|\d+[.)])\s+")


@dataclass(frozen=True, slots=True)
class Sections:
    """A document taken apart."""

    body: str = ""
    """Everything outside of the blocks, without markers."""
    blocks: Mapping[str, str] = field(default_factory=dict)
    """Texts of the blocks that the document has, by kind; an empty block is an empty text."""

    def text(self) -> str:
        """The whole document: body, then blocks. Without blocks it is the body as it stands."""
        blocks = [_block(kind, self.blocks[kind]) for kind in KINDS if kind in self.blocks]
        if not blocks:
            return self.body
        return "\n\n".join([*filter(None, [self.body.rstrip()]), *blocks]) + "\n"

    def with_block(self, kind: str, text: str) -> Sections:
        """The same with this block, in place of one of its kind."""
        return replace(self, blocks={**self.blocks, kind: strip_markers(text).strip()})


def split(document: str) -> Sections:
    """Take a document apart.

    A marker without its partner is removed and the text behind it stays in the body. Texts of several blocks of one kind are joined.
    """
    pieces, blocks = [""], dict[str, list[str]]()  # pieces of the body, parted by blocks
    inside: str | None = None
    start = 0
    for found in _MARKER.finditer(document):
        kind, side = found.groups()
        text, start = document[start : found.start()], found.end()
        if inside is None:
            pieces[-1] += text
            if side == "START" and _marker(kind, "END") in document[start:]:
                inside = kind
                blocks.setdefault(kind, []).append("")
                pieces.append("")
        else:
            blocks[inside][-1] += text
            inside = None if (kind, side) == (inside, "END") else inside
    pieces[-1] += document[start:]
    return Sections(_join_pieces(pieces), {kind: _join_texts(texts) for kind, texts in blocks.items()})


def normalize(document: str) -> str:
    """The document with its blocks behind the body, one of a kind. One without markers is returned as it is."""
    return split(document).text()


def block(document: str, kind: str) -> str:
    """The text of a block; empty where the document has none."""
    return split(document).blocks.get(kind, "")


def with_block(document: str, kind: str, text: str) -> str:
    """The document with this text in the block of a kind, which is added where it has none."""
    return split(document).with_block(kind, text).text()


def with_body(document: str, body: str) -> str:
    """The document with another body and the same blocks. Blocks that the new body brings along are dropped."""
    return replace(split(document), body=split(body).body).text()


def strip_markers(text: str) -> str:
    """The text without markers, including those that removing others puts together."""
    while (shorter := _MARKER.sub("", text)) != text:
        text = shorter
    return text


def visible_lines(text: str) -> list[str]:
    """The lines of a text as far as a reader tells them apart: without bullets, and whatever their case, spaces and final stop."""
    lines = (_BULLET.sub("", " ".join(line.split())).rstrip(" .;:,") for line in strip_markers(text).splitlines())
    return [line.casefold() for line in lines if line]


def reads_the_same(document: str, other: str) -> bool:
    """True if `other` tells a reader no more and no less than `document`: its lines are the same, or some of them twice."""
    before, after = visible_lines(document), visible_lines(other)
    return len(after) >= len(before) and list(dict.fromkeys(before)) == list(dict.fromkeys(after))


def apply_patch_outside(document: str, patch: Patch | Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Apply the edits of a patch to the body, in order, and report on each.

    An edit whose target stands in a block, or reaches into one, is skipped (`skipped_protected_region`), and so is one that adds nothing
    but lines that are there (`skipped_already_stated`). Blocks stay as they are.
    """
    sections = split(document)
    reports = []
    for index, edit in enumerate(_edits(patch), 1):
        sections, report = _apply(sections, edit)
        reports.append({**report, "index": index})
    return (sections.text() if sections.blocks else sections.body), reports


def _apply(sections: Sections, edit: Edit) -> tuple[Sections, dict[str, Any]]:
    edit = replace(edit, content=strip_markers(edit.content))
    skipped = ""
    if edit.target and edit.target not in sections.body and edit.target in sections.text():
        skipped = PROTECTED_STATUS
    elif edit.op in ("append", "insert_after") and {*visible_lines(edit.content)} <= {*visible_lines(sections.body)}:
        skipped = STATED_STATUS
    if skipped:
        report = {"op": edit.op, "target": edit.target[:200], "content_preview": edit.content.strip()[:200]}
        return sections, {**report, "status": skipped}
    body, report = apply_edit_with_report(sections.body, edit)
    if sections.blocks:
        report["status"] = _BEFORE_BLOCKS.get(report["status"], report["status"])
    return replace(sections, body=strip_markers(body)), report


_BEFORE_BLOCKS = {
    "applied_append": "applied_append_before_protected_region",
    "applied_insert_after_fallback_append": "applied_insert_after_fallback_before_protected_region",
}


def _edits(patch: Patch | Mapping[str, Any]) -> list[Edit]:
    edits = patch.edits if isinstance(patch, Patch) else patch.get("edits", [])
    return [edit if isinstance(edit, Edit) else Edit.from_dict(edit) for edit in edits or []]


def _block(kind: str, text: str) -> str:
    return "\n".join([_marker(kind, "START"), *filter(None, [text]), _marker(kind, "END")])


def _marker(kind: str, side: str) -> str:
    return f"<!-- {kind}_{side} -->"


def _join_pieces(pieces: list[str]) -> str:
    """The body: a blank line where a block stood between two pieces."""
    trimmed = []
    for place, piece in enumerate(map(strip_markers, pieces)):
        piece = piece.lstrip("\n") if place else piece
        trimmed.append(piece.rstrip() if place < len(pieces) - 1 else piece)
    return strip_markers("\n\n".join(filter(None, trimmed)))


def _join_texts(texts: list[str]) -> str:
    return strip_markers("\n".join(filter(None, (text.strip() for text in texts)))).strip()
