"""Reads the JSON object in a model's answer."""

from __future__ import annotations

import re
from typing import Any

from skill_ttrl.storage.jsonl import parse_json

_FENCED = re.compile(r"```(?:json)?(.+?)```", re.DOTALL | re.IGNORECASE)


def extract_json(text: str | None) -> dict[str, Any] | None:
    """The JSON object in a text: all of it, else its first fenced block, else from the first `{` to the last `}`.

    None where there is none. The first of these that is JSON decides: where it is a list, there is no object.
    """
    if not isinstance(text, str):
        return None
    text = text.strip()
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
