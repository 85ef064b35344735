"""`skillttrl skills`: show a bank, and change it by hand. Each change is one update in its log, with a reason."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from skill_ttrl.cli.display import inspection_view, show, skill_view, write_text
from skill_ttrl.cli.options import AsJson, refuse
from skill_ttrl.errors import ConfigError, SkillBankError, did_you_mean
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.skills.changes import OnDuplicate
from skill_ttrl.types import Tier

if TYPE_CHECKING:
    from skill_ttrl.types import BankUpdate

skills_app = typer.Typer(
    rich_markup_mode="markdown",
    help="Show and change a skill bank. Every change is one update in the bank's log and can be rolled back.",
    no_args_is_help=True,
)

Bank = Annotated[Path, typer.Argument(metavar="BANK", help="Folder of the bank.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the skill (`skillttrl skills show BANK`).")]
TITLE = typer.Option(help="Title, a few words.")
TEXT = typer.Option(help="Text of the skill; `-` reads it from standard input.")
WHEN = typer.Option("--when-to-apply", help="When the skill applies.")
TIER = typer.Option(help="`general` for all tasks, `task` for one task type, `mistake` for something to avoid.")
TASK_TYPE = typer.Option(help="Task type that the skill is for; empty: any.")
Reason = Annotated[str | None, typer.Option(help="Reason of the change, for the log.")]
FileFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="`json`, `skillrl`, `document` (a Markdown file, one skill per section), or `agentskills` (a folder with one SKILL.md per "
        "skill). Default: by name and content.",
    ),
]


@skills_app.command("show")
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
        Literal["embedding", "keyword", "hybrid"] | None, typer.Option(help="With --search. Default: the bank's.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="With --search: number of skills to find.")] = None,
    history: Annotated[bool, typer.Option("--history", help="List the updates, the newest first.")] = False,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show the skills of a bank, one of them, those that a search finds, or the bank's updates.

    Example: `skillttrl skills show bank --search 'cool an apple' --top-k 3`
    """
    from skill_ttrl.commands.reports.bank import bank_history, inspect_bank, look, search_bank

    if (skill_id is not None) + (search is not None) + history > 1:
        raise ConfigError("ID, --search and --history exclude each other: give one of them.")
    if search is None:
        refuse({"--mode": mode, "--top-k": top_k}, "needs --search")
    if search is not None:
        show(search_bank(bank, search, mode=mode, top_k=top_k), as_json, inspection_view)
    elif history:
        show(bank_history(bank, limit=rows), as_json, inspection_view)
    elif skill_id is None:
        show(inspect_bank(bank, limit=rows), as_json, inspection_view)
    else:
        with look(bank) as opened:
            skills = {skill.id: skill for skill in opened.snapshot()}
        if skill_id not in skills:
            raise SkillBankError(f"There is no skill {skill_id!r} in {bank}.{did_you_mean(skill_id, skills)}")
        show(skills[skill_id], as_json, skill_view)


@skills_app.command()
def add(
    bank: Bank,
    text: Annotated[str, TEXT],
    title: Annotated[str, TITLE],
    tier: Annotated[Tier, TIER] = "task",
    task_type: Annotated[str, TASK_TYPE] = "",
    when_to_apply: Annotated[str, WHEN] = "",
    skill_id: Annotated[
        str | None, typer.Option("--id", help="Id of the skill. Default: one made from the bank's version.")
    ] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Add a skill. Makes the bank if there is none; a full bank evicts its least useful skill.

    Example: `skillttrl skills add bank --title 'Cool first' --text 'Open the fridge before you cool something.'`
    """
    from skill_ttrl.commands.reports.bank import open_or_make

    record = {"title": title, "text": _text(text), "when_to_apply": when_to_apply, "tier": tier, "id": skill_id}
    with open_or_make(bank) as opened:
        opened.add_from_dict(record, task_type, "user", reason=reason or "add by hand")
        _show(opened.history(opened.version - 1)[0], bank, as_json)


@skills_app.command()
def edit(
    bank: Bank,
    skill_id: Id,
    title: Annotated[str | None, TITLE] = None,
    text: Annotated[str | None, TEXT] = None,
    when_to_apply: Annotated[str | None, WHEN] = None,
    tier: Annotated[Tier | None, TIER] = None,
    task_type: Annotated[str | None, TASK_TYPE] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the skill.")] = False,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Edit or remove a skill. Fields that are not given stay, and so do its statistics.

    Example: `skillttrl skills edit bank s3 --text 'Open the fridge first.' --reason 'shorter'`
    """
    from skill_ttrl.skills.bank import SkillBank

    words = None if text is None else _text(text)
    fields = {"title": title, "text": words, "when_to_apply": when_to_apply, "tier": tier, "task_type": task_type}
    given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if remove:
        refuse({f"--{name.replace('_', '-')}": value for name, value in fields.items()}, "has no effect with --remove")
    elif not given:
        raise SkillBankError(
            "There is nothing to edit. Give --title, --text, --when-to-apply, --tier, --task-type or --remove."
        )
    with SkillBank.open(bank) as opened:
        if remove:
            opened.remove(skill_id, reason=reason or "remove by hand")
        else:
            opened.edit(skill_id, reason=reason or "edit by hand", **given)
        _show(opened.history(opened.version - 1)[0], bank, as_json)


@skills_app.command("import")
def import_(
    bank: Bank,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of skills, a folder with SKILL.md files, or another bank.")
    ],
    form: FileFormat = None,
    on_duplicate: Annotated[
        OnDuplicate,
        typer.Option(help="If an id exists already: `refuse` the whole import, `skip`, `replace` or `rename`."),
    ] = "refuse",
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Import the skills of a file into a bank: all of them, or none if one is invalid. Makes the bank if there is none.

    Example: `skillttrl skills import bank skills.json`
    """
    from skill_ttrl.commands.reports.bank import open_or_make, skills_at

    found, _ = skills_at(file, form)  # before a bank is made
    notices = list(found.notices)
    with open_or_make(bank) as opened:
        if found.origin and len(opened):
            notices.append(f"the bank has skills already: the order of {file} is not imported")
        update = opened.import_skills(
            found.skills, on_duplicate=on_duplicate, origin=found.origin, reason=reason or f"import {file.name}"
        )
        _show(update, bank, as_json)
    _note(notices)


@skills_app.command()
def export(
    bank: Annotated[
        Path, typer.Argument(metavar="BANK", help="A bank's folder, a run that has one, or a file of skills.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File or folder to write. Default: stdout.")
    ] = None,
    form: FileFormat = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --output: print one JSON value on stdout, and nothing else there.")
    ] = False,
) -> None:
    """Export a bank's skills to a file or folder. `skillrl` and `document` do not hold statistics and lineage.

    Example: `skillttrl skills export bank --format skillrl -o skills.json`
    """
    from skill_ttrl.commands.reports import bank as banks

    if output is None:
        if as_json:
            raise ConfigError("--json reports what was written to a file: it needs --output.")
        text, notices = banks.export_text(bank, form)
        write_text(text)
        _note(notices)
        return
    skills, at, notes = banks.export(bank, output, form)
    found = {"source": str(bank), "version": at, "skills": len(skills), "output": str(output), "notes": notes}
    version_text = "" if at is None else f" (version {at})"
    show(found, as_json, lines=[f"Wrote {len(skills)} skills of {bank}{version_text} to {output}."])
    _note(() if as_json else notes)


@skills_app.command()
def rollback(
    bank: Bank,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", help="Version to restore (`skillttrl skills show BANK --history`).")
    ],
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Restore an older version of a bank, statistics included, by a new update. The history stays.

    Example: `skillttrl skills rollback bank 4`
    """
    from skill_ttrl.skills.bank import SkillBank

    with SkillBank.open(bank) as opened:
        _show(opened.rollback(version, reason=reason), bank, as_json)


def _note(notices: Iterable[str]) -> None:
    """Print notices on stderr, apart from the result."""
    for notice in notices:
        print(escape_terminal(f"Note: {notice}."), file=sys.stderr)


def _text(given: str) -> str:
    """The text of an option; `-` stands for standard input, read as bytes so that its line ends stay."""
    if given != "-":
        return given
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise SkillBankError("Standard input is not UTF-8 text.") from None


def _show(update: BankUpdate, bank: Path, as_json: bool) -> None:
    """Print the changes that a command made to the bank."""
    done = {"add": "added", "edit": "edited", "replace": "replaced", "remove": "removed", "evict": "evicted"}
    words: dict[str, list[str]] = {}
    for change in update.changes:
        words.setdefault(done.get(change.kind, change.kind), []).append(change.skill.id)
    said = "; ".join(
        f"{verb} {len(ids)}: {', '.join(ids[:5])}{' …' if len(ids) > 5 else ''}" for verb, ids in words.items()
    )
    show(update, as_json, lines=[f"{bank} is at version {update.version}: {said or 'no changes'}."])
