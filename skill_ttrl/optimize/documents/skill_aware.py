"""Skill-aware reflection (EmbodiSkill): a defect of the document is fixed in its body, a lapse of the agent becomes a note.

Analysts tell the two apart (`skill_aware_error.md`). A note points to a rule that the document has and the agent did not follow; notes
stand in the protected appendix, each once, and a call shortens them where they have become many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skill_ttrl.optimize.documents.regions import APPENDIX, block, strip_markers, with_block
from skill_ttrl.optimize.replies import extract_json
from skill_ttrl.sanitize import replace_surrogates

HEADING = "## Execution notes"
NOTE_CHARS = 400
"""Longest note; a longer one is cut."""


def read_notes(answer: str | None) -> list[str]:
    """Notes in an answer, under `appendix_notes`: texts, or objects with a `note` or a `content`."""
    return notes_in(extract_json(answer or "") or {})


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


def read_consolidated(answer: str | None, notes: Sequence[str]) -> list[str] | None:
    """The shortened notes in an answer; None where they are none, or no fewer than before."""
    found = read_notes(answer)
    return found if 0 < len(found) < len(notes) else None


def _line(note: str) -> str:
    text = " ".join(replace_surrogates(note).split())
    while (cleaned := " ".join(strip_markers(text).split())) != text:
        text = cleaned
    return re.sub(r"^(?:[-*#]+\s+)+", "", text)[:NOTE_CHARS].rstrip()
