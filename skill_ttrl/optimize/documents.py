"""The document as text: edits with a status each, the protected block, forms of proposals, rewrites.

**Edits** are SkillOpt's Update with `skillrl` 1.0.0's results. A target is found as it is written, at its first occurrence; edits are
applied in turn. One that cannot be applied leaves the document as it is and says why. Statuses: `applied_append`, `applied_insert_after`,
`applied_insert_after_fallback_append` (no such target: appended), `applied_replace`, `applied_delete`;
`skipped_replace_missing_target`, `skipped_replace_target_not_found`, the same two of `delete`, `skipped_unknown_op`; `error` (no edit).

**The protected block** is a text between two markers, which the edits of a step cannot touch:

    rules of the body, changed by every step

    <!-- SLOW_UPDATE_START -->
    guidance, rewritten once an epoch
    <!-- SLOW_UPDATE_END -->

A document is taken apart, edits see its body alone, and the block is put behind the new body again. Markers in a text that goes into a
document are removed, so no edit can open or close a block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from skill_ttrl.optimize.types import Edit, Patch, as_text
from skill_ttrl.sanitize import OUR_TAGS, replace_surrogates
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types.thoughts import json_content

_FENCED = re.compile(r"```(?:json)?(.+?)```", re.DOTALL | re.IGNORECASE)
_ESCAPED_TAG = re.compile(rf"&lt;(?=/?(?:{'|'.join(tag for tag in OUR_TAGS if tag != 'rollout')})\b)")
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


PROTECTED_STATUS = "skipped_protected_region"
STATED_STATUS = "skipped_already_stated"
START, END = "<!-- SLOW_UPDATE_START -->", "<!-- SLOW_UPDATE_END -->"
_MARKER = re.compile(f"{START}|{END}")
_BULLET = re.compile(r"^(?:[-*+•]|\d+[.)])\s+")


@dataclass(frozen=True, slots=True)
class Sections:
    """A document taken apart."""

    body: str = ""
    """Everything outside of the block, without markers."""
    guidance: str | None = None
    """Text of the block; None where there is none."""

    def text(self) -> str:
        """The whole document: body, then block. Without a block it is the body as it stands."""
        if self.guidance is None:
            return self.body
        block = "\n".join([START, *filter(None, [self.guidance]), END])
        return "\n\n".join([*filter(None, [self.body.rstrip()]), block]) + "\n"


def split(document: str) -> Sections:
    """Take a document apart.

    A marker without its partner is removed and the text behind it stays in the body. Texts of several blocks are joined.
    """
    pieces, blocks = [""], list[str]()  # pieces of the body, parted by blocks
    inside, start = False, 0
    for found in _MARKER.finditer(document):
        text, start = document[start : found.start()], found.end()
        if inside:
            blocks[-1] += text
            inside = found[0] == START
            continue
        pieces[-1] += text
        if found[0] == START and END in document[start:]:
            inside = True
            blocks.append("")
            pieces.append("")
    pieces[-1] += document[start:]
    guidance = strip_markers("\n".join(filter(None, (text.strip() for text in blocks)))).strip()
    return Sections(_join_pieces(pieces), guidance if blocks else None)


def guidance_of(document: str) -> str:
    """The text of the block; empty where the document has none."""
    return split(document).guidance or ""


def with_guidance(document: str, text: str) -> str:
    """The document with this text in its block, which is added where it has none."""
    return replace(split(document), guidance=strip_markers(text).strip()).text()


def with_body(document: str, body: str) -> str:
    """The document with another body and the same block. A block that the new body brings along is dropped."""
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

    An edit whose target stands in the block, or reaches into it, is skipped (`skipped_protected_region`), and so is one that adds nothing
    but lines that are there (`skipped_already_stated`). The block stays as it is.
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
            if sections.guidance is not None:
                report["status"] = _BEFORE_BLOCKS.get(report["status"], report["status"])
            sections = replace(sections, body=strip_markers(body))
        reports.append({**report, "index": index})
    return sections.text(), reports


_BEFORE_BLOCKS = {
    "applied_append": "applied_append_before_protected_region",
    "applied_insert_after_fallback_append": "applied_insert_after_fallback_before_protected_region",
}


def _join_pieces(pieces: list[str]) -> str:
    """The body: a blank line where a block stood between two pieces."""
    trimmed = []
    for place, piece in enumerate(map(strip_markers, pieces)):
        piece = piece.lstrip("\n") if place else piece
        trimmed.append(piece.rstrip() if place < len(pieces) - 1 else piece)
    return strip_markers("\n\n".join(filter(None, trimmed)))


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
    """A text in an answer, without markers; None where it is missing, empty or no text."""
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

    A document that is written anew replaces the body; the protected block stays.

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


def extract_json(text: str | None) -> dict[str, Any] | None:
    """The JSON object in a text: all of it, else its first fenced block, else from the first `{` to the last `}`.

    None where there is none. The first of these that is JSON decides: where it is a list, there is no object.
    """
    if not isinstance(text, str):
        return None
    text = json_content(text).strip()
    fenced = _FENCED.search(text)
    for candidate in (text, fenced and fenced[1].strip(), text[text.find("{") : text.rfind("}") + 1]):
        if not candidate:
            continue
        try:
            found = parse_json(candidate)
        except ValueError:  # a number of too many digits is a ValueError too
            continue
        return found if isinstance(found, dict) else None
    return None


def unescape_tags(answer: str) -> str:
    """An answer with our tags as an agent writes them: a model copies `&lt;answer>` as the rollouts show it. `rollout` stays escaped."""
    return _ESCAPED_TAG.sub("<", answer)
