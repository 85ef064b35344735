"""Skills on a screen: each with its figures, title and text, wrapped to the width of the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from skill_ttrl.sanitize import escape_terminal, one_line

if TYPE_CHECKING:
    from skill_ttrl.stages.inspecting.inspection import Inspection
    from skill_ttrl.types import Skill

MAX_TEXT = 1000
"""Characters of a skill's text that are shown; `--json` has all."""
INDENT = (0, 0, 0, 2)


def skill_list(found: Inspection) -> RenderableType:
    """The skills that an inspection shows. Texts are shown as text, their control characters as pictures."""
    scores = [row[0] for row in found.rows] if found.kind == "search" else [None] * len(found.rows)
    return Group(*(_skill(skill, score) for skill, score in zip(found.skills, scores, strict=False)))


def _skill(skill: Skill, score: object) -> RenderableType:
    stats, rate = skill.stats, skill.stats.success_rate
    figures = [
        f"score {score}" if score is not None else "",
        f"{skill.tier}: {skill.task_type}" if skill.task_type else skill.tier,
        f"won {stats.successes} of {stats.uses} uses ({rate:.2f})" if rate is not None else "not used",
        f"version {skill.version}" if skill.version > 1 else "",
        f"from {', '.join(skill.parents)}" if skill.parents else "",
        f"flags: {', '.join(skill.flags)}" if skill.flags else "",
    ]
    head = Text.assemble((escape_terminal(skill.id), "bold"), "  ", (one_line(", ".join(filter(None, figures))), "dim"))
    parts: list[RenderableType] = [Text(), head]
    if skill.title.strip():
        parts.append(Padding(Text(one_line(skill.title), "italic"), INDENT, expand=False))
    if skill.when_to_apply.strip():
        parts.append(Padding(Text(f"When: {one_line(skill.when_to_apply)}"), INDENT, expand=False))
    rest = len(skill.text) - MAX_TEXT
    more = f" … {rest:,} more characters; --json has all" if rest > 0 else ""
    return Group(*parts, Padding(Text(escape_terminal(skill.text[:MAX_TEXT]).strip() + more), INDENT, expand=False))
