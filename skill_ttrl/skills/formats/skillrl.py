"""SkillRL's skill files: three sections, by tier.

    {"general_skills": [{"skill_id", "title", "principle", "when_to_apply"}, ...],
     "task_specific_skills": {type: [...]},
     "common_mistakes": [{"mistake_id", "description", "why_it_happens", "how_to_avoid"}, ...],
     "metadata": {...}}

Keys of a record that we have no field for stay in `Skill.extra` and are written back. Statistics, lineage and evidence have no place there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.extra_fields import parse_extra
from skill_ttrl.skills.formats.records import KNOWN, FileFormat, SkillFile, parsed, record_at, written
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Skill, Tier

NAME = "skillrl"
GENERAL, BY_TYPE, MISTAKES = SECTIONS = ("general_skills", "task_specific_skills", "common_mistakes")
NO_TYPE = "other"
"""List of the skills for one type that name none."""
_ORDINARY = {"skill_id": "id", "title": "title", "principle": "text", "when_to_apply": "when_to_apply"}
_MISTAKE = {"mistake_id": "id", "description": "title", "why_it_happens": "when_to_apply", "how_to_avoid": "text"}


def is_skillrl(content: object) -> bool:
    """True if JSON content is in this format."""
    return isinstance(content, dict) and any(section in content for section in SECTIONS)


def read_skillrl(text: str, where: str) -> SkillFile:
    """The skills of a file, in its order.

    Raises:
        SkillBankError: a section or a record is of another form; nothing is taken then.
    """
    content = parsed(text, where)
    if not is_skillrl(content):
        raise SkillBankError(f"{where} has none of SkillRL's sections ({', '.join(SECTIONS)}). Nothing was imported.")
    skills: list[Skill] = []
    for place, kind, tier, items in _lists(content, where):
        for number, item in enumerate(items):
            at = f"{where}, {place}[{number}]"
            skills.append(record_at(item, at, len(skills), tier=tier, task_type=kind, source=NAME))
    others = [key for key in content if key not in SECTIONS]
    return SkillFile(
        skills, notices=(f"not taken of {where}, no skills: {quote(', '.join(others))}",) if others else ()
    )


def dump_skillrl(snapshot: Snapshot) -> str:
    """A version's skills as such a file."""
    general, mistakes = list[dict[str, Any]](), list[dict[str, Any]]()
    by_type: dict[str, list[dict[str, Any]]] = {}
    for skill in snapshot:
        if skill.tier == "task":
            by_type.setdefault(skill.task_type or NO_TYPE, []).append(_record(skill, skill.task_type or NO_TYPE))
        else:
            (general if skill.tier == "general" else mistakes).append(_record(skill, ""))
    metadata = {"source": "skill-ttrl", "bank_version": snapshot.version}
    return written({GENERAL: general, BY_TYPE: by_type, MISTAKES: mistakes, "metadata": metadata})


def _lists(content: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, Tier, list[Any]]]:
    """(place, task type, tier, records) of each list in a file."""
    by_type = content.get(BY_TYPE, {})
    if not isinstance(by_type, dict):
        raise SkillBankError(f"{where}: {BY_TYPE!r} is an object of lists by task type, found {quote(by_type)}.")
    found: list[tuple[str, str, Tier, Any]] = [(GENERAL, "", "general", content.get(GENERAL, []))]
    found += [(f"{BY_TYPE}.{name}", name, "task", items) for name, items in by_type.items()]
    found += [(MISTAKES, "", "mistake", content.get(MISTAKES, []))]
    for place, kind, tier, items in found:
        if not isinstance(items, list):
            raise SkillBankError(f"{where}: {place!r} is a list of skills, found {quote(items)}.")
        yield place, kind, tier, items


def _record(skill: Skill, kind: str) -> dict[str, Any]:
    """A skill in the keys of its section, its type where the section does not say it, and what else its record said."""
    keys = _MISTAKE if skill.tier == "mistake" else _ORDINARY
    record = {key: getattr(skill, name) for key, name in keys.items()}
    record |= {} if skill.task_type == kind else {"task_type": skill.task_type}
    return record | {key: value for key, value in parse_extra(skill.extra).items() if key not in KNOWN}


SKILLRL = FileFormat(NAME, read_skillrl, dump_skillrl, recognises=is_skillrl)
