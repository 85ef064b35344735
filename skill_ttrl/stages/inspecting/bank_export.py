"""`skillttrl skills export`: a bank's skills, or a file of episodes, as a file or folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.formats.files import dump_skills, format_of_target, write_skills
from skill_ttrl.skills.formats.skillrl_memory import NAME as MEMORIES
from skill_ttrl.skills.formats.skillrl_memory import dump_trajectories
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.stages.inspecting.bank_diff import skills_at
from skill_ttrl.stages.inspecting.inspect_bank import look
from skill_ttrl.storage.files import wrap_os_errors, write_new
from skill_ttrl.storage.jsonl import whole_lines
from skill_ttrl.types import Trajectory, first_problem, from_json


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


def holds_episodes(path: str | Path) -> bool:
    """True if a path is a file of trajectories, judging by its first line."""
    path = Path(path)
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with wrap_os_errors("read", path), path.open("rb") as stream:
        first = stream.readline()
    return b'"steps":' in first and b'"stop_reason":' in first


def episodes_as_memories(path: str | Path) -> tuple[str, list[str]]:
    """A file of trajectories as SkillRL's memories, and what should be read about it (a last line that is cut off).

    Raises:
        RunFolderError: it cannot be read.
        SkillBankError: a line of it is no trajectory.
    """
    notes: list[str] = []

    def trajectories() -> Iterator[Trajectory]:
        for where, line in whole_lines(Path(path), notes):
            try:
                yield from_json(Trajectory, line)
            except ValidationError as error:
                raise SkillBankError(f"{where} is no trajectory: {first_problem(error)}.") from None

    text, silent = dump_trajectories(trajectories())
    left_out = [f"{silent} episodes were left out: nothing was played in them"] if silent else []
    return text, [*notes, *left_out]


def export_text(source: str | Path, format: str | None = None, version: int | None = None) -> tuple[str, Sequence[str]]:
    """The skills of a bank, a run or a file as text, JSON where no format is named, and what was not taken.

    Raises:
        SkillBankError: they cannot be read, there is no such version, or the format is a folder.
    """
    if format == MEMORIES and holds_episodes(source):
        return episodes_as_memories(source)
    snapshot, _, notes = _read(Path(source), version)
    return dump_skills(snapshot, "json" if format is None else format), notes


def export(source: str | Path, output: str | Path, format: str | None = None, version: int | None = None) -> Exported:
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
    if output.exists():
        raise SkillBankError(f"{output} exists already. Choose another name or remove it first.")
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
