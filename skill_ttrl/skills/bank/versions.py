"""Looking at a bank: its present skills, its history, and any version of the past."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.bank.log import Log
from skill_ttrl.skills.bank.log_reader import replay
from skill_ttrl.skills.changes import difference, missing_error
from skill_ttrl.skills.snapshot import Snapshot, fits_type
from skill_ttrl.types import BankUpdate, Change, Skill

SUMMARY_SKILLS = 20
"""Most skills that `summary` lists."""


class VersionedSkills:
    """Skills by id and the log that they come from. Reading side of `SkillBank`."""

    _log: Log

    @property
    def version(self) -> int:
        """Number of updates so far; 0 for a new bank."""
        return self._log.current.version

    @property
    def notices(self) -> Sequence[str]:
        """Messages for the user about problems found at opening, such as a torn last line."""
        return tuple(self._log.notices)

    def snapshot(self) -> Snapshot:
        """The present version, frozen. The same object until the bank changes here, or is read anew (`refresh`)."""
        return self._log.current

    def refresh(self) -> Snapshot:
        """The newest version: of a shared bank with what others have added since the last call or change."""
        self._log.refresh()
        return self.snapshot()

    def get(self, skill_id: str) -> Skill | None:
        """The skill of this id, or None."""
        return self.snapshot().get(skill_id)

    def __len__(self) -> int:
        return len(self.snapshot())

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.snapshot())

    def __contains__(self, skill_id: object) -> bool:
        return skill_id in self.snapshot()

    @property
    def size(self) -> int:
        """Alias of `len(bank)` (the first Skill-TTRL)."""
        return len(self)

    @property
    def all_skills(self) -> list[Skill]:
        """Alias of `list(bank)`."""
        return list(self)

    @property
    def task_types(self) -> list[str]:
        """Types of task that the skills are for, sorted; skills for any type add none."""
        return sorted({skill.task_type for skill in self} - {""})

    def summary(self, task_type: str | None = None) -> str:
        """One line a skill, at most `SUMMARY_SKILLS` of them, of all skills or of those that a task of this type may be shown."""
        skills = [skill for skill in self if fits_type(skill, task_type)]
        if not skills:
            return "(Skill bank is empty)"
        lines = [f"Skill Bank ({len(skills)} skills):"]
        lines += [
            f"  [{skill.id}] {skill.title} (type={skill.task_type or 'any'})" for skill in skills[:SUMMARY_SKILLS]
        ]
        more = len(skills) - SUMMARY_SKILLS
        return "\n".join([*lines, f"  ... and {more} more"] if more > 0 else lines)

    def history(self, after: int = 0) -> list[BankUpdate]:
        """All updates in order, or those that came after a version."""
        return list(self._log.updates(after))

    def at(self, version: int) -> Snapshot:
        """Any version, rebuilt from the log; 0 is the empty bank.

        Raises:
            SkillBankError: there is no such version.
        """
        if version == self.version:
            return self.snapshot()
        first = self._log.first
        if not first.version <= version < self.version:
            raise SkillBankError(
                f"There is no version {version} of this bank: it has {first.version} to {self.version}. "
                "See them with: skillttrl skills show BANK --history"
            )
        return replay(first, islice(self._log.updates(), version - first.version))

    def diff(self, a: int, b: int) -> tuple[Change, ...]:
        """The changes that make version `a` into version `b`, net, by id."""
        return difference(self.at(a), self.at(b))

    def _need(self, skill_id: str) -> Skill:
        """The skill, or an error that says what became of it."""
        found = self.get(skill_id)
        if found is None:
            raise missing_error(skill_id, self.snapshot(), self._log.updates())
        return found
