"""Slow update: at the end of an epoch one call writes the guidance block, from the same items under this epoch's document and the last's.

Edits come and go with the batches; the block is what they cannot touch (`regions.py`), so it carries over what holds for longer.
"""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.optimize.documents.regions import SLOW_UPDATE, block, strip_markers, with_block
from skill_ttrl.optimize.lessons.comparison import Pair, show_pairs
from skill_ttrl.optimize.replies import extract_json
from skill_ttrl.sanitize import replace_surrogates

NONE_YET = "(none yet: this is the first)"


def guidance_request(before: str, now: str, pairs: Sequence[Pair]) -> dict[str, str]:
    """Places of `slow_update_request.md`: the document at the end of the last epoch, the present one, and how items went."""
    guidance = block(now, SLOW_UPDATE) or NONE_YET
    return {
        "previous_document": before or "(empty)",
        "document": now or "(empty)",
        "guidance": guidance,
        "comparison": show_pairs(pairs),
    }


def read_guidance(answer: str | None) -> str | None:
    """The guidance in an answer (`slow_update_content`); None where there is none."""
    return read_text(answer, "slow_update_content")


def with_guidance(document: str, guidance: str) -> str:
    """The document with this guidance as its block."""
    return with_block(document, SLOW_UPDATE, guidance)


def read_text(answer: str | None, key: str) -> str | None:
    """A text in an answer, without markers of blocks; None where it is missing, empty or no text."""
    found = (extract_json(answer or "") or {}).get(key)
    text = strip_markers(replace_surrogates(found)).strip() if isinstance(found, str) else ""
    return text or None
