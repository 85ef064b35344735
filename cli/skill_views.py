"""`skillttrl skills list`, `show`, `search`, `history` and `diff`: a skill bank to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display.diff_view import comparison_view, diff_view
from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import show
from skill_ttrl.cli.display.tables import inspection_view, skill_view
from skill_ttrl.cli.options import AsJson
from skill_ttrl.errors import ConfigError, SkillBankError, did_you_mean
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.stages.inspecting.inspection import Inspection

Bank = Annotated[Path, typer.Argument(metavar="BANK", help="Folder of the bank.")]
AnyBank = Annotated[Path, typer.Argument(metavar="BANK", help="A bank's folder, or a run that has one.")]
Rows = Annotated[int, typer.Option(min=1, help="Most rows to show.")]
Mode = Annotated[str | None, typer.Option(help="`embedding`, `keyword` or `hybrid`. Default: the bank's.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Number of skills to find. Default: the bank's.")]
Full = Annotated[bool, typer.Option("--full", help="Show the skills' texts too.")]
LISTED = ("id", "tier", "title", "successes/uses")
"""Columns of `skills list`."""


def list_(bank: AnyBank, rows: Rows = 100, full: Full = False, as_json: AsJson = False) -> None:
    """List the skills of a bank.

    Example: `skillttrl skills list runs/quickstart_skills`
    """
    from skill_ttrl.stages.inspecting.inspect_bank import inspect_bank

    show(inspect_bank(bank, limit=rows), as_json, inspection_view if full else _listed)


def _listed(found: Inspection) -> RenderableType:
    places = [list(found.columns).index(name) for name in LISTED]
    rows = [[row[place] for place in places] for row in found.rows]
    table: list[RenderableType] = [FittedTable("", LISTED, rows)] if rows else []
    head = f"{found.path}: version {found.facts['version']}, {found.facts['skills']} skills"
    notes = [Text(escape_terminal(f"  {note}"), "yellow") for note in found.notes]
    return Group(Text(escape_terminal(head), "bold"), *table, *notes)


def show_(
    bank: AnyBank,
    skill_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the skill.")],
    as_json: AsJson = False,
) -> None:
    """Show one skill with its text, statistics and lineage.

    Example: `skillttrl skills show bank s3`
    """
    from skill_ttrl.stages.inspecting.inspect_bank import look

    with look(bank) as opened:
        skills = {skill.id: skill for skill in opened.snapshot()}
    if skill_id not in skills:
        raise SkillBankError(f"There is no skill {skill_id!r} in {bank}.{did_you_mean(skill_id, skills)}")
    show(skills[skill_id], as_json, skill_view)


def search(
    bank: AnyBank,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Text to search for, such as a task.")],
    mode: Mode = None,
    top_k: TopK = None,
    as_json: AsJson = False,
) -> None:
    """Search a bank, and show the skills that are found with their scores. Hits of the fallback are marked.

    Example: `skillttrl skills search bank 'cool an apple' --top-k 3`
    """
    from skill_ttrl.stages.inspecting.inspect_bank import search_bank

    show(search_bank(bank, query, mode=mode, top_k=top_k), as_json, inspection_view)


def history(bank: AnyBank, rows: Rows = 10, as_json: AsJson = False) -> None:
    """List the newest updates of a bank, the newest first.

    Example: `skillttrl skills history bank --rows 20`
    """
    from skill_ttrl.stages.inspecting.inspect_bank import bank_history

    show(bank_history(bank, limit=rows), as_json, inspection_view)


def diff(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="[BANK] A B", help="A bank and two of its versions; or two banks, runs or files of skills."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show the differences between two versions of a bank, or between two banks.

    Example: `skillttrl skills diff bank 3 5`
    """
    if len(sides) not in (2, 3):
        raise ConfigError(
            "Name a bank and two versions (skillttrl skills diff BANK 3 5), or two banks (skillttrl skills diff A B)."
        )
    show_diff(Path(sides[0]) if len(sides) == 3 else None, *sides[-2:], as_json=as_json)


def show_diff(path: Path | None, a: str, b: str, *, as_json: bool) -> None:
    """Two versions of the bank at `path`, or, without one, the banks at `a` and `b`."""
    from skill_ttrl.stages.inspecting.bank_diff import compare_banks, diff_bank

    versions = a.isdecimal() and b.isdecimal()
    if path is None:
        if versions and not (Path(a).exists() or Path(b).exists()):
            raise ConfigError(f"Versions {a} and {b} of which bank? skillttrl skills diff BANK {a} {b}")
        show(compare_banks(a, b), as_json, comparison_view, soft_wrap=True)
    elif versions:
        show(diff_bank(path, int(a), int(b)), as_json, diff_view, soft_wrap=True)
    else:
        raise ConfigError(
            f"{a} {b}: of one bank these are two versions, whole numbers. To compare two banks leave the bank (inspect: the PATH) out: "
            f"skillttrl skills diff {a} {b}"
        )
