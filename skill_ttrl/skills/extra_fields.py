"""Fields of an imported record that `Skill` lacks: JSON text in `Skill.extra`, `{"fields": {"example": "..."}}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.storage.jsonl import parse_json


def extra_text(fields: Mapping[str, Any]) -> str:
    """Fields as `Skill.extra` holds them; empty without any."""
    return json.dumps({"fields": dict(fields)}) if fields else ""


def parse_extra(extra: str) -> dict[str, Any]:
    """The fields in a skill's `extra`; none where it has another form."""
    fields = parse_json(extra).get("fields") if extra else {}
    return dict(fields) if isinstance(fields, dict) else {}


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
