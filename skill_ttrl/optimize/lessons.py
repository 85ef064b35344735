"""Texts in an optimizer's prompts: rollouts, the comparison of two epochs' documents on the same items, and proposed edits.

Rollouts and edits are shown as text of others: escaped, between tags, of bounded length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skill_ttrl.optimize.types import Edit, RolloutResult
from skill_ttrl.sanitize import escape, escape_terminal


def _line(text: str, most: int) -> str:
    """A text of others as one line that spells no tag of ours."""
    return clip(escape(escape_terminal(" ".join(text.split()))), most)


SHOWN_CHARS = 120_000
"""Of all rollouts of a comparison together."""
TASK_CHARS = 200
CHANGES = ("improved", "regressed", "persistent_fail", "stable_success")
_HEADINGS = {
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
    def change(self) -> str:
        """The change of the item's success: one of `CHANGES`."""
        if self.before.hard:
            return "stable_success" if self.after.hard else "regressed"
        return "improved" if self.after.hard else "persistent_fail"

    @property
    def task(self) -> str:
        """The item in one line."""
        return _line(self.after.question or self.after.task_description or str(self.after.id), TASK_CHARS)

    def to_dict(self) -> dict[str, Any]:
        """The pair as JSON, without conversations."""
        names = ("hard", "soft", "predicted_answer", "fail_reason")
        before, after = ({name: getattr(side, name) for name in names} for side in (self.before, self.after))
        return {"id": self.after.id, "task": self.task, "category": self.change, "prev": before, "curr": after}


def count_changes(pairs: Sequence[Pair]) -> dict[str, int]:
    """Pairs by how they changed, all four named."""
    found = Counter(pair.change for pair in pairs)
    return {change: found[change] for change in CHANGES}


def show_pairs(pairs: Sequence[Pair]) -> str:
    """The comparison as a section of a prompt: counts, then the rollouts of all pairs but those that went right twice."""
    counts = count_changes(pairs)
    most = SHOWN_CHARS // max(2 * (len(pairs) - counts["stable_success"]), 1)
    parts = [", ".join(f"{heading.split(':')[0].lower()} {counts[change]}" for change, heading in _HEADINGS.items())]
    for change, heading in _HEADINGS.items():
        if counts[change]:
            shown = [_shown_pair(pair, most) for pair in pairs if pair.change == change]
            parts += [f"### {heading}", *shown]
    return "\n\n".join(parts)


def _shown_pair(pair: Pair, most: int) -> str:
    if pair.change == "stable_success":
        return f"- {pair.task}"
    if pair.before == pair.after:
        return f"Before and now:\n{show_rollout(pair.after, 2 * most)}"
    return f"Before:\n{show_rollout(pair.before, most)}\nNow:\n{show_rollout(pair.after, most)}"


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
    texts = [(label, str(getattr(result, name)), longest) for label, name, longest in FIELDS]
    lines = [f"{label}: {clip(text, longest)}" for label, text, longest in texts if text]
    if result.conversation:
        lines.append("Conversation:")
    for message in result.conversation:  # whatever an environment calls one
        role = f"[{message.get('role', '?')}] " if isinstance(message, dict) else ""
        said = message.get("content", "") if isinstance(message, dict) else message
        lines.append(f"{role}{clip(str(said), MESSAGE_CHARS)}")
    name = " ".join(escape(str(result.id)).replace('"', "'").split())
    body = clip(escape(escape_terminal("\n".join(lines))), most)
    return f'<rollout id="{name}" hard="{result.hard}" soft="{result.soft:.2f}">\n{body}\n</rollout>'


def clip(text: str, most: int) -> str:
    """The text, without its middle where it is longer than `most` characters, and how much that is."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[len(text) - half :]}"


def list_edits(edits: Sequence[Edit]) -> str:
    """One numbered line an edit, which says what it does, cut where it is long."""
    lines = []
    for place, edit in enumerate(edits):
        fields = {
            "target": edit.target and repr(edit.target),
            "content": edit.content and repr(edit.content),
            "support": edit.support_count,
            "source": edit.source_type,
        }
        given = [f"{name}={value}" for name, value in fields.items() if value not in ("", None)]
        text = "  ".join([f"op={edit.op}", *given])
        cut = text if len(text) <= SHOWN_EDIT_CHARS else f"{text[: SHOWN_EDIT_CHARS - 3].rstrip()}..."
        lines.append(f"[{place}] {cut}")
    return "\n".join(lines)
