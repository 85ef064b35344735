"""Rollouts and edits as a model reads them: text of others, escaped, between tags, of bounded length; and the JSON of its answers."""

from __future__ import annotations

import re
from typing import Any

from skill_ttrl.optimize.types import Edit, RolloutResult
from skill_ttrl.sanitize import OUR_TAGS, escape, escape_terminal
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types.thoughts import json_content

ROLLOUT_CHARS = 12_000
MESSAGE_CHARS = 800
EDIT_CHARS = 500
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

_FENCED = re.compile(r"```(?:json)?(.+?)```", re.DOTALL | re.IGNORECASE)
_ESCAPED_TAG = re.compile(rf"&lt;(?=/?(?:{'|'.join(tag for tag in OUR_TAGS if tag != 'rollout')})\b)")


def show_rollout(result: RolloutResult, most: int = ROLLOUT_CHARS) -> str:
    """One rollout: its task, what was expected and answered, why it failed, and the conversation."""
    lines = [
        f"{label}: {clip(str(text), longest)}" for label, name, longest in FIELDS if (text := getattr(result, name))
    ]
    turns = [_turn(message) for message in result.conversation]
    lines += ["Conversation:", *turns] if turns else []
    name = " ".join(escape(str(result.id)).replace('"', "'").split())
    body = clip(escape(escape_terminal("\n".join(lines))), most)
    return f'<rollout id="{name}" hard="{result.hard}" soft="{result.soft:.2f}">\n{body}\n</rollout>'


def unescape_tags(answer: str) -> str:
    """An answer with our tags as an agent writes them: a model copies `&lt;answer>` as the rollouts show it. `rollout` stays escaped."""
    return _ESCAPED_TAG.sub("<", answer)


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
    return text if len(text) <= EDIT_CHARS else f"{text[: EDIT_CHARS - 3].rstrip()}..."


def _turn(message: object) -> str:
    """A message, whatever an environment calls one."""
    if not isinstance(message, dict):
        return clip(str(message), MESSAGE_CHARS)
    return f"[{message.get('role', '?')}] {clip(str(message.get('content', '')), MESSAGE_CHARS)}"


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
