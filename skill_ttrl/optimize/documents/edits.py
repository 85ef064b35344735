"""The editor: applies edits to a document, exactly, with a status each (SkillOpt's Update, `skillrl` 1.0.0's results).

A target is found as it is written, at its first occurrence. Edits are applied in turn, each to what the ones before it
left. Nothing here raises: an edit that cannot be applied leaves the document as it is and says why in its report.

Statuses: `applied_append`, `applied_insert_after`, `applied_insert_after_fallback_append` (no such target: appended),
`applied_replace`, `applied_delete`; `skipped_replace_missing_target`, `skipped_replace_target_not_found`, the same two of
`delete`, `skipped_unknown_op`; `error` (no edit at all).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.optimize.types import Edit, Patch

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
    report = {"op": edit.op, "target": target[:PREVIEW_CHARS], "content_preview": content[:PREVIEW_CHARS]}
    return document, {**report, "status": status}


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
