"""`skillttrl skills`: change a bank by hand. Each command is one update in its log, with a reason."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from skill_ttrl.cli.display.fitted import FittedTable
from skill_ttrl.cli.display.output import show
from skill_ttrl.errors import ConfigError, SkillBankError
from skill_ttrl.sanitize import escape_terminal

if TYPE_CHECKING:
    from skill_ttrl.stages.inspecting.bank_diff import BankComparison, BankDiff, BankSide, SkillChange, SkillDiff
    from skill_ttrl.types import BankUpdate

skills_app = typer.Typer(
    help="Change a skill bank by hand: every command is one update in its log, and can be rolled back.",
    no_args_is_help=True,
)

DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
Bank = Annotated[Path, typer.Argument(metavar="BANK", help="Folder of the bank.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the skill (`skillttrl inspect BANK`).")]
TITLE = typer.Option(help="A few words.")
TEXT = typer.Option(help="What the skill says; `-` reads it from standard input.")
WHEN = typer.Option(help="When to apply it.")
TIER = typer.Option(help="`general` for all tasks, `task` for one type, `mistake` for what to avoid.")
TASK_TYPE = typer.Option(help="Kind of task it is for; empty for any.")
Reason = Annotated[str | None, typer.Option(help="Why; kept in the log.")]
FileFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="`json`, `jsonl`, `markdown`, `skillrl`, `skillrl-memory`, `document` (a skill document: a skill for each section; `document-items`: for each item of a "
        "list), or `agentskills` (a folder with a SKILL.md for each "
        "skill), or one of your own as `module:attribute`. Default: by the name and by what is there.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the update as JSON on stdout, nothing else.")]


@skills_app.command()
def add(
    bank: Bank,
    text: Annotated[str, TEXT],
    title: Annotated[str, TITLE],
    tier: Annotated[str, TIER] = "task",
    task_type: Annotated[str, TASK_TYPE] = "",
    when: Annotated[str, WHEN] = "",
    skill_id: Annotated[str | None, typer.Option("--id", help="Its id. Default: one made from the version.")] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Add a skill. The bank is made where there is none; a full bank gives up its least useful skill."""
    from skill_ttrl.stages.inspecting.inspect_bank import open_or_make

    record = {"title": title, "text": _text(text), "when_to_apply": when, "tier": tier, "id": skill_id}
    with open_or_make(bank) as opened:
        opened.add_from_dict(record, task_type, "user", reason=reason or "add by hand")
        _show(opened.history(opened.version - 1)[0], bank, as_json)


@skills_app.command()
def edit(
    bank: Bank,
    skill_id: Id,
    title: Annotated[str | None, TITLE] = None,
    text: Annotated[str | None, TEXT] = None,
    when: Annotated[str | None, WHEN] = None,
    tier: Annotated[str | None, TIER] = None,
    task_type: Annotated[str | None, TASK_TYPE] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Correct a skill: what is not named stays, its statistics too."""
    from skill_ttrl.skills.bank.bank import SkillBank

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
    from skill_ttrl.skills.bank.bank import SkillBank

    with SkillBank.open(bank) as opened:
        opened.remove(skill_id, reason=reason or "remove by hand")
        _show(opened.history(opened.version - 1)[0], bank, as_json)


@skills_app.command("import")
def import_(
    bank: Bank,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of skills, a folder with SKILL.md files, or another bank.")
    ],
    form: FileFormat = None,
    on_duplicate: Annotated[
        str, typer.Option(help="For an id that is taken: `refuse` all, `skip`, `replace` or `rename`.")
    ] = "refuse",
    max_skills: Annotated[int | None, typer.Option(min=1, help="Set the bank's capacity.")] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Bring the skills of a file into a bank, all of them or, after a mistake, none. The bank is made where there is none."""
    from skill_ttrl.stages.inspecting.bank_diff import skills_at
    from skill_ttrl.stages.inspecting.inspect_bank import open_or_make

    found, _ = skills_at(file, form)  # before a bank is made
    if not found.skills and file.suffix == ".md" and file.read_text(encoding="utf-8", errors="replace").strip():
        raise SkillBankError(
            f"{file} holds no skill{f' in the format {form}' if form else ''}. If it is a skill document: --format document, or --format "
            "document-items for a skill of each item of a list."
        )
    notices = list(found.notices)
    with open_or_make(bank, **({} if max_skills is None else {"max_skills": max_skills})) as opened:
        if found.origin and len(opened):
            notices.append(
                f"the bank has skills already: what {file} holds besides skills (order, metadata) is not kept"
            )
        update = opened.import_skills(
            found.skills,
            on_duplicate=on_duplicate,  # type: ignore[arg-type]  # checked there
            origin=found.origin,
            reason=reason or f"import {file.name}",
        )
        _show(update, bank, as_json)
    _note(notices)


@skills_app.command()
def export(
    bank: Annotated[
        Path,
        typer.Argument(
            metavar="BANK",
            help="Folder of the bank, or of a run that has one; a file of skills; for `skillrl-memory` also a file of episodes.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File or folder to write. Default: stdout.")
    ] = None,
    form: FileFormat = None,
    version: Annotated[int | None, typer.Option("--at", help="An older version.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --output: print what was written as JSON on stdout, nothing else.")
    ] = False,
) -> None:
    """Write a bank's skills to a file or folder. SkillRL's formats have no place for statistics and lineage."""
    from skill_ttrl.stages.inspecting import bank_export

    if output is None:
        if as_json:
            raise ConfigError("--json says what was written to a file: give --output with it.")
        text, notices = bank_export.export_text(bank, form, version)
        sys.stdout.write(text)
        _note(notices)
        return
    found = bank_export.export(bank, output, form, version)
    what = "the episodes" if found.skills is None else f"{found.skills} skill{'s' * (found.skills != 1)}"
    at = "" if found.version is None else f" (version {found.version})"
    show(found, as_json, lines=[f"Wrote {what} of {found.source}{at} to {found.output} as {found.format}."])
    _note(() if as_json else found.notes)


@skills_app.command()
def rollback(
    bank: Bank,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="From `skillttrl inspect BANK --history`.")],
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Make a bank again what it was, statistics included, by a new update: the history stays."""
    from skill_ttrl.skills.bank.bank import SkillBank

    with SkillBank.open(bank) as opened:
        _show(opened.rollback(version, reason=reason), bank, as_json)


def show_diff(path: Path | None, a: str, b: str, *, as_json: bool) -> None:
    """Two versions of the bank at `path`, or, without one, the banks at `a` and `b`."""
    from skill_ttrl.stages.inspecting.bank_diff import compare_banks, diff_bank

    versions = a.isdecimal() and b.isdecimal()
    if path is None:
        if versions and not (Path(a).exists() or Path(b).exists()):
            raise ConfigError(f"Versions {a} and {b} of which bank? skillttrl inspect BANK --diff {a} {b}")
        show(compare_banks(a, b), as_json, comparison_view, soft_wrap=True)
    elif versions:
        show(diff_bank(path, int(a), int(b)), as_json, diff_view, soft_wrap=True)
    else:
        raise ConfigError(
            f"--diff {a} {b}: with a PATH these are two versions of its bank, whole numbers. To compare two banks leave the "
            f"PATH out: skillttrl inspect --diff {a} {b}"
        )


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
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    parts: list[RenderableType] = [Text(escape_terminal(f"{side('A', found.a)}\n{side('B', found.b)}"))]
    parts.append(Text(f"{told}, {found.same} the same", "bold"))
    for skill in found.skills:
        parts.append(_skill_diff(skill, f" (in A: {skill.was}, same {skill.matched_by})" if skill.was else ""))
    if found.records:
        rows = [(each.id, each.field, _cell(each.a), _cell(each.b)) for each in found.records]
        parts += [Text(), FittedTable("Kept about skills that both have", ("id", "field", "A", "B"), rows)]
    parts += [Text(escape_terminal(f"Note: {note}"), "yellow") for note in found.notes]
    return Group(*parts)


def _skill_diff(skill: SkillDiff | SkillChange, was: str = "") -> RenderableType:
    lines = (Text(line, DIFF_STYLES.get(line[:1], "")) for line in skill.lines)
    return Group(Text(f"\n{skill.kind} {skill.id}{was}", "bold"), *lines)


def _cell(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


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
        skill = change.after or change.before
        if skill is not None:
            words.setdefault(done.get(change.kind, change.kind), []).append(skill.id)
    said = "; ".join(
        f"{verb} {len(ids)}: {', '.join(ids[:5])}{' …' if len(ids) > 5 else ''}" for verb, ids in words.items()
    )
    show(update, as_json, lines=[f"{bank} is at version {update.version}: {said or 'nothing differs'}."])
