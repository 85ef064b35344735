"""A bonus of the gate for documents that say plainly what must be done (`gate.semantic_density`); with small weights it breaks ties."""

from __future__ import annotations

import re

LEADING_WORDS = frozenset(
    {"always", "avoid", "before", "ensure", "exactly", "first", "must", "never", "only", "required", "shall", "verify"}
)
"""Words that begin or bind an instruction."""

_WORD = re.compile(r"[^\W\d_]+")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def density(document: str) -> float:
    """Share of the document's words that are leading words, from 0 to 1; 0 of an empty document."""
    words = [word.casefold() for word in _WORD.findall(_COMMENT.sub(" ", document))]
    return sum(word in LEADING_WORDS for word in words) / len(words) if words else 0.0
