"""The document as text: edits with a status each, protected blocks, forms of proposals, rewrites and the appendix.

**Edits** are SkillOpt's Update with `skillrl` 1.0.0's results. A target is found as it is written, at its first occurrence; edits are
applied in turn. One that cannot be applied leaves the document as it is and says why. Statuses: `applied_append`, `applied_insert_after`,
`applied_insert_after_fallback_append` (no such target: appended), `applied_replace`, `applied_delete`;
`skipped_replace_missing_target`, `skipped_replace_target_not_found`, the same two of `delete`, `skipped_unknown_op`; `error` (no edit).

**Protected blocks** are texts between two markers, which the edits of a step cannot touch:

    rules of the body, changed by every step

    <!-- SLOW_UPDATE_START -->
    guidance, rewritten once an epoch
    <!-- SLOW_UPDATE_END -->

    <!-- APPENDIX_START -->
    reminders of rules that are in the body (skill-aware reflection, EmbodiSkill)
    <!-- APPENDIX_END -->

A document is taken apart, edits see its body alone, and the blocks, at most one of a kind, are put behind the new body again. Markers in a
text that goes into a document are removed, so no edit can open or close a block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from skill_ttrl.optimize.transcript import extract_json, unescape_tags
from skill_ttrl.optimize.types import Edit, Patch, as_text
from skill_ttrl.sanitize import replace_surrogates

PREVIEW_CHARS = 200
"""Of target and content in a report."""

EditReport = dict[str, Any]
"""`op`, `target`, `content_preview`, `status`; of a patch also `index` from 1, and `error` where the status is that."""


def apply_edit(skill: str, edit: Edit | Mapping[str, Any]) -> str:
    """The document after one edit."""
    return apply_edit_with_report(skill, edit)[0]


def apply_edit_with_report(skill: str, edit: Edit | Mapping[str, Any]) -> tuple[str, EditReport]:
    """The document after one edit, and what became of the edit."""
    if not isinstance(edit, Edit | Mapping):
        problem = f"An edit is an object with op, content and target; found {type(edit).__name__}."
        return skill, {"op": "", "target": "", "content_preview": "", "status": "error", "error": problem}
    if isinstance(edit, Mapping):
        edit = Edit.from_dict({**edit, "op": edit.get("op") or ""})
    content = (edit.content or "").strip()
    target = edit.target or ""
    document, status = _edited(skill, edit.op, content, target)
    return document, _report(edit.op, target, content, status)


def apply_patch(skill: str, patch: Patch | Mapping[str, Any]) -> str:
    """The document after all edits of a patch, in turn."""
    return apply_patch_with_report(skill, patch)[0]


def apply_patch_with_report(skill: str, patch: Patch | Mapping[str, Any]) -> tuple[str, list[EditReport]]:
    """The document after all edits of a patch, in turn, and what became of each."""
    edits = patch.edits if isinstance(patch, Patch) else patch.get("edits") or []
    reports: list[EditReport] = []
    for index, edit in enumerate(edits, 1):
        skill, report = apply_edit_with_report(skill, edit)
        reports.append({**report, "index": index})
    return skill, reports


def _report(op: str, target: str, content: str, status: str) -> EditReport:
    return {"op": op, "target": target[:PREVIEW_CHARS], "content_preview": content[:PREVIEW_CHARS], "status": status}


def _edited(skill: str, op: str, content: str, target: str) -> tuple[str, str]:
    """The document after an operation, and its status."""
    found = bool(target) and target in skill
    if op == "append":
        return _appended(skill, content), "applied_append"
    if op == "insert_after":
        if not found:
            return _appended(skill, content), "applied_insert_after_fallback_append"
        line_end = skill.find("\n", skill.index(target) + len(target))
        at = line_end + 1 if line_end >= 0 else len(skill)
        return f"{skill[:at]}\n{content}\n{skill[at:]}", "applied_insert_after"
    if op in ("replace", "delete"):
        if not found:
            return skill, f"skipped_{op}_{'target_not_found' if target else 'missing_target'}"
        return skill.replace(target, content if op == "replace" else "", 1), f"applied_{op}"
    return skill, "skipped_unknown_op"


def _appended(skill: str, content: str) -> str:
    return f"{skill.rstrip()}\n\n{content}\n"


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


def block(document: str, kind: str) -> str:
    """The text of a block; empty where the document has none."""
    return split(document).blocks.get(kind, "")


def with_block(document: str, kind: str, text: str) -> str:
    """The document with this text in the block of a kind, which is added where it has none."""
    sections = split(document)
    return replace(sections, blocks={**sections.blocks, kind: strip_markers(text).strip()}).text()


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
    sections, reports = split(document), []
    for index, given in enumerate((patch if isinstance(patch, Patch) else Patch.from_dict(patch)).edits, 1):
        edit = replace(given, content=strip_markers(given.content))
        body = sections.body
        if edit.target and edit.target not in body and edit.target in sections.text():
            report = _report(edit.op, edit.target, edit.content.strip(), PROTECTED_STATUS)
        elif edit.op in ("append", "insert_after") and {*visible_lines(edit.content)} <= {*visible_lines(body)}:
            report = _report(edit.op, edit.target, edit.content.strip(), STATED_STATUS)
        else:
            body, report = apply_edit_with_report(body, edit)
            if sections.blocks:
                report["status"] = _BEFORE_BLOCKS.get(report["status"], report["status"])
            sections = replace(sections, body=strip_markers(body))
        reports.append({**report, "index": index})
    return sections.text(), reports


_BEFORE_BLOCKS = {
    "applied_append": "applied_append_before_protected_region",
    "applied_insert_after_fallback_append": "applied_insert_after_fallback_before_protected_region",
}


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


ModeName = Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"]


@dataclass
class Suggestion(Edit):
    """A change of the document in words: `op` is its type, `target` its title, `content` what to do."""

    payload_key: ClassVar[str] = "revise_suggestions"
    motivation: str = ""
    priority_hint: str = ""

    @classmethod
    def from_dict(cls, d: Any) -> Suggestion:
        """Read a suggestion as a model wrote it; a plain text is what to do."""
        given = d if isinstance(d, Mapping) else {"instruction": d}
        names = {
            "op": given.get("type") or "clarify",
            "content": given.get("instruction"),
            "target": given.get("title"),
        }
        found = cls(**asdict(Edit.from_dict({**given, **names})))
        found.motivation, found.priority_hint = as_text(given.get("motivation")), as_text(given.get("priority_hint"))
        return found

    def to_dict(self) -> dict[str, Any]:
        """The suggestion as JSON; what is empty is left out."""
        words = {"motivation": self.motivation, "instruction": self.content, "priority_hint": self.priority_hint}
        return {"type": self.op, "title": self.target, **{k: v for k, v in words.items() if v}, **self.origin()}


@dataclass
class Candidate(Edit):
    """A whole document: `content` is its text, `target` a title."""

    payload_key: ClassVar[str] = "skill_candidates"
    change_summary: list[str] = field(default_factory=list)

    @classmethod
    def from_dict(cls, d: Any) -> Candidate:
        """Read a candidate as a model wrote it; a plain text is the document."""
        given = d if isinstance(d, Mapping) else {"new_skill": d}
        names = {"op": "rewrite", "content": given.get("new_skill"), "target": given.get("title")}
        summary = given.get("change_summary")
        lines = [as_text(line) for line in summary] if isinstance(summary, list) else []
        return cls(**asdict(Edit.from_dict({**given, **names})), change_summary=lines)

    def to_dict(self) -> dict[str, Any]:
        """The candidate as JSON."""
        own = {"title": self.target, "change_summary": list(self.change_summary), "new_skill": self.content}
        return {**own, **self.origin()}


@dataclass(frozen=True, slots=True)
class UpdateMode:
    """A form of proposals and the prompts that ask for it."""

    name: ModeName
    item: type[Edit]
    suffix: str = ""
    """Behind the name of a prompt: `analyst_error` + `_rewrite`."""

    @property
    def key(self) -> str:
        """The list of proposals in an answer and in a patch's file."""
        return self.item.payload_key

    @property
    def ranks(self) -> bool:
        """True if proposals are counted against the edit budget: whole documents are not."""
        return self.item is not Candidate

    def read(self, answer: str | None) -> Patch | None:
        """The patch in an answer; None where there is none."""
        return self.patch_in(extract_json(unescape_tags(answer or "")) or {})

    def patch_in(self, found: Mapping[str, Any]) -> Patch | None:
        """The patch in an answer that has been read, also where it stands under `patch`; None where there is none."""
        inner = found if self.key in found else found.get("patch")
        if not isinstance(inner, Mapping) or not isinstance(inner.get(self.key), list):
            return None
        if self.item is Edit:
            return Patch.from_dict(inner)
        items = [self.item.from_dict(each) for each in inner[self.key]]
        return Patch([item for item in items if item.content.strip()], as_text(inner.get("reasoning")))


MODES: Mapping[ModeName, UpdateMode] = {
    mode.name: mode
    for mode in (
        UpdateMode("patch", Edit),
        UpdateMode("rewrite_from_suggestions", Suggestion, "_rewrite"),
        UpdateMode("full_rewrite_minibatch", Candidate, "_full_rewrite"),
    )
}


def read_text(answer: str | None, key: str) -> str | None:
    """A text in an answer, without markers of blocks; None where it is missing, empty or no text."""
    found = (extract_json(answer or "") or {}).get(key)
    text = strip_markers(replace_surrogates(found)).strip() if isinstance(found, str) else ""
    return text or None


def read_document(answer: str | None) -> str | None:
    """The document that an answer holds as `new_skill`; None where it has none, or an empty one."""
    found = (extract_json(answer or "") or {}).get("new_skill")
    return replace_surrogates(found) if isinstance(found, str) and split(found).body.strip() else None


def updated_document(
    document: str, patch: Patch, mode: UpdateMode, rewrite: Callable[[], str | None]
) -> tuple[str | None, list[dict[str, Any]]]:
    """The document after the chosen proposals, and what became of each; None where no document could be written.

    A document that is written anew replaces the body; protected blocks stay.

    Args:
        document: the present one.
        patch: the chosen proposals.
        mode: their form.
        rewrite: writes the whole document, where the proposals are suggestions.
    """
    if mode.name == "patch":
        return apply_patch_outside(document, patch)
    chosen: Edit | None = None  # of several whole documents, the first one with a body
    if mode.name == "rewrite_from_suggestions":
        text = rewrite()
    else:
        chosen = next((item for item in patch.edits if split(item.content).body.strip()), None)
        text = None if chosen is None else chosen.content
    status = "skipped_no_rewrite" if text is None else "applied_rewrite"
    reports = []
    for index, edit in enumerate(patch.edits, 1):
        said = status if chosen is None or edit is chosen else "skipped_other_candidate"
        reports.append({**_report(edit.op, edit.target, edit.content, said), "index": index})
    return None if text is None else with_body(document, f"{split(text).body.rstrip()}\n"), reports


HEADING = "## Execution notes"
NOTE_CHARS = 400
"""Longest note; a longer one is cut."""


def notes_in(found: Mapping[str, Any]) -> list[str]:
    """Notes of an answer that has been read; what is none is passed over."""
    given = found.get("appendix_notes")
    texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    named = [text.get("note") or text.get("content") if isinstance(text, Mapping) else text for text in texts]
    return distinct(text for text in named if isinstance(text, str))


def distinct(notes: Iterable[str]) -> list[str]:
    """Notes as single lines, each once; case, spaces and a final stop make no difference."""
    found: dict[str, str] = {}
    for note in notes:
        text = _line(note)
        if key := text.rstrip(" .;:,_-").casefold():
            found.setdefault(key, text)
    return list(found.values())


def notes_of(document: str) -> list[str]:
    """The notes in the document's appendix."""
    lines = (line.strip() for line in block(document, APPENDIX).splitlines())
    return [re.sub(r"^[-*]\s+", "", line) for line in lines if line and not line.startswith("#")]


def add_notes(document: str, notes: Sequence[str]) -> str:
    """The document with further notes behind those of its appendix; the same text where they bring nothing new."""
    present = notes_of(document)
    merged = distinct([*present, *notes])
    return document if merged == distinct(present) else set_notes(document, merged)


def set_notes(document: str, notes: Sequence[str]) -> str:
    """The document with these notes as its appendix."""
    return with_block(document, APPENDIX, "\n".join([HEADING, *(f"- {note}" for note in notes)]))


def _line(note: str) -> str:
    text = " ".join(replace_surrogates(note).split())
    while (cleaned := " ".join(strip_markers(text).split())) != text:
        text = cleaned
    return re.sub(r"^(?:[-*#]+\s+)+", "", text)[:NOTE_CHARS].rstrip()
