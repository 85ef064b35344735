"""Meta-skill: what the optimizer has learnt about editing this document. Rewritten at the end of an epoch, never shown to the agent."""

from __future__ import annotations

from collections.abc import Sequence

from skill_ttrl.optimize.lessons.comparison import Pair, show_pairs
from skill_ttrl.optimize.lessons.slow_update import NONE_YET, read_text

HEADING = "What earlier epochs taught about editing this document"
_GUIDE = "Follow it where the rollouts leave room; where they clearly say otherwise, follow the rollouts."


def memory_request(before: str, now: str, memory: str, pairs: Sequence[Pair]) -> dict[str, str]:
    """Places of `meta_skill_request.md`: both documents, the memory until now, and how items went under each."""
    return {
        "previous_document": before or "(empty)",
        "document": now or "(empty)",
        "memory": memory or NONE_YET,
        "comparison": show_pairs(pairs),
    }


def read_memory(answer: str | None) -> str | None:
    """The memory in an answer (`meta_skill_content`); None where there is none."""
    return read_text(answer, "meta_skill_content")


def show_memory(memory: str) -> str:
    """The memory as a section of analysts', mergers' and rankings' prompts; empty where there is none."""
    return f"{_GUIDE}\n\n{memory}" if memory else ""
