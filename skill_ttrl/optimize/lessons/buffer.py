"""Notes on the steps of an epoch: which failures were seen, and which proposals were rejected. Later analysts and rankings read them.

Without them an optimizer proposes again what the gate has just rejected. The notes are dropped at the end of an epoch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from skill_ttrl.optimize.transcript import clip
from skill_ttrl.optimize.types import Edit, RawPatch, RolloutResult
from skill_ttrl.sanitize import escape, escape_terminal

HEADING = "Earlier steps of this epoch"
PATTERNS = 8
"""Most failure patterns of a step, the most frequent first."""
IDS = 6
"""Most tasks named for a pattern."""
PATTERN_CHARS = 160
EDIT_CHARS = 400
"""Longest text of a rejected proposal."""


@dataclass(frozen=True, slots=True)
class StepNote:
    """A step as the prompts of later steps describe it."""

    step: int
    action: str
    """See `StepRecord.action`."""
    rollouts: int
    failed: int
    patterns: tuple[str, ...] = ()
    """Failures of a kind, one line each."""
    rejected: tuple[str, ...] = ()
    """Proposals that the gate rejected, one line each."""
    scores: tuple[float, float] | None = None
    """Of the document before it and of the rejected candidate."""


def failure_patterns(rollouts: Sequence[RolloutResult], raw_patches: Sequence[RawPatch] = ()) -> tuple[str, ...]:
    """One line for each kind of failure: by the reason before its first colon, and as the analysts named them."""
    groups: dict[str, list[str]] = {}
    for result in rollouts:
        if not result.hard:
            reason = result.fail_reason.split(":")[0].strip() or "no reason given"
            groups.setdefault(reason, []).append(str(result.id))
    frequent = sorted(groups.items(), key=lambda group: -len(group[1]))[:PATTERNS]
    seen = [f"{_line(reason, PATTERN_CHARS)} ({len(ids)}x: {_named(ids)})" for reason, ids in frequent]
    named = [entry for raw in raw_patches for entry in raw.failure_summary]
    texts = [f"{entry.get('failure_type', '')}: {entry.get('description', '')}".strip(": ") for entry in named]
    return (*seen, *(f"analyst: {_line(text, PATTERN_CHARS)}" for text in dict.fromkeys(filter(None, texts))))[
        : 2 * PATTERNS
    ]


def show_notes(notes: Sequence[StepNote]) -> str:
    """The notes as a section of a prompt; empty where there are none."""
    if not notes:
        return ""
    guide = "Do not propose again what was rejected; attend to the failures that are still there."
    return "\n".join([guide, *(line for note in notes for line in _shown(note))])


def describe_rejected(edits: Sequence[Edit]) -> tuple[str, ...]:
    """One line for each proposal."""
    return tuple(_line(_described(edit), EDIT_CHARS) for edit in edits)


def _shown(note: StepNote) -> list[str]:
    lines = [f"- Step {note.step}: {note.action}, {note.failed} of {note.rollouts} rollouts failed"]
    lines += [f"  - {pattern}" for pattern in note.patterns]
    if note.rejected:
        scores = "" if note.scores is None else " (score {:.4f}, before {:.4f})".format(*reversed(note.scores))
        lines += [
            f"  - rejected edits{scores}:",
            *(f"    {place}. {edit}" for place, edit in enumerate(note.rejected, 1)),
        ]
    return lines


def _described(edit: Edit) -> str:
    texts = (f"target={json.dumps(edit.target, ensure_ascii=False)}", json.dumps(edit.content, ensure_ascii=False))
    return " ".join([edit.op, *(text for text, given in zip(texts, (edit.target, edit.content), strict=True) if given)])


def _named(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - IDS} more" if len(ids) > IDS else ""
    return ", ".join(_line(each, 40) for each in ids[:IDS]) + more


def _line(text: str, most: int) -> str:
    """A text of others as one line that spells no tag of ours."""
    return clip(escape(escape_terminal(" ".join(text.split()))), most)
