"""`skillttrl skills export`: a bank's skills, or a file of episodes, as a file or folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.snapshot import Snapshot
from skill_ttrl.skills.formats.files import Format, dump_skills, format_of_target, write_skills
from skill_ttrl.skills.formats.skillrl_memory import NAME as MEMORIES
from skill_ttrl.stages.reports.bank_diff import episodes_as_memories, holds_episodes, skills_at
from skill_ttrl.stages.reports.inspect_bank import look, refuse_existing
from skill_ttrl.storage.files import write_new


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export."""

    source: str
    version: int | None
    """The bank's version; None for a file."""
    skills: int | None
    """None for a file of episodes."""
    format: str
    output: str
    notes: Sequence[str] = ()
    """Notes on what was left out."""


def export_text(
    source: str | Path, format: Format | None = None, version: int | None = None
) -> tuple[str, Sequence[str]]:
    """The skills of a bank, a run or a file as text, JSON where no format is named, and what was not taken.

    Raises:
        SkillBankError: they cannot be read, there is no such version, or the format is a folder.
    """
    if format == MEMORIES and holds_episodes(source):
        return episodes_as_memories(source)
    snapshot, _, notes = _read(Path(source), version)
    return dump_skills(snapshot, format or "json"), notes


def export(
    source: str | Path, output: str | Path, format: Format | None = None, version: int | None = None
) -> Exported:
    """Write the skills of a bank, a run or a file (for `skillrl-memory` also episodes) to a new file or folder.

    Args:
        source: a bank's folder, a run that has one, a file of skills, or a file of episodes.
        output: what to write; it must not be there.
        format: how; None: by the name's ending.
        version: an older version of the bank.

    Raises:
        SkillBankError: the name does not say the format, something is there, or it cannot be read or written.
    """
    source, output = Path(source), Path(output)
    form = format_of_target(output, format)
    refuse_existing(output)
    if form == MEMORIES and holds_episodes(source):
        text, said = episodes_as_memories(source)
        write_new(output, text)
        return Exported(str(source), None, None, form, str(output), said)
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
