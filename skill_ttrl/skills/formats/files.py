"""Skills as files: our JSON, JSONL and Markdown, and the files of published systems.

    json            {"schema": 1, "version": 12, "skills": [{...}, ...]}; a plain list of skills is read too
    jsonl           one skill a line
    markdown        to read and edit by hand: `skills/formats/markdown.py`
    skillrl         SkillRL's three sections and metadata: `skills/formats/skillrl.py`
    skillrl-memory  SkillRL's memories of single episodes: `skills/formats/skillrl_memory.py`
    agentskills     a folder with a SKILL.md for each skill: `skills/formats/agentskills.py`

Reading is all or nothing: one bad record refuses the file, and the message says which. `json`, `jsonl`, `markdown` and
`agentskills` hold everything that is known of a skill; `json` also what its bank began with. SkillRL's have no place for
statistics, lineage and evidence, and hold everything of a file of theirs that was read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast, get_args

from skill_ttrl.errors import SkillBankError, did_you_mean
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.folder import SCHEMA, is_bank, refusal
from skill_ttrl.skills.formats import agentskills, agentskills_read
from skill_ttrl.skills.formats import skillrl as skillrl_format
from skill_ttrl.skills.formats import skillrl_memory as memory_format
from skill_ttrl.skills.formats.json_layout import laid_out
from skill_ttrl.skills.formats.records import SPELLINGS, SkillFile, checked_origin, parsed, record_at
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.storage.files import write_atomic, write_folder
from skill_ttrl.types import Skill

Format = Literal["json", "jsonl", "skillrl", "skillrl-memory", "markdown", "agentskills"]
FORMATS: tuple[str, ...] = get_args(Format)
SUFFIXES: Mapping[str, Format] = {".json": "json", ".jsonl": "jsonl", ".md": "markdown", ".markdown": "markdown"}


def known_format(name: str | None) -> Format | None:
    """The format of this name; None stays None.

    Raises:
        SkillBankError: there is no such format.
    """
    for form in get_args(Format):
        if form == name:
            return cast(Format, form)
    if name is not None:
        raise SkillBankError(f"Unknown format {name!r}.{did_you_mean(name, FORMATS)}")
    return None


def read_file(path: str | Path, format: Format | None = None) -> SkillFile:
    """The skills of a file or folder, what it holds besides, and what was not taken.

    Args:
        path: the file, or a folder of the Agent Skills standard.
        format: how it is written; None: by its suffix, SkillRL's JSON by what it holds, a folder by its SKILL.md.

    Raises:
        SkillBankError: it cannot be read, or a record is no skill: file and place are named.
    """
    path = Path(path)
    form = format or _format_of(path)
    if form == agentskills.NAME:
        return agentskills_read.read_agentskills(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise refusal("read", path, error) from error
    except UnicodeDecodeError as error:
        raise SkillBankError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    if form is None:
        raise SkillBankError(
            f"What {path} holds cannot be told from its name. Say --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."
        )
    if form == "markdown":
        from skill_ttrl.skills.formats.markdown import parse_markdown

        return SkillFile(parse_markdown(text, str(path)))
    return SkillFile(_from_lines(text, str(path))) if form == "jsonl" else _from_object(text, str(path), form)


def holds_records(path: Path) -> bool:
    """True if a path holds skills in one of the formats: judged by its name, JSON by its content, JSONL by its first line.

    A bank's folder holds none in this sense.
    """
    if path.is_dir():
        return agentskills_read.holds_skills(path)
    form = _format_of(path)
    if form not in ("json", "jsonl"):
        return form is not None
    try:
        with path.open("rb") as stream:
            content = json.loads(stream.readline() if form == "jsonl" else stream.read())
    except (OSError, ValueError, RecursionError):
        return False  # whoever reads it says what is wrong
    if form == "jsonl":
        return _is_record(content)
    if isinstance(content, dict):
        return skillrl_format.is_skillrl(content) or isinstance(content.get("skills"), list)
    return isinstance(content, list) and (not content or memory_format.is_memories(content) or _is_record(content[0]))


def _is_record(item: object) -> bool:
    """An object with the text of a skill and one more of its usual keys."""
    if not isinstance(item, dict) or item.keys() & {"task", "steps", "task_id", "problem"}:
        return False
    return bool(item.keys() & set(SPELLINGS["text"])) and bool(
        item.keys() & {"skill_id", "mistake_id", "title", "tier"}
    )


def _format_of(path: Path) -> Format | None:
    """What the name of a path tells, and of a folder what is in it."""
    if path.is_dir() and not agentskills_read.holds_skills(path):
        what = "a skill bank: name it where a BANK is asked for" if is_bank(path) else "a folder without skills"
        raise SkillBankError(
            f"{path} is {what}. A file of skills is expected, or a folder with {agentskills.FILE} in it or in its folders."
        )
    if path.is_dir() or path.name == agentskills.FILE:
        return "agentskills"
    return SUFFIXES.get(path.suffix.lower())


def format_of_target(path: str | Path, format: Format | None = None) -> Format:
    """The format to write under this name: `format`, else by the name's ending.

    Raises:
        SkillBankError: the name says none.
    """
    form = format or SUFFIXES.get(Path(path).suffix.lower())
    if form is None:
        raise SkillBankError(
            f"The name {path} does not say how to write it. End it in {', '.join(SUFFIXES)}, or say --format: "
            f"{', '.join(FORMATS[:-1])}, or {agentskills.NAME} for a folder with a {agentskills.FILE} for each skill."
        )
    return form


def write_skills(path: str | Path, snapshot: Snapshot, format: Format | None = None) -> None:
    """Write a version's skills to a file (`agentskills`: to a new folder), whole or not at all.

    Raises:
        SkillBankError: it cannot be written, or its name does not say the format and none is given.
    """
    path, form = Path(path), format_of_target(path, format)
    try:
        if form == agentskills.NAME:
            write_folder(path, {name: text.encode() for name, text in agentskills.dump_folders(snapshot).items()})
        else:
            write_atomic(path, dump_skills(snapshot, form).encode())
    except OSError as error:
        raise refusal("write", path, error) from error


def dump_skills(snapshot: Snapshot, format: Format = "json") -> str:
    """A version's skills as text in one of the formats."""
    if format == "json":
        origin = {"origin": json.loads(snapshot.origin)} if snapshot.origin else {}
        content = {"schema": SCHEMA, "version": snapshot.version, **origin, "skills": list(map(_plain, snapshot))}
        return laid_out(content, {})
    if format == "jsonl":
        compact = {"indent": None, "compact": True}
        return "".join(laid_out(_plain(skill), compact) for skill in snapshot)
    if format == "skillrl":
        return skillrl_format.dump_skillrl(snapshot)
    if format == "skillrl-memory":
        return memory_format.dump_memories(snapshot)
    if format == "markdown":
        from skill_ttrl.skills.formats.markdown import dump_markdown

        return dump_markdown(snapshot)
    if format == "agentskills":
        raise SkillBankError("agentskills is a folder with one folder for each skill: name it with --output.")
    raise SkillBankError(f"Unknown format {format!r}.{did_you_mean(format, FORMATS)}")


def _from_lines(text: str, where: str) -> list[Skill]:
    found: list[Skill] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            found.append(record_at(parsed(line, where, number), f"{where}:{number}", len(found)))
    return found


def _from_object(text: str, where: str, form: Format) -> SkillFile:
    content = parsed(text, where)
    if form == memory_format.NAME or (form == "json" and memory_format.is_memories(content)):
        return memory_format.read_memories(text, content, where)
    if skillrl_format.is_skillrl(content) or (isinstance(content, dict) and form == skillrl_format.NAME):
        return skillrl_format.read_skillrl(text, content, where)
    origin, notices = "", tuple[str, ...]()
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
            f"({', '.join(skillrl_format.SECTIONS)})."
        )
    skills = [record_at(item, f"{where}, skills[{n}]", n) for n, item in enumerate(content)]
    return SkillFile(skills, origin, notices)


def _plain(skill: Skill) -> dict[str, Any]:
    """A skill's fields; `extra` as the object that its text is, and only where there is one."""
    values = asdict(skill)
    return {**values, "extra": json.loads(skill.extra)} if values.pop("extra") else values
