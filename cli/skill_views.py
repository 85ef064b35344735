"""`skillttrl skills show`: a skill bank to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import show
from skill_ttrl.cli.display.tables import inspection_view, skill_view
from skill_ttrl.cli.options import AsJson, refuse
from skill_ttrl.errors import ConfigError, SkillBankError, did_you_mean
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.stages.reports.inspection import Inspection

Bank = Annotated[Path, typer.Argument(metavar="BANK", help="Folder of the bank.")]
LISTED = ("id", "tier", "title", "successes/uses")
"""Columns of a list of skills."""


def _listed(found: Inspection) -> RenderableType:
    places = [list(found.columns).index(name) for name in LISTED]
    rows = [[row[place] for place in places] for row in found.rows]
    table: list[RenderableType] = [FittedTable("", LISTED, rows)] if rows else []
    head = f"{found.path}: version {found.facts['version']}, {found.facts['skills']} skills"
    notes = [Text(escape_terminal(f"  {note}"), "yellow") for note in found.notes]
    return Group(Text(escape_terminal(head), "bold"), *table, *notes)


def show_(
    bank: Annotated[Path, typer.Argument(metavar="BANK", help="A bank's folder, or a run that has one.")],
    skill_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Show this skill with its text, statistics and lineage.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("--search", metavar="TEXT", help="Search for a text, such as a task, and show the scores."),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="With --search: `embedding`, `keyword` or `hybrid`. Default: the bank's.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="With --search: number of skills to find.")] = None,
    history: Annotated[bool, typer.Option("--history", help="List the updates, the newest first.")] = False,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 100,
    full: Annotated[bool, typer.Option("--full", help="Show the texts of listed skills.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the skills of a bank, one of them, those that a search finds, or the bank's updates.

    Example: `skillttrl skills show bank --search 'cool an apple' --top-k 3`
    """
    from skill_ttrl.stages.inspecting.inspect_bank import bank_history, inspect_bank, look, search_bank

    if (skill_id is not None) + (search is not None) + history > 1:
        raise ConfigError("ID, --search and --history exclude each other: give one of them.")
    if search is None:
        refuse({"--mode": mode, "--top-k": top_k}, "needs --search")
    if search is not None:
        show(search_bank(bank, search, mode=mode, top_k=top_k), as_json, inspection_view)
    elif history:
        show(bank_history(bank, limit=rows), as_json, inspection_view)
    elif skill_id is None:
        show(inspect_bank(bank, limit=rows), as_json, inspection_view if full else _listed)
    else:
        with look(bank) as opened:
            skills = {skill.id: skill for skill in opened.snapshot()}
        if skill_id not in skills:
            raise SkillBankError(f"There is no skill {skill_id!r} in {bank}.{did_you_mean(skill_id, skills)}")
        show(skills[skill_id], as_json, skill_view)
