"""Whole documents written by a model: from chosen suggestions, or by the analysts themselves. Protected blocks are put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from skill_ttrl.optimize.documents.edits import PREVIEW_CHARS
from skill_ttrl.optimize.documents.regions import apply_patch_outside, split, with_body
from skill_ttrl.optimize.documents.update_modes import UpdateMode
from skill_ttrl.optimize.replies import extract_json
from skill_ttrl.optimize.types import Edit, Patch
from skill_ttrl.sanitize import replace_surrogates


def read_document(answer: str | None) -> str | None:
    """The document that an answer holds as `new_skill`; None where it has none, or an empty one."""
    found = (extract_json(answer or "") or {}).get("new_skill")
    return replace_surrogates(found) if isinstance(found, str) and split(found).body.strip() else None


def rewritten(document: str, text: str) -> str:
    """The document with the body of `text`, and its own protected blocks."""
    return with_body(document, f"{split(text).body.rstrip()}\n")


def first_candidate(patch: Patch) -> Edit | None:
    """The first candidate of a patch that has a body; None where none has."""
    return next((item for item in patch.edits if split(item.content).body.strip()), None)


def updated_document(
    document: str, patch: Patch, mode: UpdateMode, rewrite: Callable[[], str | None]
) -> tuple[str | None, list[dict[str, Any]]]:
    """The document after the chosen proposals, and what became of each; None where no document could be written.

    Args:
        document: the present one.
        patch: the chosen proposals.
        mode: their form.
        rewrite: asks for the whole document, where the proposals are suggestions.
    """
    if mode.name == "patch":
        return apply_patch_outside(document, patch)
    chosen = None if mode.name == "rewrite_from_suggestions" else first_candidate(patch)
    text = chosen.content if chosen is not None else rewrite() if mode.name == "rewrite_from_suggestions" else None
    status = "skipped_no_rewrite" if text is None else "applied_rewrite"
    return None if text is None else rewritten(document, text), rewrite_report(patch.edits, status, chosen)


def rewrite_report(edits: Sequence[Edit], status: str, chosen: Edit | None = None) -> list[dict[str, Any]]:
    """One line for each proposal, as the editor reports on edits. Of several whole documents, `chosen` alone was used."""
    return [
        {
            "op": edit.op,
            "target": edit.target[:PREVIEW_CHARS],
            "content_preview": edit.content[:PREVIEW_CHARS],
            "status": status if chosen is None or edit is chosen else "skipped_other_candidate",
            "index": index,
        }
        for index, edit in enumerate(edits, 1)
    ]
