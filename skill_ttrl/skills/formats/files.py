"""Skills as files: our JSON, SkillRL's, Agent Skills folders and skill documents. `FORMATS` lists them.

Reading a file is all or nothing: one bad record refuses it, and the message says which. `json` and `agentskills` hold everything that is
known of a skill; SkillRL's and a `document` have no place for statistics, lineage and evidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skill_ttrl.errors import SkillBankError, did_you_mean
from skill_ttrl.registry import import_attribute, naming
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.folder import SCHEMA, is_bank, refusal
from skill_ttrl.skills.formats.agentskills import AGENTSKILLS, FILE, holds_skills
from skill_ttrl.skills.formats.document import DOCUMENT
from skill_ttrl.skills.formats.records import (
    SPELLINGS,
    FileFormat,
    FolderFormat,
    SkillFile,
    checked_origin,
    parsed,
    record_at,
    written,
)
from skill_ttrl.skills.formats.skillrl import SECTIONS, SKILLRL
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.storage.files import write_atomic, write_folder
from skill_ttrl.storage.jsonl import parse_json
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
                "Export it again with the version that wrote it, as agentskills."
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
    origin = {"origin": parse_json(snapshot.origin)} if snapshot.origin else {}
    content = {"schema": SCHEMA, "version": snapshot.version, **origin, "skills": list(map(_plain, snapshot))}
    return written(content)


def _plain(skill: Skill) -> dict[str, Any]:
    """A skill's fields; `extra` as the object that its text is, and only where there is one."""
    values = asdict(skill)
    return {**values, "extra": parse_json(skill.extra)} if values.pop("extra") else values


JSON = FileFormat("json", read_json, dump_json, (".json",))
FORMATS: Mapping[str, FileFormat | FolderFormat] = {each.name: each for each in (JSON, SKILLRL, DOCUMENT, AGENTSKILLS)}
"""Built-in formats by name; messages list them in this order."""
FILE_FORMATS = [each for each in FORMATS.values() if isinstance(each, FileFormat)]
SUFFIXES = {suffix: each for each in FILE_FORMATS for suffix in each.suffixes}


def find_format(name: str) -> FileFormat | FolderFormat:
    """The format of this name, or the user's own that `module:attribute` names.

    Raises:
        SkillBankError: there is no such format.
        ConfigError: the user's module cannot be imported or has no such attribute.
    """
    if name in FORMATS:
        return FORMATS[name]
    if ":" not in name:
        raise SkillBankError(f"Unknown format {name!r}.{did_you_mean(name, FORMATS)}")
    found = import_attribute(name, "format")
    if not isinstance(found, FileFormat | FolderFormat):
        raise SkillBankError(f"{name} is no format: expected a FileFormat or a FolderFormat, found {found!r}.")
    return found


def read_file(path: str | Path, format: str | None = None) -> SkillFile:
    """The skills of a file or folder, what it holds besides, and what was not taken.

    Args:
        path: the file, or a folder of the Agent Skills standard.
        format: how it is written, a name of `FORMATS` or `module:attribute`; None: by its suffix, SkillRL's JSON by what
            it holds, a folder by its SKILL.md.

    Raises:
        SkillBankError: it cannot be read, or a record is no skill: file and place are named.
    """
    path = Path(path)
    form = _format_of(path) if format is None else find_format(format)
    if isinstance(form, FolderFormat):
        with _naming(form):
            return form.read(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise refusal("read", path, error) from error
    except UnicodeDecodeError as error:
        raise SkillBankError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    if form is None:
        *others, last = FORMATS
        raise SkillBankError(
            f"The format of {path} is not clear from its name. Add --format {', '.join(others)} or {last}."
        )
    if form is JSON:
        form = _recognised(parsed(text, str(path))) or form
    with _naming(form):
        return form.read(text, str(path))


def holds_records(path: Path) -> bool:
    """True if a path holds skills in one of the formats: judged by its name, JSON by its content.

    A bank's folder holds none in this sense.
    """
    if path.is_dir():
        return holds_skills(path)
    form = _format_of(path)
    if form is not JSON:
        return form is not None
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return False  # whoever reads it says what is wrong
    if _recognised(content):
        return True
    if isinstance(content, dict):
        return isinstance(content.get("skills"), list)
    return isinstance(content, list) and (not content or _is_record(content[0]))


def format_of_target(path: str | Path, format: str | None = None) -> str:
    """The name of the format to write under this name: `format`, else by the name's ending.

    Raises:
        SkillBankError: the name says none, or there is no such format.
    """
    if format is not None:
        find_format(format)
        return format
    form = SUFFIXES.get(Path(path).suffix.lower())
    if form is None:
        raise SkillBankError(
            f"The name {path} does not say how to write it. End it in {', '.join(SUFFIXES)}, or say --format: "
            f"{', '.join(each.name for each in FILE_FORMATS)}, or {AGENTSKILLS.name} for a folder with a {FILE} for each skill."
        )
    return form.name


def write_skills(path: str | Path, snapshot: Snapshot, format: str | None = None) -> None:
    """Write a version's skills to a file (of a format that is a folder: to a new folder), whole or not at all.

    Raises:
        SkillBankError: it cannot be written, or its name does not say the format and none is given.
    """
    path, form = Path(path), find_format(format_of_target(path, format))
    with _naming(form):
        written = form.write(snapshot)
    try:
        if isinstance(written, str):
            write_atomic(path, written.encode())
        else:
            write_folder(path, {name: text.encode() for name, text in written.items()})
    except OSError as error:
        raise refusal("write", path, error) from error


def dump_skills(snapshot: Snapshot, format: str = "json") -> str:
    """A version's skills as text in one of the formats."""
    form = find_format(format)
    if isinstance(form, FolderFormat):
        raise SkillBankError(f"{format} is a folder with one folder for each skill: name it with --output.")
    with _naming(form):
        return form.write(snapshot)


def _naming(form: FileFormat | FolderFormat) -> AbstractContextManager[None]:
    """Name the user's own format where it raises; an error in ours is ours."""
    return nullcontext() if form in FORMATS.values() else naming(f"The format {form.name!r}")


def _recognised(content: Any) -> FileFormat | None:
    """The published format that a JSON file's content is of; None: ours."""
    return next((form for form in FILE_FORMATS if form.recognises and form.recognises(content)), None)


def _is_record(item: object) -> bool:
    """An object with the text of a skill and one more of its usual keys."""
    if not isinstance(item, dict) or item.keys() & {"task", "steps", "task_id", "problem"}:
        return False
    return bool(item.keys() & set(SPELLINGS["text"])) and bool(
        item.keys() & {"skill_id", "mistake_id", "title", "tier"}
    )


def _format_of(path: Path) -> FileFormat | FolderFormat | None:
    """Detect the format from the name of a path, or from the contents of a folder; None if the name does not determine it."""
    if path.is_dir() and not holds_skills(path):
        what = "a skill bank: name it where a BANK is asked for" if is_bank(path) else "a folder without skills"
        raise SkillBankError(
            f"{path} is {what}. A file of skills is expected, or a folder with {FILE} in it or in its folders."
        )
    return AGENTSKILLS if path.is_dir() or path.name == FILE else SUFFIXES.get(path.suffix.lower())
