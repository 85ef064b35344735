"""Our JSON and JSONL: every field of a skill; the first also holds what its bank began with.

json     {"schema": 1, "version": 12, "skills": [{...}, ...]}; a plain list of skills is read too
jsonl    one skill a line
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.folder import SCHEMA
from skill_ttrl.skills.formats.format import FileFormat
from skill_ttrl.skills.formats.json_layout import laid_out
from skill_ttrl.skills.formats.records import SECTIONS, SkillFile, checked_origin, parsed, record_at
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Skill


def read_json(text: str, where: str) -> SkillFile:
    """The skills of an object or a plain list, and the other fields of the object.

    Raises:
        SkillBankError: it was written under another schema, holds no skills, or a record is no skill.
    """
    content, origin, notices = parsed(text, where), "", tuple[str, ...]()
    if isinstance(content, dict):
        unknown = [name for name in content if name not in ("schema", "version", "origin", "skills")]
        notices = (f"not taken of {where}, no skills: {quote(', '.join(unknown))}",) if unknown else ()
        if content.get("schema", SCHEMA) != SCHEMA:
            raise SkillBankError(
                f"{where} was written under schema {content['schema']!r}, this version of Skill-TTRL reads {SCHEMA}. "
                "Export it again with the version that wrote it, as skillrl or markdown."
            )
        if content.get("origin"):
            origin = json.dumps(content["origin"])
            checked_origin(origin, f"{where}: 'origin'")
        content = content.get("skills")
    if not isinstance(content, list):
        raise SkillBankError(
            f"{where} holds no skills: expected a list, an object with 'skills', or SkillRL's sections "
            f"({', '.join(SECTIONS)})."
        )
    skills = [record_at(item, f"{where}, skills[{n}]", n) for n, item in enumerate(content)]
    return SkillFile(skills, origin, notices)


def dump_json(snapshot: Snapshot) -> str:
    """A version's skills, its number and its origin as one JSON object."""
    origin = {"origin": json.loads(snapshot.origin)} if snapshot.origin else {}
    content = {"schema": SCHEMA, "version": snapshot.version, **origin, "skills": list(map(_plain, snapshot))}
    return laid_out(content, {})


def _read_lines(text: str, where: str) -> SkillFile:
    found: list[Skill] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            found.append(record_at(parsed(line, where, number), f"{where}:{number}", len(found)))
    return SkillFile(found)


def _dump_lines(snapshot: Snapshot) -> str:
    return "".join(laid_out(_plain(skill), {"indent": None, "compact": True}) for skill in snapshot)


def _plain(skill: Skill) -> dict[str, Any]:
    """A skill's fields; `extra` as the object that its text is, and only where there is one."""
    values = asdict(skill)
    return {**values, "extra": json.loads(skill.extra)} if values.pop("extra") else values


JSON = FileFormat("json", read_json, dump_json, (".json",))
JSONL = FileFormat("jsonl", _read_lines, _dump_lines, (".jsonl",))
