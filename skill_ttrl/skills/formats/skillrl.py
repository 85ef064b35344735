"""SkillRL's skill files: three sections, read without loss and written back equal.

    {"general_skills": [{"skill_id", "title", "principle", "when_to_apply"}, ...],
     "task_specific_skills": {type: [...]},
     "common_mistakes": [{"mistake_id", "description", "why_it_happens", "how_to_avoid"}, ...],
     "metadata": {...}}

A skill keeps what its record says and we have no field for in `Skill.extra`; the bank keeps the rest of the file (order,
other keys, metadata, layout) in `Snapshot.origin`. So an untouched bank is written as the very file it came from, and after
a change only that change differs: each record is filled with the skill's present words, skills that are gone are left out,
new ones follow behind the others. A skill whose tier or type has changed moves to the section that tells it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.extra_fields import ExtraFields, parse_extra
from skill_ttrl.skills.formats.format import FileFormat
from skill_ttrl.skills.formats.json_layout import laid_out, layout_of
from skill_ttrl.skills.formats.ours import read_json
from skill_ttrl.skills.formats.records import (
    KNOWN,
    OWN,
    SECTIONS,
    SPELLINGS,
    SkillFile,
    origin_of,
    parsed,
    record_at,
    skill_from_dict,
)
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Skill, Tier
from skill_ttrl.types.skills import PARENT, STATISTICS

NAME = "skillrl"
GENERAL, BY_TYPE, MISTAKES = SECTIONS
NO_TYPE = "other"
"""List of the skills for one type that name none."""
_ORDINARY = {"skill_id": "id", "title": "title", "principle": "text", "when_to_apply": "when_to_apply"}
_MISTAKE = {"mistake_id": "id", "description": "title", "why_it_happens": "when_to_apply", "how_to_avoid": "text"}
_WORDS = ("id", "title", "text", "when_to_apply")
_NOT_COMPARED = {"tier", "task_type", "flags", "extra"}


@dataclass(frozen=True, slots=True)
class Place:
    """A list of records in a file."""

    section: str
    task_type: str = ""

    @property
    def tier(self) -> Tier:
        """Default tier of a record in this list."""
        tiers: dict[str, Tier] = {GENERAL: "general", MISTAKES: "mistake"}
        return tiers.get(self.section, "task")

    @property
    def keys(self) -> Mapping[str, str]:
        """Keys of a record, each mapped to our field."""
        return _MISTAKE if self.section == MISTAKES else _ORDINARY

    def __str__(self) -> str:
        return f"{self.section}.{self.task_type}" if self.section == BY_TYPE else self.section


def is_skillrl(content: object) -> bool:
    """True if JSON content is in this format."""
    return isinstance(content, dict) and any(section in content for section in SECTIONS)


def read_skillrl(text: str, where: str) -> SkillFile:
    """The skills of a file, in its order; of one that is no object, a plain list of skills.

    Args:
        text: the file.
        where: its name, for messages.

    Raises:
        SkillBankError: a section or a record is of another form; nothing is taken then.
    """
    content = parsed(text, where)
    if not isinstance(content, dict):
        return read_json(text, where)
    skills: list[Skill] = []
    names: dict[Place, list[str]] = {}
    for place, items in _lists(content, where):
        names[place] = []
        for number, item in enumerate(items):
            at = f"{where}, {place}[{number}]"
            defaults = {"tier": place.tier, "task_type": place.task_type, "source": NAME}
            skill = record_at(item, at, len(skills), **defaults)
            skills.append(replace(skill, extra=_left_over(item, skill, place)))
            names[place].append(skill.id)
    rest = dict(content)
    for section in SECTIONS:
        if section in rest:
            by_type = {name: names[Place(BY_TYPE, name)] for name in content.get(BY_TYPE, {})}
            rest[section] = by_type if section == BY_TYPE else names[Place(section)]
    origin = {"format": NAME, "content": rest, "layout": layout_of(text, content)}
    return SkillFile(skills, json.dumps(origin))


def dump_skillrl(snapshot: Snapshot) -> str:
    """A version's skills as such a file."""
    origin = origin_of(snapshot, NAME, dict)
    metadata = {"source": "skill-ttrl", "bank_version": snapshot.version}
    fresh = {GENERAL: [], BY_TYPE: {}, MISTAKES: [], "metadata": metadata}
    content: dict[str, Any] = dict(origin["content"]) if origin else fresh
    left = dict(snapshot.skills)

    def filled(ids: list[Any], place: Place) -> list[dict[str, Any]]:
        found = []
        for skill_id in map(str, ids):
            record = _rebuilt(left[skill_id], place) if skill_id in left else None
            if record is not None:
                found.append(record)
                del left[skill_id]
        return found

    for place, ids in list(_lists(content, "the bank's origin")):
        if place.section == BY_TYPE:
            content[BY_TYPE] = {**content[BY_TYPE], place.task_type: filled(ids, place)}
        elif place.section in content:
            content[place.section] = filled(ids, place)
    for skill in left.values():
        place = _own_place(skill)
        if place.section == BY_TYPE:
            content.setdefault(BY_TYPE, {}).setdefault(place.task_type, []).append(_plain(skill, place))
        else:
            content.setdefault(place.section, []).append(_plain(skill, place))
    return laid_out(content, origin.get("layout", {}))


def _lists(content: Mapping[str, Any], where: str) -> Iterator[tuple[Place, list[Any]]]:
    by_type = content.get(BY_TYPE, {})
    if not isinstance(by_type, dict):
        raise SkillBankError(f"{where}: {BY_TYPE!r} is an object of lists by task type, found {quote(by_type)}.")
    found = [(Place(GENERAL), content.get(GENERAL, []))]
    found += [(Place(BY_TYPE, name), items) for name, items in by_type.items()]
    found += [(Place(MISTAKES), content.get(MISTAKES, []))]
    for place, items in found:
        if not isinstance(items, list):
            raise SkillBankError(f"{where}: {str(place)!r} is a list of skills, found {quote(items)}.")
        yield place, items


def _own_place(skill: Skill) -> Place:
    """Return the list that encodes a skill's tier and type. A type that the list does not encode is stored in the record."""
    if skill.tier == "task":
        return Place(BY_TYPE, skill.task_type or NO_TYPE)
    return Place(GENERAL if skill.tier == "general" else MISTAKES)


def _usual(skill: Skill, place: Place) -> dict[str, Any]:
    """The record of a skill that has nothing in `extra`."""
    beside = {} if skill.task_type == place.task_type else {"task_type": skill.task_type}
    return {**{key: getattr(skill, name) for key, name in place.keys.items()}, **beside}


def _plain(skill: Skill, place: Place) -> dict[str, Any]:
    unknown = {key: value for key, value in parse_extra(skill.extra).fields.items() if key not in KNOWN}
    return {**_usual(skill, place), **unknown}


def _left_over(item: Mapping[str, Any], skill: Skill, place: Place) -> str:
    """Return the parts of a record that `_usual` would drop, or write in another form or order, as the text of `Skill.extra`."""
    usual = _usual(skill, place)
    unknown = {key: value for key, value in item.items() if key not in KNOWN}
    given = {
        key: value
        for key, value in item.items()
        if key in KNOWN and not (key in usual and json.dumps(usual[key]) == json.dumps(value))
    }
    keys = () if list(item) == [*usual, *unknown] else tuple(item)
    return ExtraFields(unknown, keys, given).text()


def _rebuilt(skill: Skill, place: Place) -> dict[str, Any] | None:
    """Rebuild the original record with the skill's current values; None if its tier or type no longer fits this list."""
    extra, usual = parse_extra(skill.extra), _usual(skill, place)
    parts = {**usual, **extra.fields, **extra.given}
    record = {key: parts[key] for key in (extra.keys or parts) if key in parts}
    record.update({key: value for key, value in extra.fields.items() if key not in record})
    found = _read_again(record, skill, place)
    if found is None or (found.tier, found.task_type) != (skill.tier, skill.task_type):
        return None
    compared = [*_WORDS, *sorted((OWN & record.keys()) - _NOT_COMPARED - set(_WORDS))]
    for name in compared:
        if getattr(found, name) != getattr(skill, name):
            record[_deciding(record, name, place)] = _json_value(skill, name)
    record |= _counted(record, found, skill)
    again = _read_again(record, skill, place)
    if again is None or any(getattr(again, name) != getattr(skill, name) for name in compared):
        return _plain(skill, place) if _own_place(skill) == place else None
    return record


def _counted(record: Mapping[str, Any], found: Skill, skill: Skill) -> dict[str, Any]:
    """Present values of Skill-TTRL's keys for statistics and parent, where the record has them and says something else."""
    new: dict[str, Any] = {}
    if "stats" not in record:
        now = {key: getattr(skill.stats, name) for key, name in STATISTICS.items()}
        was = {key: getattr(found.stats, name) for key, name in STATISTICS.items()}
        new = {key: value for key, value in now.items() if key in record and value != was[key]}
    if PARENT in record and "parents" not in record and found.parents != skill.parents:
        new[PARENT] = skill.parents[-1] if skill.parents else None
    return new


def _read_again(record: Mapping[str, Any], skill: Skill, place: Place) -> Skill | None:
    """Parse a record as a reader would; None if it is no valid skill, since `extra` may come from any file."""
    try:
        return skill_from_dict(record, tier=place.tier, task_type=place.task_type, source=skill.source, new_id=skill.id)
    except SkillBankError:
        return None


def _deciding(record: Mapping[str, Any], name: str, place: Place) -> str:
    """The key that a reader takes a field from; where there is none, the usual one."""
    usual = next((key for key, field in place.keys.items() if field == name), name)
    if name == "title" and place.section == MISTAKES and "title" not in record:
        return usual
    return next((key for key in (name, *SPELLINGS.get(name, ())) if record.get(key) is not None), usual)


def _json_value(skill: Skill, name: str) -> Any:
    value = getattr(skill, name)
    return asdict(value) if name == "stats" else list(value) if isinstance(value, tuple) else value


SKILLRL = FileFormat(NAME, read_skillrl, dump_skillrl, recognises=is_skillrl)
