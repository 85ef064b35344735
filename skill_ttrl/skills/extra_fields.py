"""Fields of an imported record that `Skill` lacks: stored as JSON text in `Skill.extra`, and written back on export.

    {"fields": {"example": "..."}, "keys": ["title", "skill_id", ...], "given": {"skill_id": 7}}

`fields` are those without a counterpart in `Skill`. `keys` is the order of all keys of the record, if it is not the usual one.
`given` holds the original values of fields that `Skill` has but that we would write in another form; each is written back as
long as it still agrees with the skill (`formats/skillrl.py`). All three are omitted if empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.storage.jsonl import parse_json

PARTS = ("fields", "keys", "given")


@dataclass(frozen=True, slots=True)
class ExtraFields:
    """The parts of `Skill.extra`."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    keys: Sequence[str] = ()
    given: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """As `Skill.extra` holds it; empty where nothing is left over."""
        parts = {"fields": dict(self.fields), "keys": list(self.keys), "given": dict(self.given)}
        filled = {name: part for name, part in parts.items() if part}
        return json.dumps(filled) if filled else ""


def parse_extra(extra: str) -> ExtraFields:
    """The parts of a skill's `extra`; what is not there is empty, and what has another form is passed over."""
    found = parse_json(extra) if extra else {}
    fields, keys, given = (found.get(name) for name in PARTS)
    return ExtraFields(
        fields if isinstance(fields, dict) else {},
        keys if isinstance(keys, list) else (),
        given if isinstance(given, dict) else {},
    )


def checked_extra(extra: object, where: str) -> str:
    """`extra` as it is stored: the text of a JSON object in one spelling; a mapping is written as one.

    Raises:
        SkillBankError: it is something else.
    """
    if extra == "":
        return ""
    try:
        content = parse_json(extra) if isinstance(extra, str) else extra
        if isinstance(content, Mapping):
            return json.dumps(dict(content)) if content else ""
    except (ValueError, TypeError, RecursionError):
        pass
    raise SkillBankError(f"{where}: 'extra' is an object of JSON, found {repr(extra)[:80]}.")
