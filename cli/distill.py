"""`skillttrl distill`: a file of episodes becomes a bank of skills."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType

from skill_ttrl.sanitize import escape_terminal, one_line

if TYPE_CHECKING:
    from skill_ttrl.stages.distill import Distilled

MAX_CELL = 90
"""Longest text of a cell in characters."""
MAX_NOTES = 20
"""Most notes that are listed."""


def distill(
    trajectories: Annotated[
        Path,
        typer.Option(
            "--trajectories",
            metavar="FILE.jsonl",
            help="Episodes: of `skillttrl collect`, or a run's `trajectories.jsonl`.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="BANK", help="Folder of the bank, which must not be there yet.")
    ],
    teacher: Annotated[
        str | None,
        typer.Option(
            help="`heuristic` (counts, no language model), `openai` (the language model endpoints.teacher), or `module:attribute` of your own. Default: the config's, else `heuristic`."
        ),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Add to a bank that is there.")] = False,
    config: Annotated[
        str | None,
        typer.Option(
            help="A recipe or file that says how many skills are asked for, who is asked, and what happens when they fail."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. distill.max_general=8."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")] = False,
) -> None:
    """Learn skills from episodes: general principles, skills by type of task, mistakes to avoid.

    The bank is written whole or not at all. Its skills are found by their words, not by their meaning (embedder `hash`: no download),
    unless the config's `skills` section names another. Answers of a language model are kept on disk where `endpoints.teacher.cache`
    names a folder: the same command then asks only for what is missing.
    """
    from skill_ttrl.cli.display.output import print_json, prints_aside
    from skill_ttrl.cli.display.views import RunView
    from skill_ttrl.stages.distill import run
    from skill_ttrl.stages.setup.checks import load_checked

    asked = load_checked(config or {}, overrides or ()) if config or overrides else None
    title = f"distill {trajectories}"
    with prints_aside(), RunView(Console(stderr=True), title, loop=False, waits=True) as view:
        found = run(trajectories, output, teacher=teacher, merge=merge, config=asked, progress=view)
    if as_json:
        print_json(found)
        return
    screen = Console()
    screen.print(distilled_view(found))
    for line in closing_lines(found):
        screen.print(escape_terminal(line), markup=False, highlight=False, soft_wrap=True)


def distilled_view(found: Distilled) -> RenderableType:
    """Tables of the episodes and of the skills by tier and type, control characters escaped."""
    from skill_ttrl.cli.display.views import rows_table

    kinds = sorted({*found.episodes, *(skill.task_type for skill in found.skills if skill.task_type)})
    counts: list[tuple[str | int | None, ...]] = [
        (
            kind or "(no type)",
            found.episodes.get(kind, {}).get("won", 0),
            found.episodes.get(kind, {}).get("lost", 0),
            sum(skill.tier == "task" and skill.task_type == kind for skill in found.skills),
            sum(skill.tier == "mistake" and skill.task_type == kind for skill in found.skills),
        )
        for kind in kinds
    ]
    general = sum(skill.tier == "general" for skill in found.skills)
    any_type = sum(skill.tier == "mistake" and not skill.task_type for skill in found.skills)
    counts.append((f"any type: {general} general", None, None, None, any_type))
    rows = [
        (
            skill.tier,
            skill.task_type or None,
            skill.title,
            one_line(skill.text, MAX_CELL),
            len(skill.evidence),
            ", ".join(skill.flags) or None,
        )
        for skill in found.skills
    ]
    tables = [rows_table("Episodes and skills by type", ("type", "won", "lost", "skills", "mistakes"), counts)]
    if rows:
        tables.append(rows_table("Skills", ("tier", "type", "title", "text", "tasks", "flags"), rows))
    return Group(*tables)


def closing_lines(found: Distilled) -> list[str]:
    """Lines on what was left out, the cost, and the bank."""
    from skill_ttrl.llm.openai.ledger import usage_lines

    lines = [one_line(note, 300) for note in found.notes[:MAX_NOTES]]
    if len(found.notes) > MAX_NOTES:
        lines.append(f"… and {len(found.notes) - MAX_NOTES} more (--json lists them).")
    if found.requests:
        lines.append(f"Questions to the teacher: {found.requests}, without a usable answer: {found.failed}.")
    lines += usage_lines(found.usage)
    new = f"{len(found.skills)} new skills" if found.skills else "nothing was added"
    lines.append(f"{found.bank}: {new}, version {found.version}; found by {found.retrieval}.")
    lines.append(f"Look at it: skillttrl inspect {found.bank}")
    return lines
