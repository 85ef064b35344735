"""`skillttrl skills`: change a bank by hand. Each command is one update in its log, with a reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from skill_ttrl.stages.skills import BankDiff
    from skill_ttrl.types import BankUpdate

skills_app = typer.Typer(
    help="Change a skill bank by hand: every command is one update in its log, and can be rolled back.",
    no_args_is_help=True,
)

Bank = Annotated[Path, typer.Argument(metavar="BANK", help="Folder of the bank.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the skill (`skillttrl inspect BANK`).")]
Title = Annotated[str | None, typer.Option(help="A few words.")]
Words = Annotated[str | None, typer.Option(help="What the skill says; `-` reads it from standard input.")]
When = Annotated[str | None, typer.Option(help="When to apply it.")]
TierName = Annotated[
    str | None, typer.Option(help="`general` for all tasks, `task` for one type, `mistake` for what to avoid.")
]
TaskType = Annotated[str | None, typer.Option(help="Kind of task it is for; empty for any.")]
Reason = Annotated[str | None, typer.Option(help="Why; kept in the log.")]
FileFormat = Annotated[
    str | None, typer.Option("--format", help="`json`, `jsonl`, `skillrl` or `markdown`. Default: by the file's name.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the update as JSON on stdout, nothing else.")]


@skills_app.command()
def add(
    bank: Bank,
    text: Annotated[str, typer.Option(help="What the skill says; `-` reads it from standard input.")],
    title: Annotated[str, typer.Option(help="A few words.")],
    tier: Annotated[
        str, typer.Option(help="`general` for all tasks, `task` for one type, `mistake` for what to avoid.")
    ] = "task",
    task_type: Annotated[str, typer.Option(help="Kind of task it is for; empty for any.")] = "",
    when: Annotated[str, typer.Option(help="When to apply it.")] = "",
    skill_id: Annotated[str | None, typer.Option("--id", help="Its id. Default: one made from the version.")] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Add a skill. The bank is made where there is none; a full bank gives up its least useful skill."""
    from skill_ttrl.stages.skills import open_or_make

    record = {"title": title, "text": _text(text), "when_to_apply": when, "tier": tier, "id": skill_id}
    with open_or_make(bank) as opened:
        opened.add_from_dict(record, task_type, "user", reason=reason or "add by hand")
        _show(opened.history(opened.version - 1)[0], bank, as_json)


@skills_app.command()
def edit(
    bank: Bank,
    skill_id: Id,
    title: Title = None,
    text: Words = None,
    when: When = None,
    tier: TierName = None,
    task_type: TaskType = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Correct a skill: what is not named stays, its statistics too."""
    from skill_ttrl.errors import SkillBankError
    from skill_ttrl.skills.bank import SkillBank

    words = None if text is None else _text(text)
    fields = {"title": title, "text": words, "when_to_apply": when, "tier": tier, "task_type": task_type}
    given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if not given:
        raise SkillBankError(
            "There is nothing to edit. Name at least one of --title, --text, --when, --tier, --task-type."
        )
    with SkillBank.open(bank) as opened:
        opened.edit(skill_id, reason=reason or "edit by hand", **given)
        _show(opened.history(opened.version - 1)[0], bank, as_json)


@skills_app.command()
def remove(bank: Bank, skill_id: Id, reason: Reason = None, as_json: AsJson = False) -> None:
    """Take a skill out."""
    from skill_ttrl.skills.bank import SkillBank

    with SkillBank.open(bank) as opened:
        opened.remove(skill_id, reason=reason or "remove by hand")
        _show(opened.history(opened.version - 1)[0], bank, as_json)


@skills_app.command("import")
def import_(
    bank: Bank,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An exported bank, or SkillRL's skill file.")],
    form: FileFormat = None,
    on_duplicate: Annotated[
        str, typer.Option(help="For an id that is taken: `refuse` all, `skip`, `replace` or `rename`.")
    ] = "refuse",
    max_skills: Annotated[int | None, typer.Option(min=1, help="Set the bank's capacity.")] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Bring the skills of a file into a bank, all of them or, after a mistake, none. The bank is made where there is none."""
    from skill_ttrl.skills.formats import known_format, read_skills
    from skill_ttrl.stages.skills import open_or_make

    skills = read_skills(file, known_format(form))  # before a bank is made
    with open_or_make(bank, **({} if max_skills is None else {"max_skills": max_skills})) as opened:
        update = opened.import_skills(
            skills,
            on_duplicate=on_duplicate,  # type: ignore[arg-type]  # checked there
            reason=reason or f"import {file.name}",
        )
        _show(update, bank, as_json)


@skills_app.command()
def export(
    bank: Annotated[Path, typer.Argument(metavar="BANK", help="Folder of the bank, or of a run that has one.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: stdout.")] = None,
    form: FileFormat = None,
    version: Annotated[int | None, typer.Option("--at", help="An older version.")] = None,
) -> None:
    """Write a bank's skills to a file. All formats but SkillRL's keep statistics and lineage."""
    from skill_ttrl.skills.formats import dump_skills, known_format, write_skills
    from skill_ttrl.stages.skills import look, refuse_existing

    chosen = known_format(form)
    with look(bank) as opened:
        snapshot = opened.snapshot() if version is None else opened.at(version)
    if output is None:
        sys.stdout.write(dump_skills(snapshot, chosen or "json"))
    else:
        refuse_existing(output)
        write_skills(output, snapshot, chosen)
        print(output)


@skills_app.command()
def rollback(
    bank: Bank,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="From `skillttrl inspect BANK --history`.")],
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Make a bank again what it was, statistics included, by a new update: the history stays."""
    from skill_ttrl.skills.bank import SkillBank

    with SkillBank.open(bank) as opened:
        _show(opened.rollback(version, reason=reason), bank, as_json)


def diff_view(found: BankDiff) -> RenderableType:
    """Each changed skill as a unified diff in colour."""
    from rich.console import Group
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan"}
    parts = [Text(f"{found.path}: version {found.a} → {found.b}, {len(found.skills)} skills differ", "bold")]
    for skill in found.skills:
        parts.append(Text(f"\n{skill.kind} {skill.id}", "bold"))
        parts += [Text(line, styles.get(line[:1], "")) for line in skill.lines]
    return Group(*parts)


def _text(given: str) -> str:
    """The text of an option; `-` stands for standard input, read as bytes so that its line ends stay."""
    from skill_ttrl.errors import SkillBankError

    if given != "-":
        return given
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise SkillBankError("Standard input is not UTF-8 text.") from None


def _show(update: BankUpdate, bank: Path, as_json: bool) -> None:
    """What a command did to the bank."""
    from skill_ttrl.cli.output import print_json

    if as_json:
        print_json(update)
        return
    done = {"add": "added", "edit": "edited", "replace": "replaced", "remove": "removed", "evict": "evicted"}
    words: dict[str, list[str]] = {}
    for change in update.changes:
        skill = change.after or change.before
        if skill is not None:
            words.setdefault(done.get(change.kind, change.kind), []).append(skill.id)
    said = "; ".join(
        f"{verb} {len(ids)}: {', '.join(ids[:5])}{' …' if len(ids) > 5 else ''}" for verb, ids in words.items()
    )
    print(f"{bank} is at version {update.version}: {said or 'nothing differs'}.")
