"""`skillttrl skills export`: a bank's skills as a file or folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from skill_ttrl.data.operators import bank_family
from skill_ttrl.errors import SkillBankError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.folder import is_bank
from skill_ttrl.skills.formats.files import dump_skills, format_of_target, read_file, write_skills
from skill_ttrl.skills.formats.records import SkillFile
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.stages.inspecting.inspect_bank import look


def skills_at(path: str | Path, format: str | None = None) -> tuple[SkillFile, int | None]:
    """The skills at a path and the bank's version: a bank's folder, a run that has one, a file, or `synthetic:operators` (None: no version).

    Raises:
        SkillBankError: nothing is there, or it holds no skills.
    """
    if str(path).startswith("synthetic:"):
        return SkillFile(bank_family(str(path).removeprefix("synthetic:"))), None
    path = Path(path)
    if not path.exists():
        raise SkillBankError(f"There is nothing at {path}. Name a bank's folder, a run, or a file of skills.")
    if format is None and (is_bank(path) or RunFolder.exists(path)):
        with look(path) as bank:
            now = bank.snapshot()
            return SkillFile(list(now), now.origin, tuple(bank.notices)), now.version
    return read_file(path, format), None


def export_text(source: str | Path, format: str | None = None) -> tuple[str, Sequence[str]]:
    """The skills of a bank, a run or a file as text, JSON where no format is named, and what was not taken.

    Raises:
        SkillBankError: they cannot be read, or the format is a folder.
    """
    found, version = skills_at(source)
    return dump_skills(Snapshot.of(version or 0, found.skills, found.origin), format or "json"), found.notices


def export(
    source: str | Path, output: str | Path, format: str | None = None
) -> tuple[Snapshot, int | None, Sequence[str]]:
    """Write the skills of a bank, a run or a file to a new file or folder.

    Args:
        source: a bank's folder, a run that has one, or a file of skills.
        output: what to write; it must not be there.
        format: how; None: by the name's ending.

    Returns:
        What was written, the bank's version (None for a file), and notes on what was left out.

    Raises:
        SkillBankError: the name does not say the format, something is there, or it cannot be read or written.
    """
    output, form = Path(output), format_of_target(output, format)
    if output.exists():
        raise SkillBankError(f"{output} exists already. Choose another name or remove it first.")
    found, version = skills_at(source)
    snapshot = Snapshot.of(version or 0, found.skills, found.origin)
    write_skills(output, snapshot, form)
    return snapshot, version, found.notices
