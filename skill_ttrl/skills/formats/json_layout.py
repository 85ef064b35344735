"""How a JSON file is laid out, so that what was read can be written as it was, byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_FIRST_INDENT = re.compile(r"\s*[\[{]\n([ \t]+)")
MAX_INDENT = 16


def layout_of(text: str, content: Any) -> dict[str, Any]:
    """The layout under which `laid_out` gives back `text`; empty where it is of another kind.

    Args:
        text: the file.
        content: what it holds.
    """
    found = _FIRST_INDENT.match(text)
    indent: int | str | None = None
    if found:
        indent = found[1] if "\t" in found[1] else len(found[1])
    for compact in (False, True) if indent is None else (False,):
        for ascii_only in (True, False):
            layout = {"indent": indent, "ascii": ascii_only, "compact": compact, "end": "\n" * text.endswith("\n")}
            if laid_out(content, layout) == text:
                return layout
    return {}


def laid_out(content: Any, layout: Mapping[str, Any]) -> str:
    """`content` as JSON text in this layout; in one of two spaces where it says nothing (or nothing usable)."""
    indent, ascii_only, end = layout.get("indent", 2), layout.get("ascii") is True, layout.get("end", "\n")
    usable = indent is None or (indent == "\t" or (isinstance(indent, int) and 0 <= indent <= MAX_INDENT))
    separators = (",", ":") if layout.get("compact") is True else None
    options: dict[str, Any] = {"indent": indent if usable else 2, "separators": separators}
    text = json.dumps(content, ensure_ascii=ascii_only, **options)
    if not ascii_only and re.search("[\ud800-\udfff]", text):  # half a surrogate pair can only be written escaped
        text = json.dumps(content, ensure_ascii=True, **options)
    return text + (end if end == "" else "\n")
