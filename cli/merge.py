"""`skillttrl merge`: the winners' operations of samples or votes become updates of a skill bank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType

from skill_ttrl.sanitize import escape_terminal, one_line

if TYPE_CHECKING:
    from skill_ttrl.stages.merge import MergeResult

MAX_CELL = 60
"""Longest text of a cell in characters."""
MAX_SKIPPED = 10
"""Most of the operations that were left out which are listed."""


def merge(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A run, its `trajectories.jsonl` or `votes.jsonl`, or records with `problem` and `responses`, put to the vote.",
        ),
    ],
    bank: Annotated[Path, typer.Option("--bank", help="Folder of the bank; made where it is not there.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the update and change nothing.")] = False,
    extract: Annotated[
        bool, typer.Option("--extract", help="Where no winner wrote a skill, take one from what their solutions share.")
    ] = False,
    by: Annotated[str, typer.Option(help="One update for each `step` of a run, or one for `all`.")] = "step",
    merger: Annotated[
        str | None,
        typer.Option(
            help="`heuristic`, `openai` (the language model endpoints.merger), or `module:attribute` of your own. Default: the config's, else `heuristic`."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="A recipe or file that says which language models are asked, and what happens when they fail."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. endpoints.merger.model=NAME."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")] = False,
) -> None:
    """Merge what winning samples asked of a skill bank: new skills, better ones, and credit for those that were used."""
    from skill_ttrl.cli.display.output import print_json
    from skill_ttrl.stages.merge import run
    from skill_ttrl.stages.setup.checks import load_checked

    asked = load_checked(config or {}, overrides or ()) if config or overrides else None
    found = run(source, bank, dry_run=dry_run, extract=extract, by=by, merger=merger, config=asked)  # type: ignore[arg-type]  # `by` is checked there
    if as_json:
        print_json(found)
    else:
        screen = Console()
        screen.print(merge_view(found))
        for line in closing_lines(found):
            screen.print(escape_terminal(line), markup=False, highlight=False, soft_wrap=True)


def merge_view(found: MergeResult) -> RenderableType:
    """The changes of each update. Skill texts are shown as text, their control characters as pictures."""
    from skill_ttrl.cli.display.views import rows_table

    rows = []
    for update in found.updates:
        for change in update.changes:
            skill = change.after or change.before
            if skill is None:
                continue
            old = change.before.id if change.before is not None and change.before.id != skill.id else None
            name = skill.id if old is None else f"{old} → {skill.id}"
            uses = f"{skill.stats.successes}/{skill.stats.uses}"
            rows.append(
                (
                    update.version,
                    change.kind,
                    name,
                    one_line(skill.text, MAX_CELL),
                    uses,
                    ", ".join(skill.flags) or None,
                )
            )
    title = "The update as it would be" if found.dry_run else f"Merged into {found.bank}"
    return rows_table(title, ("version", "change", "skill", "text", "won/used", "flags"), rows) if rows else Group()


def closing_lines(found: MergeResult) -> list[str]:
    """The counts, what was left out, and what became of the bank."""
    from skill_ttrl.llm.openai.ledger import usage_lines

    skipped = found.report.skipped
    lines = [", ".join(f"{name} {count}" for name, count in found.report.counts().items()) + "."]
    lines += [f"Left out: {one_line(reason, 200)}" for reason in skipped[:MAX_SKIPPED]]
    if len(skipped) > MAX_SKIPPED:
        lines.append(f"… and {len(skipped) - MAX_SKIPPED} more (--json lists them).")
    change = f"{found.bank}: {found.skills_before} → {found.skills_after} skills, version {found.version}."
    if not found.version and not found.dry_run:
        change = f"No bank was made at {found.bank}."
    lines += usage_lines(found.usage)
    asked = " (language models were asked all the same)" if found.usage else ""
    return [*lines, *found.notes, f"Dry run, nothing was changed{asked}. {change}" if found.dry_run else change]
