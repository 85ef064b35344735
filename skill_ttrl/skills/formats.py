"""Skills as files: our JSON and JSONL, SkillRL's JSON, and Markdown to read and edit.

    json       {"schema": 1, "version": 12, "skills": [{...}, ...]}; a plain list of skills is read too
    jsonl      one skill a line
    skillrl    {"general_skills": [...], "task_specific_skills": {type: [...]}, "common_mistakes": [...], "metadata": {}}
    markdown   `skills/markdown.py`

Reading is all or nothing: one bad record refuses the file, and the message says which. `json`, `jsonl` and `markdown` hold
everything that is known of a skill; SkillRL's has no place for statistics, lineage and evidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

from skill_ttrl.errors import SkillBankError, did_you_mean
from skill_ttrl.runs.files import write_atomic
from skill_ttrl.skills.changes import new_ids, shown, tidy
from skill_ttrl.skills.folder import SCHEMA, refusal
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Skill, SkillStats, to_json

Format = Literal["json", "jsonl", "skillrl", "markdown"]
FORMATS: tuple[str, ...] = get_args(Format)
SUFFIXES: Mapping[str, Format] = {".json": "json", ".jsonl": "jsonl", ".md": "markdown", ".markdown": "markdown"}

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "skill_id", "mistake_id"),
    "title": ("title", "name"),
    "text": ("text", "content", "principle", "how_to_avoid", "description"),
    "when_to_apply": ("when_to_apply", "when", "why_it_happens"),
}
"""How published skill files spell our fields; the first that is there counts."""
SECTIONS = ("general_skills", "task_specific_skills", "common_mistakes")


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


def read_skills(path: str | Path, format: Format | None = None) -> list[Skill]:
    """The skills of a file, in its order.

    Args:
        path: the file.
        format: how it is written; None: by its suffix, and SkillRL's JSON by its sections.

    Raises:
        SkillBankError: it cannot be read, or a record is no skill: file and place are named.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise refusal("read", path, error) from error
    except UnicodeDecodeError as error:
        raise SkillBankError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    form = format or SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise SkillBankError(
            f"What {path} holds cannot be told from its name. Say --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."
        )
    if form == "markdown":
        from skill_ttrl.skills.markdown import parse_markdown

        return parse_markdown(text, str(path))
    return _from_lines(text, path) if form == "jsonl" else _from_object(text, path, form)


def write_skills(path: str | Path, snapshot: Snapshot, format: Format | None = None) -> None:
    """Write a version's skills to a file, whole or not at all.

    Raises:
        SkillBankError: it cannot be written, or the format cannot be told from the suffix.
    """
    path = Path(path)
    form = format or SUFFIXES.get(path.suffix.lower(), "json")
    try:
        write_atomic(path, dump_skills(snapshot, form).encode())
    except OSError as error:
        raise refusal("write", path, error) from error


def dump_skills(snapshot: Snapshot, format: Format = "json") -> str:
    """A version's skills as text in one of the formats."""
    if format == "json":
        content = {"schema": SCHEMA, "version": snapshot.version, "skills": [asdict(skill) for skill in snapshot]}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if format == "jsonl":
        return "".join(f"{to_json(skill)}\n" for skill in snapshot)
    if format == "skillrl":
        return json.dumps(_as_skillrl(snapshot), indent=2, ensure_ascii=False) + "\n"
    if format == "markdown":
        from skill_ttrl.skills.markdown import dump_markdown

        return dump_markdown(snapshot)
    raise SkillBankError(f"Unknown format {format!r}.{did_you_mean(format, FORMATS)}")


def skill_from_dict(
    d: Mapping[str, Any],
    *,
    task_type: str = "",
    source: str = "",
    tier: str | None = None,
    new_id: str | None = None,
) -> Skill:
    """A skill from a plain dictionary, ours or in the spellings of published systems (`SPELLINGS`).

    A mistake's `description` is its title and `how_to_avoid` its text. Keys that mean nothing to us are passed over.

    Args:
        d: the dictionary.
        task_type: where it has none.
        source: where it has none.
        tier: where it has none; None: `mistake` for one with `mistake_id` or `how_to_avoid`, else `task`.
        new_id: where it has none.

    Raises:
        SkillBankError: there is no id or no text, or a field is of another type.
    """
    known = {field.name for field in fields(Skill)}
    values = {name: value for name, value in d.items() if name in known}
    is_mistake = "how_to_avoid" in d or "mistake_id" in d
    for name, spellings in SPELLINGS.items():
        for spelling in spellings:
            if d.get(spelling) is not None and values.get(name) is None:
                values[name] = d[spelling]
    if is_mistake and "title" not in d:
        values["title"] = d.get("description", "")
    defaults = {
        "id": new_id,
        "title": "",
        "task_type": task_type,
        "source": source,
        "tier": tier or ("mistake" if is_mistake else "task"),
    }
    values = {name: value for name, value in values.items() if value is not None}
    values = {**{name: value for name, value in defaults.items() if value is not None}, **values}
    if isinstance(values.get("id"), int):
        values["id"] = str(values["id"])
    for name in ("id", "text"):
        if name not in values:
            raise SkillBankError(f"A skill needs {name!r} (or {', '.join(SPELLINGS[name][1:])}); found {_keys(d)}.")
    values["stats"] = _stats(values.get("stats"))
    try:
        return tidy(Skill(**values))
    except TypeError as error:
        raise SkillBankError(f"Skill {shown(values['id'])}: {error}.") from None


def _stats(value: object) -> SkillStats:
    if value is None or isinstance(value, SkillStats):
        return value or SkillStats()
    if not isinstance(value, dict) or not set(value) <= {field.name for field in fields(SkillStats)}:
        raise SkillBankError(f"'stats' holds uses, successes, created_round and last_used_round; found {shown(value)}.")
    return SkillStats(**value)


def _keys(d: Mapping[str, Any]) -> str:
    return shown(", ".join(map(str, d))) if d else "nothing"


def _from_lines(text: str, path: Path) -> list[Skill]:
    found: list[Skill] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            found.append(_record(_parsed(line, path, number), f"{path}:{number}", len(found)))
    return found


def _from_object(text: str, path: Path, form: Format) -> list[Skill]:
    content = _parsed(text, path)
    if isinstance(content, dict) and (form == "skillrl" or any(section in content for section in SECTIONS)):
        return _from_skillrl(content, path)
    if isinstance(content, dict):
        if content.get("schema", SCHEMA) != SCHEMA:
            raise SkillBankError(
                f"{path} was written under schema {content['schema']!r}, this version of Skill-TTRL reads {SCHEMA}. "
                "Export it again with the version that wrote it, as skillrl or markdown."
            )
        content = content.get("skills")
    if not isinstance(content, list):
        raise SkillBankError(
            f"{path} holds no skills: expected a list, an object with 'skills', or SkillRL's sections ({', '.join(SECTIONS)})."
        )
    return [_record(item, f"{path}, skills[{place}]", place) for place, item in enumerate(content)]


def _from_skillrl(content: Mapping[str, Any], path: Path) -> list[Skill]:
    general, mistakes = content.get("general_skills", []), content.get("common_mistakes", [])
    by_type = content.get("task_specific_skills", {})
    if not isinstance(by_type, dict):
        raise SkillBankError(
            f"{path}: 'task_specific_skills' is an object of lists by task type, found {shown(by_type)}."
        )
    parts = [("general_skills", general, "general", "")]
    parts += [(f"task_specific_skills.{name}", items, "task", name) for name, items in by_type.items()]
    parts += [("common_mistakes", mistakes, "mistake", "")]
    found: list[Skill] = []
    for name, items, tier, task_type in parts:
        if not isinstance(items, list):
            raise SkillBankError(f"{path}: {name!r} is a list of skills, found {shown(items)}.")
        for place, item in enumerate(items):
            where = f"{path}, {name}[{place}]"
            found.append(_record(item, where, len(found), tier=tier, task_type=task_type, source="skillrl"))
    return found


def _record(item: object, where: str, place: int, **defaults: Any) -> Skill:
    """One record of a file; without an id it gets one by its place."""
    if not isinstance(item, dict):
        raise SkillBankError(f"{where}: a skill is an object, found {shown(item)}.")
    try:
        return skill_from_dict(item, new_id=new_ids(Snapshot(), place + 1)[place], **{"source": "import", **defaults})
    except SkillBankError as error:
        raise SkillBankError(f"{where}: {error} Nothing was imported.") from None


def _parsed(text: str, path: Path, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{path}:{line or error.lineno}"
        raise SkillBankError(
            f"{place} is not JSON: {error.msg} (column {error.colno}). Nothing was imported."
        ) from None
    except RecursionError:
        raise SkillBankError(f"{path} is nested too deeply to be read. Nothing was imported.") from None


def _as_skillrl(snapshot: Snapshot) -> dict[str, Any]:
    """SkillRL's sections. A type that its section does not tell is kept beside, where SkillRL does not look."""
    general = [_ordinary(skill, "") for skill in snapshot if skill.tier == "general"]
    by_type: dict[str, list[dict[str, Any]]] = {}
    for skill in snapshot:
        if skill.tier == "task":
            section = skill.task_type or "other"
            by_type.setdefault(section, []).append(_ordinary(skill, section))
    mistakes = [
        {
            "mistake_id": skill.id,
            "description": skill.title,
            "why_it_happens": skill.when_to_apply,
            "how_to_avoid": skill.text,
            **_type_beside(skill, ""),
        }
        for skill in snapshot
        if skill.tier == "mistake"
    ]
    metadata = {"source": "skill-ttrl", "bank_version": snapshot.version}
    return dict(zip((*SECTIONS, "metadata"), (general, by_type, mistakes, metadata), strict=True))


def _ordinary(skill: Skill, section: str) -> dict[str, Any]:
    texts = {"title": skill.title, "principle": skill.text, "when_to_apply": skill.when_to_apply}
    return {"skill_id": skill.id, **texts, **_type_beside(skill, section)}


def _type_beside(skill: Skill, section: str) -> dict[str, str]:
    return {} if skill.task_type == section else {"task_type": skill.task_type}
