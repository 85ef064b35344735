"""Views of the differences between two versions of a bank, or between two banks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.stages.inspecting.bank_diff import BankComparison, BankDiff, BankSide, SkillChange, SkillDiff

DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def diff_view(found: BankDiff) -> RenderableType:
    """Each changed skill as a unified diff in colour."""
    parts = [Text(f"{found.path}: version {found.a} → {found.b}, {len(found.skills)} skills differ", "bold")]
    return Group(*parts, *(_skill_diff(skill) for skill in found.skills))


def comparison_view(found: BankComparison) -> RenderableType:
    """Show the differences of two banks: skills as unified diffs in colour, then the records of skills that both have."""

    def side(name: str, one: BankSide) -> str:
        version = "" if one.version is None else f", version {one.version}"
        return f"{name}: {one.path}{version}, {one.skills} skills"

    counts = {kind: sum(skill.kind == kind for skill in found.skills) for kind in ("added", "removed", "changed")}
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    parts: list[RenderableType] = [Text(escape_terminal(f"{side('A', found.a)}\n{side('B', found.b)}"))]
    parts.append(Text(f"{counted}, {found.same} the same", "bold"))
    for skill in found.skills:
        parts.append(_skill_diff(skill, f" (in A: {skill.was}, same {skill.matched_by})" if skill.was else ""))
    if found.records:
        rows = [(each.id, each.field, _cell(each.a), _cell(each.b)) for each in found.records]
        parts += [Text(), FittedTable("Records of skills that both have", ("id", "field", "A", "B"), rows)]
    parts += [Text(escape_terminal(f"Note: {note}"), "yellow") for note in found.notes]
    return Group(*parts)


def _skill_diff(skill: SkillDiff | SkillChange, was: str = "") -> RenderableType:
    lines = (Text(line, DIFF_STYLES.get(line[:1], "")) for line in skill.lines)
    return Group(Text(f"\n{skill.kind} {skill.id}{was}", "bold"), *lines)


def _cell(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
