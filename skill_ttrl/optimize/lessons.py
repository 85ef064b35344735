"""What an optimization remembers: notes on the steps of an epoch, and what the comparison of two epochs taught.

Notes say which failures were seen and which proposals were rejected, so that they are not proposed again; they are dropped at the end of
an epoch. There the same tasks are rolled out under both documents: the slow update writes guidance into the document from that, and the
meta-skill memory for the optimizer. Rollouts and edits are shown as text of others: escaped, between tags, of bounded length.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from skill_ttrl.optimize.types import Edit, RawPatch, RolloutResult
from skill_ttrl.sanitize import escape, escape_terminal
from skill_ttrl.types import derive_seed

BUFFER_HEADING = "Earlier steps of this epoch"
BUFFER_GUIDE = "Do not propose again what was rejected; attend to the failures that are still there."
PATTERNS = 8
"""Most failure patterns of a step, the most frequent first."""
IDS = 6
"""Most tasks named for a pattern."""
PATTERN_CHARS = 160
EDIT_CHARS = 400
"""Longest text of a rejected proposal."""


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


def describe_step(
    step: int,
    action: str,
    rollouts: int,
    results: Sequence[RolloutResult],
    raw_patches: Sequence[RawPatch],
    rejected: Sequence[Edit] = (),
    scores: tuple[float, float] | None = None,
) -> str:
    """A step as the prompts of later steps describe it.

    Args:
        step: its number.
        action: see `StepRecord.action`.
        rollouts: how many there were.
        results: those of them that are graded.
        raw_patches: the analysts' patches.
        rejected: proposals that the gate rejected.
        scores: of the document before it and of the rejected candidate.
    """
    failed = sum(not result.hard for result in results)
    lines = [f"- Step {step}: {action}, {failed} of {rollouts} rollouts failed"]
    lines += [f"  - {pattern}" for pattern in failure_patterns(results, raw_patches)]
    if rejected:
        shown = "" if scores is None else " (score {:.4f}, before {:.4f})".format(*reversed(scores))
        lines.append(f"  - rejected edits{shown}:")
        lines += [f"    {place}. {_line(_described(edit), EDIT_CHARS)}" for place, edit in enumerate(rejected, 1)]
    return "\n".join(lines)


def _described(edit: Edit) -> str:
    texts = (f"target={json.dumps(edit.target, ensure_ascii=False)}", json.dumps(edit.content, ensure_ascii=False))
    return " ".join([edit.op, *(text for text, given in zip(texts, (edit.target, edit.content), strict=True) if given)])


def _named(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - IDS} more" if len(ids) > IDS else ""
    return ", ".join(_line(each, 40) for each in ids[:IDS]) + more


def _line(text: str, most: int) -> str:
    """A text of others as one line that spells no tag of ours."""
    return clip(escape(escape_terminal(" ".join(text.split()))), most)


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts that later steps read. All of it follows from the journal, so none of it is stored."""

    meta_skill: str = ""
    """Lessons on editing this document; empty in the first two epochs."""
    notes: tuple[str, ...] = ()
    """Descriptions of this epoch's steps."""
    epoch_document: str | None = None
    """The document at the end of the last epoch; None in the first one."""

    def context(self) -> dict[str, str]:
        """Sections of the optimizer's prompts, by heading."""
        return {
            META_SKILL_HEADING: f"{_GUIDE}\n\n{self.meta_skill}" if self.meta_skill else "",
            BUFFER_HEADING: "\n".join([BUFFER_GUIDE, *self.notes]) if self.notes else "",
        }

    def with_note(self, note: str) -> Memory:
        """The same with a further step."""
        return replace(self, notes=(*self.notes, note))

    def after_epoch(self, document: str, lessons: str | None) -> Memory:
        """The memory with which the next epoch begins; None keeps the lessons that are there."""
        return Memory(self.meta_skill if lessons is None else lessons, (), document)


Change = Literal["improved", "regressed", "persistent_fail", "stable_success"]
Item = Mapping[str, Any]
SHOWN_CHARS = 120_000
"""Of all rollouts of a comparison together."""
TASK_CHARS = 200

_HEADINGS: Mapping[Change, str] = {
    "regressed": "Regressed: right before, wrong now",
    "persistent_fail": "Still failing: wrong under both",
    "improved": "Improved: wrong before, right now",
    "stable_success": "Stable: right under both",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """One item under two documents."""

    before: RolloutResult
    after: RolloutResult

    @property
    def change(self) -> Change:
        """How the success of the item changed."""
        if self.before.hard:
            return "stable_success" if self.after.hard else "regressed"
        return "improved" if self.after.hard else "persistent_fail"

    def to_dict(self) -> dict[str, Any]:
        """The pair as JSON, without conversations."""
        sides = {"prev": self.before, "curr": self.after}
        shown = {
            name: {
                "hard": side.hard,
                "soft": side.soft,
                "predicted_answer": side.predicted_answer,
                "fail_reason": side.fail_reason,
            }
            for name, side in sides.items()
        }
        return {"id": self.after.id, "task": _task(self), "category": self.change, **shown}


def sample_order(items: Sequence[Item], seed: int, epoch: int) -> list[Item]:
    """All items in the order in which a comparison at the end of an epoch takes them."""
    order = list(items)
    random.Random(derive_seed(seed, "comparison", str(epoch))).shuffle(order)
    return order


def count_changes(pairs: Sequence[Pair]) -> dict[Change, int]:
    """Pairs by how they changed, all four named."""
    found = Counter(pair.change for pair in pairs)
    return {change: found[change] for change in get_args(Change)}


def show_pairs(pairs: Sequence[Pair]) -> str:
    """The comparison as a section of a prompt: counts, then the rollouts of all pairs but those that went right twice."""
    counts = count_changes(pairs)
    detailed = sum(pair.change != "stable_success" for pair in pairs)
    most = SHOWN_CHARS // max(2 * detailed, 1)
    parts = [", ".join(f"{_HEADINGS[change].split(':')[0].lower()} {counts[change]}" for change in _HEADINGS)]
    for change, heading in _HEADINGS.items():
        group = [pair for pair in pairs if pair.change == change]
        if group:
            parts += [f"### {heading}", *(_shown_pair(pair, most) for pair in group)]
    return "\n\n".join(parts)


def _shown_pair(pair: Pair, most: int) -> str:
    if pair.change == "stable_success":
        return f"- {_task(pair)}"
    if pair.before == pair.after:
        return f"Before and now:\n{show_rollout(pair.after, 2 * most)}"
    return f"Before:\n{show_rollout(pair.before, most)}\nNow:\n{show_rollout(pair.after, most)}"


def _task(pair: Pair) -> str:
    result = pair.after
    text = result.question or result.task_description or str(result.id)
    return clip(escape(escape_terminal(" ".join(text.split()))), TASK_CHARS)


META_SKILL_HEADING = "What earlier epochs taught about editing this document"
_GUIDE = "Follow it where the rollouts leave room; where they clearly say otherwise, follow the rollouts."


NONE_YET = "(none yet: this is the first)"


ROLLOUT_CHARS = 12_000
MESSAGE_CHARS = 800
SHOWN_EDIT_CHARS = 500
"""Longest description of an edit."""
FIELDS = (
    ("Task type", "task_type", 200),
    ("Task", "task_description", 1000),
    ("Question", "question", 1000),
    ("Expected", "reference_text", 2000),
    ("Answer", "predicted_answer", 2000),
    ("Reason of the failure", "fail_reason", 600),
)
"""(label, field of a result, most characters)."""


def show_rollout(result: RolloutResult, most: int = ROLLOUT_CHARS) -> str:
    """One rollout: its task, what was expected and answered, why it failed, and the conversation."""
    lines = [
        f"{label}: {clip(str(text), longest)}" for label, name, longest in FIELDS if (text := getattr(result, name))
    ]
    turns = [_shown_turn(message) for message in result.conversation]
    lines += ["Conversation:", *turns] if turns else []
    name = " ".join(escape(str(result.id)).replace('"', "'").split())
    body = clip(escape(escape_terminal("\n".join(lines))), most)
    return f'<rollout id="{name}" hard="{result.hard}" soft="{result.soft:.2f}">\n{body}\n</rollout>'


def clip(text: str, most: int) -> str:
    """The text, without its middle where it is longer than `most` characters, and how much that is."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[len(text) - half :]}"


def describe_edit(edit: Edit) -> str:
    """One line that says what an edit does, cut where it is long."""
    fields = {
        "target": edit.target and repr(edit.target),
        "content": edit.content and repr(edit.content),
        "support": edit.support_count,
        "source": edit.source_type,
    }
    text = "  ".join(
        [f"op={edit.op}", *(f"{name}={value}" for name, value in fields.items() if value not in ("", None))]
    )
    return text if len(text) <= SHOWN_EDIT_CHARS else f"{text[: SHOWN_EDIT_CHARS - 3].rstrip()}..."


def _shown_turn(message: object) -> str:
    """A message, whatever an environment calls one."""
    if not isinstance(message, dict):
        return clip(str(message), MESSAGE_CHARS)
    return f"[{message.get('role', '?')}] {clip(str(message.get('content', '')), MESSAGE_CHARS)}"
