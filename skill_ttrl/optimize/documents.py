"""The document as text: edits with a status each, the protected block, reading of answers.

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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from skill_ttrl.optimize.types import Edit, Patch
from skill_ttrl.sanitize import OUR_TAGS, replace_surrogates
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import json_content

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
        return skill, {**_report(Edit(""), "error"), "error": problem}
    if isinstance(edit, Mapping):
        edit = Edit.from_dict({**edit, "op": edit.get("op") or ""})
    document, status = _edited(skill, edit.op, (edit.content or "").strip(), edit.target or "")
    return document, _report(edit, status)


def apply_patch(skill: str, patch: Patch | Mapping[str, Any]) -> str:
    """The document after all edits of a patch, in turn."""
    return apply_patch_with_report(skill, patch)[0]


def apply_patch_with_report(skill: str, patch: Patch | Mapping[str, Any]) -> tuple[str, list[EditReport]]:
    """The document after all edits of a patch, in turn, and what became of each."""
    reports: list[EditReport] = []
    for index, edit in enumerate(patch.edits if isinstance(patch, Patch) else patch.get("edits") or [], 1):
        skill, report = apply_edit_with_report(skill, edit)
        reports.append({**report, "index": index})
    return skill, reports


def _report(edit: Edit, status: str) -> EditReport:
    target, content = (edit.target or "")[:PREVIEW_CHARS], (edit.content or "").strip()[:PREVIEW_CHARS]
    return {"op": edit.op, "target": target, "content_preview": content, "status": status}


def _edited(skill: str, op: str, content: str, target: str) -> tuple[str, str]:
    """The document after an operation, and its status."""
    found, appended = bool(target) and target in skill, f"{skill.rstrip()}\n\n{content}\n"
    if op == "append":
        return appended, "applied_append"
    if op == "insert_after":
        if not found:
            return appended, "applied_insert_after_fallback_append"
        line_end = skill.find("\n", skill.index(target) + len(target))
        at = line_end + 1 if line_end >= 0 else len(skill)
        return f"{skill[:at]}\n{content}\n{skill[at:]}", "applied_insert_after"
    if op in ("replace", "delete"):
        if not found:
            return skill, f"skipped_{op}_{'target_not_found' if target else 'missing_target'}"
        return skill.replace(target, content if op == "replace" else "", 1), f"applied_{op}"
    return skill, "skipped_unknown_op"


PROTECTED_STATUS = "skipped_protected_region"
STATED_STATUS = "skipped_already_stated"
_BEFORE_BLOCKS = {
    "applied_append": "applied_append_before_protected_region",
    "applied_insert_after_fallback_append": "applied_insert_after_fallback_before_protected_region",
}
START, END = "<!-- SLOW_UPDATE_START -->", "<!-- SLOW_UPDATE_END -->"
_MARKER = re.compile(f"{START}|{END}")
_BLOCK = re.compile(f"{START}(.*?){END}", re.DOTALL)
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

    A marker without its partner is removed and the text behind it stays in the body. Texts of several blocks are joined, and a blank line
    stands in the body where a block was.
    """
    first, *rest = map(strip_markers, _BLOCK.split(document))
    blocks, pieces = rest[::2], [first, *(piece.lstrip("\n") for piece in rest[1::2])]
    body = "\n\n".join(filter(None, [*(piece.rstrip() for piece in pieces[:-1]), pieces[-1]]))
    guidance = "\n".join(filter(None, (text.strip() for text in blocks)))
    return Sections(strip_markers(body), strip_markers(guidance).strip() if blocks else None)


def with_guidance(document: str, text: str) -> str:
    """The document with this text in its block, which is added where it has none."""
    return replace(split(document), guidance=strip_markers(text).strip()).text()


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


def apply_patch_outside(document: str, patch: Patch) -> tuple[str, list[EditReport]]:
    """Apply the edits of a patch to the body, in order, and report on each.

    An edit whose target stands in the block, or reaches into it, is skipped (`skipped_protected_region`), and so is one that adds nothing
    but lines that are there (`skipped_already_stated`). The block stays as it is.
    """
    sections, reports = split(document), []
    for index, given in enumerate(patch.edits, 1):
        edit, body = replace(given, content=strip_markers(given.content)), sections.body
        if edit.target and edit.target not in body and edit.target in sections.text():
            report = _report(edit, PROTECTED_STATUS)
        elif edit.op in ("append", "insert_after") and {*visible_lines(edit.content)} <= {*visible_lines(body)}:
            report = _report(edit, STATED_STATUS)
        else:
            body, report = apply_edit_with_report(body, edit)
            if sections.guidance is not None:
                report["status"] = _BEFORE_BLOCKS.get(report["status"], report["status"])
            sections = replace(sections, body=strip_markers(body))
        reports.append({**report, "index": index})
    return sections.text(), reports


def read_patch(answer: str | None) -> Patch | None:
    """The patch in an answer; None where there is none."""
    return patch_in(extract_json(unescape_tags(answer or "")) or {})


def patch_in(found: Mapping[str, Any]) -> Patch | None:
    """The patch in an answer that has been read, also where it stands under `patch`; None where there is none."""
    inner = found if "edits" in found else found.get("patch")
    if not isinstance(inner, Mapping) or not isinstance(inner.get("edits"), list):
        return None
    return Patch.from_dict(inner)


def read_text(answer: str | None, key: str) -> str | None:
    """A text in an answer, without markers; None where it is missing, empty or no text."""
    found = (extract_json(answer or "") or {}).get(key)
    if not isinstance(found, str):
        return None
    return strip_markers(replace_surrogates(found)).strip() or None


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
