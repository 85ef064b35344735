"""Skills as files: our JSON, SkillRL's, Agent Skills folders and skill documents. `FORMATS` lists them.

Reading a file is all or nothing: one bad record refuses it, and the message names the record. `json` and `agentskills` store
everything about a skill; SkillRL's files and documents have no place for statistics, lineage and evidence.

SkillRL's files have three sections, by tier:

    {"general_skills": [{"skill_id", "title", "principle", "when_to_apply"}, ...],
     "task_specific_skills": {type: [...]},
     "common_mistakes": [{"mistake_id", "description", "why_it_happens", "how_to_avoid"}, ...],
     "metadata": {...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skill_ttrl.errors import SkillBankError, did_you_mean
from skill_ttrl.registry import import_attribute, naming
from skill_ttrl.skills.changes import parse_extra, quote
from skill_ttrl.skills.folder import SCHEMA, is_bank, refusal
from skill_ttrl.skills.formats import agentskills
from skill_ttrl.skills.formats.agentskills import dump_folders, holds_skills, read_agentskills
from skill_ttrl.skills.formats.document import DOCUMENT
from skill_ttrl.skills.formats.records import (
    KNOWN,
    SPELLINGS,
    FileFormat,
    SkillFile,
    decoded,
    parsed,
    record_at,
    written,
)
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.storage.files import write_atomic, write_folder
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Skill, Tier

GENERAL, BY_TYPE, MISTAKES = SECTIONS = ("general_skills", "task_specific_skills", "common_mistakes")
NO_TYPE = "other"
"""List of the skills for one type that name none, in SkillRL's files."""
_ORDINARY = {"skill_id": "id", "title": "title", "principle": "text", "when_to_apply": "when_to_apply"}
_MISTAKE = {"mistake_id": "id", "description": "title", "why_it_happens": "when_to_apply", "how_to_avoid": "text"}


def read_json(text: str, where: str) -> SkillFile:
    """The skills of an object or a plain list, and the other fields of the object; SkillRL's files too.

    Raises:
        SkillBankError: it was written under another schema, contains no skills, or a record is not a skill.
    """
    content, notices = parsed(text, where), tuple[str, ...]()
    if is_skillrl(content):
        return read_skillrl(text, where)
    if isinstance(content, dict):
        notices = _not_taken(content, ("schema", "version", "skills"), where)
        if content.get("schema", SCHEMA) != SCHEMA:
            raise SkillBankError(
                f"{where} was written under schema {content['schema']!r}; this version of Skill-TTRL reads {SCHEMA}. "
                "Export it again, as agentskills, with the version that wrote it."
            )
        content = content.get("skills")
    if not isinstance(content, list):
        raise SkillBankError(
            f"{where} contains no skills: expected a list, an object with 'skills', or SkillRL's sections "
            f"({', '.join(SECTIONS)})."
        )
    skills = [record_at(item, f"{where}, skills[{n}]", n) for n, item in enumerate(content)]
    return SkillFile(skills, notices=notices)


def dump_json(snapshot: Snapshot) -> str:
    """A version's skills and its number as one JSON object."""
    return written({"schema": SCHEMA, "version": snapshot.version, "skills": list(map(_plain, snapshot))})


def _plain(skill: Skill) -> dict[str, Any]:
    """A skill's fields; `extra` as the object that its text is, and only if there is one."""
    values = asdict(skill)
    return {**values, "extra": parse_json(skill.extra)} if values.pop("extra") else values


def is_skillrl(content: object) -> bool:
    """True if JSON content is one of SkillRL's files."""
    return isinstance(content, dict) and any(section in content for section in SECTIONS)


def read_skillrl(text: str, where: str) -> SkillFile:
    """The skills of one of SkillRL's files, in its order.

    Raises:
        SkillBankError: a section or a record has another form; nothing is imported then.
    """
    content = parsed(text, where)
    if not is_skillrl(content):
        raise SkillBankError(f"{where} has none of SkillRL's sections ({', '.join(SECTIONS)}). Nothing was imported.")
    by_type = content.get(BY_TYPE, {})
    if not isinstance(by_type, dict):
        raise SkillBankError(f"{where}: {BY_TYPE!r} must be an object of lists by task type, found {quote(by_type)}.")
    lists: list[tuple[str, str, Tier, Any]] = [(GENERAL, "", "general", content.get(GENERAL, []))]
    lists += [(f"{BY_TYPE}.{name}", name, "task", items) for name, items in by_type.items()]
    lists.append((MISTAKES, "", "mistake", content.get(MISTAKES, [])))
    skills: list[Skill] = []
    for place, kind, tier, items in lists:
        if not isinstance(items, list):
            raise SkillBankError(f"{where}: {place!r} must be a list of skills, found {quote(items)}.")
        for number, item in enumerate(items):
            at = f"{where}, {place}[{number}]"
            skills.append(record_at(item, at, len(skills), tier=tier, task_type=kind, source="skillrl"))
    return SkillFile(skills, notices=_not_taken(content, SECTIONS, where))


def dump_skillrl(snapshot: Snapshot) -> str:
    """A version's skills as one of SkillRL's files, with the unknown keys that their records came with."""
    general, mistakes = list[dict[str, Any]](), list[dict[str, Any]]()
    by_type: dict[str, list[dict[str, Any]]] = {}
    for skill in snapshot:
        kind = skill.task_type or NO_TYPE if skill.tier == "task" else ""
        keys = _MISTAKE if skill.tier == "mistake" else _ORDINARY
        record = {key: getattr(skill, name) for key, name in keys.items()}
        record |= {} if skill.task_type == kind else {"task_type": skill.task_type}
        record |= {key: value for key, value in parse_extra(skill.extra).items() if key not in KNOWN}
        section = general if skill.tier == "general" else mistakes
        (by_type.setdefault(kind, []) if skill.tier == "task" else section).append(record)
    metadata = {"source": "skill-ttrl", "bank_version": snapshot.version}
    return written({GENERAL: general, BY_TYPE: by_type, MISTAKES: mistakes, "metadata": metadata})


def _not_taken(content: Mapping[str, Any], known: tuple[str, ...], where: str) -> tuple[str, ...]:
    others = [name for name in content if name not in known]
    return (f"not imported from {where}: {quote(', '.join(others))}",) if others else ()


JSON = FileFormat("json", read_json, dump_json)
FILE_FORMATS: Mapping[str, FileFormat] = {
    each.name: each for each in (JSON, FileFormat("skillrl", read_skillrl, dump_skillrl), DOCUMENT)
}
FORMATS = (*FILE_FORMATS, agentskills.NAME)
"""Names of the built-in formats; messages list them in this order."""
SUFFIXES = {".json": JSON, ".md": DOCUMENT, ".markdown": DOCUMENT}


def find_format(name: str) -> FileFormat | None:
    """The format of this name, or the user's own that `module:attribute` names; None for folders of Agent Skills.

    Raises:
        SkillBankError: there is no such format.
        ConfigError: the user's module cannot be imported or has no such attribute.
    """
    if name in FORMATS:
        return FILE_FORMATS.get(name)
    if ":" not in name:
        raise SkillBankError(f"Unknown format {name!r}.{did_you_mean(name, FORMATS)}")
    found = import_attribute(name, "format")
    if not isinstance(found, FileFormat):
        raise SkillBankError(f"{name} is not a format: expected a FileFormat, found {found!r}.")
    return found


def read_file(path: str | Path, format: str | None = None) -> SkillFile:
    """The skills of a file or folder, its other content, and notices on what was not imported.

    Args:
        path: the file, or a folder of the Agent Skills standard.
        format: a name of `FORMATS` or `module:attribute`; None: by its suffix, SkillRL's JSON by its content, a folder by its
            SKILL.md.

    Raises:
        SkillBankError: it cannot be read, or a record is not a skill: the message names file and place.
    """
    path = Path(path)
    if format == agentskills.NAME or (format is None and _is_folder(path)):
        return read_agentskills(path)
    form = SUFFIXES.get(path.suffix.lower()) if format is None else find_format(format)
    try:
        text = decoded(path.read_bytes(), path)
    except OSError as error:
        raise refusal("read", path, error) from error
    if form is None:
        raise SkillBankError(
            f"The format of {path} is unclear from its name. Add --format with one of: {', '.join(FORMATS)}."
        )
    with _naming(form):
        return form.read(text, str(path))


def holds_records(path: Path) -> bool:
    """True if a path contains skills in one of the formats: judged by its name, JSON by its content.

    A bank's folder contains none in this sense.
    """
    if path.is_dir() or path.name == agentskills.FILE:
        return holds_skills(path if path.is_dir() else path.parent)
    form = SUFFIXES.get(path.suffix.lower())
    if form is not JSON:
        return form is not None
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return False  # whoever reads it reports the problem
    if isinstance(content, dict):
        return is_skillrl(content) or isinstance(content.get("skills"), list)
    return isinstance(content, list) and (not content or _is_record(content[0]))


def format_of_target(path: str | Path, format: str | None = None) -> str:
    """The name of the format to write under this name: `format`, else by the name's ending.

    Raises:
        SkillBankError: the name does not tell, or there is no such format.
    """
    if format is not None:
        find_format(format)
        return format
    form = SUFFIXES.get(Path(path).suffix.lower())
    if form is None:
        raise SkillBankError(
            f"The name {path} does not imply a format. End it in {', '.join(SUFFIXES)}, or add --format with one of: "
            f"{', '.join(FORMATS)}."
        )
    return form.name


def write_skills(path: str | Path, snapshot: Snapshot, format: str | None = None) -> None:
    """Write a version's skills to a file (`agentskills`: to a new folder), whole or not at all.

    Raises:
        SkillBankError: it cannot be written, or its name does not tell the format and none is given.
    """
    path, name = Path(path), format_of_target(path, format)
    try:
        if name == agentskills.NAME:
            write_folder(path, {file: text.encode() for file, text in dump_folders(snapshot).items()})
        else:
            write_atomic(path, dump_skills(snapshot, name).encode())
    except OSError as error:
        raise refusal("write", path, error) from error


def dump_skills(snapshot: Snapshot, format: str = "json") -> str:
    """A version's skills as text in one of the formats."""
    form = find_format(format)
    if form is None:
        raise SkillBankError(f"{format} is a folder with one folder for each skill: name it with --output.")
    with _naming(form):
        return form.write(snapshot)


def _naming(form: FileFormat) -> AbstractContextManager[None]:
    """Name the user's own format in its errors; an error in ours is ours."""
    return nullcontext() if form in FILE_FORMATS.values() else naming(f"The format {form.name!r}")


def _is_record(item: object) -> bool:
    """An object with the text of a skill and one more of its usual keys."""
    if not isinstance(item, dict) or item.keys() & {"task", "steps", "task_id", "problem"}:
        return False
    return bool(item.keys() & set(SPELLINGS["text"])) and bool(
        item.keys() & {"skill_id", "mistake_id", "title", "tier"}
    )


def _is_folder(path: Path) -> bool:
    """True for a folder of Agent Skills or a SKILL.md; refuses other folders."""
    if path.is_dir() and not holds_skills(path):
        what = "a skill bank: pass it as BANK" if is_bank(path) else "a folder without skills"
        raise SkillBankError(f"{path} is {what}. Expected a file of skills, or a folder with {agentskills.FILE} files.")
    return path.is_dir() or path.name == agentskills.FILE
