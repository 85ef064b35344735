"""`skillttrl skills export`: a bank's skills as a file or folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.formats.files import dump_skills, format_of_target, write_skills
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.stages.inspecting.bank_diff import skills_at
from skill_ttrl.stages.inspecting.inspect_bank import look


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export."""

    source: str
    version: int | None
    """The bank's version; None for a file."""
    skills: int
    format: str
    output: str
    notes: Sequence[str] = ()
    """Notes on what was left out."""


def export_text(source: str | Path, format: str | None = None, version: int | None = None) -> tuple[str, Sequence[str]]:
    """The skills of a bank, a run or a file as text, JSON where no format is named, and what was not taken.

    Raises:
        SkillBankError: they cannot be read, there is no such version, or the format is a folder.
    """
    snapshot, _, notes = _read(Path(source), version)
    return dump_skills(snapshot, "json" if format is None else format), notes


def export(source: str | Path, output: str | Path, format: str | None = None, version: int | None = None) -> Exported:
    """Write the skills of a bank, a run or a file to a new file or folder.

    Args:
        source: a bank's folder, a run that has one, or a file of skills.
        output: what to write; it must not be there.
        format: how; None: by the name's ending.
        version: an older version of the bank.

    Raises:
        SkillBankError: the name does not say the format, something is there, or it cannot be read or written.
    """
    source, output = Path(source), Path(output)
    form = format_of_target(output, format)
    if output.exists():
        raise SkillBankError(f"{output} exists already. Choose another name or remove it first.")
    snapshot, found, notes = _read(source, version)
    write_skills(output, snapshot, form)
    return Exported(str(source), found, len(snapshot), form, str(output), notes)


def _read(source: Path, version: int | None) -> tuple[Snapshot, int | None, Sequence[str]]:
    if source.is_file():
        if version is not None:
            raise SkillBankError(f"{source} is a file, which has no versions: leave --at out, or name a bank.")
        found, _ = skills_at(source)
        return Snapshot.of(0, found.skills, found.origin), None, found.notices
    with look(source) as bank:
        snapshot = bank.snapshot() if version is None else bank.at(version)
        return snapshot, snapshot.version, bank.notices
