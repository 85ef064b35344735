"""A bank at one version: a frozen value. Retrieval, prompts and merging see a snapshot, never a bank that changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from skill_ttrl.types import Change, Skill


@dataclass(frozen=True)
class Snapshot:
    """All skills of one version, by id in sorted order."""

    version: int = 0
    skills: Mapping[str, Skill] = field(default_factory=lambda: MappingProxyType({}))
    origin: str = ""
    """Content of the imported file that the bank started from, besides its skills (their order, its metadata, its layout):
    a JSON object as text, empty if there is none. Used only to write such a file again."""

    @classmethod
    def of(cls, version: int, skills: Iterable[Skill], origin: str = "") -> Snapshot:
        """A snapshot of these skills; a later one of the same id counts."""
        by_id = {skill.id: skill for skill in skills}
        return cls(version, MappingProxyType({key: by_id[key] for key in sorted(by_id)}), origin)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a list of skills: the view that makes it frozen cannot be pickled."""
        return Snapshot.of, (self.version, tuple(self), self.origin)

    def __len__(self) -> int:
        return len(self.skills)

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.skills.values())

    def __contains__(self, skill_id: object) -> bool:
        return skill_id in self.skills

    def get(self, skill_id: str) -> Skill | None:
        """The skill of this id, or None."""
        return self.skills.get(skill_id)

    def changed(self, version: int, changes: Iterable[Change], origin: str | None = None) -> Snapshot:
        """The snapshot after these changes; `origin` None leaves that as it was."""
        skills = dict(self.skills)
        for change in changes:
            if change.before is not None:
                skills.pop(change.before.id, None)
            if change.after is not None:
                skills[change.after.id] = change.after
        return Snapshot.of(version, skills.values(), self.origin if origin is None else origin)


def fits_type(skill: Skill, task_type: str | None) -> bool:
    """True if a task of this type may be shown the skill: it is for the type, for any, or general. None or empty: any task."""
    return not task_type or skill.tier == "general" or skill.task_type in ("", task_type)
