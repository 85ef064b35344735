"""A skill from a plain dictionary, ours or in the spellings of published systems; formats of skill files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import new_ids, normalize_skill, quote
from skill_ttrl.skills.extra_fields import extra_text, parse_extra
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Skill, SkillStats
from skill_ttrl.types.skills import FOR_ANY_TASK, PARENT, STATISTICS

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "skill_id", "mistake_id"),
    "title": ("title", "name"),
    "text": ("text", "content", "principle", "how_to_avoid", "description"),
    "when_to_apply": ("when_to_apply", "when", "why_it_happens"),
}
"""How published skill files spell our fields; the first that is there counts."""
OWN = frozenset(each.name for each in fields(Skill))
KNOWN = OWN.union(*SPELLINGS.values(), STATISTICS, [PARENT])
"""Keys that are read into a field; all others are kept as they are."""


def skill_from_dict(
    d: Mapping[str, Any],
    *,
    task_type: str = "",
    source: str = "",
    tier: str | None = None,
    new_id: str | None = None,
) -> Skill:
    """A skill from a plain dictionary, ours or in the spellings of published systems (`SPELLINGS`).

    A mistake's `description` is its title and `how_to_avoid` its text. Skill-TTRL's counts (`STATISTICS`) become `stats`, its
    `parent_id` a parent, and its task type `general`, which there means any task, the tier `general`. Keys that mean nothing
    to us are kept in `extra`.

    Args:
        d: the dictionary.
        task_type: where it has none.
        source: where it has none.
        tier: where it has none; None: `mistake` for one with `mistake_id` or `how_to_avoid`, else `task`.
        new_id: where it has none.

    Raises:
        SkillBankError: there is no id or no text, or a field is of another type.
    """
    values = {name: value for name, value in d.items() if name in OWN}
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
        "tier": tier or ("mistake" if is_mistake else "general" if _for_any_task(d) else "task"),
    }
    values = {name: value for name, value in values.items() if value is not None}
    values = {**{name: value for name, value in defaults.items() if value is not None}, **values}
    if isinstance(values.get("id"), int):
        values["id"] = str(values["id"])
    for name in ("id", "text"):
        if name not in values:
            raise SkillBankError(f"A skill needs {name!r} (or {', '.join(SPELLINGS[name][1:])}); found {_keys(d)}.")
    if values.get("stats") is None:
        values["stats"] = _foreign_stats(d)
    if values.get("parents") is None and d.get(PARENT) is not None:
        values["parents"] = (str(d[PARENT]),)
    values["stats"] = _stats(values["stats"])
    try:
        return _with_unknown(normalize_skill(Skill(**values)), d)
    except TypeError as error:
        raise SkillBankError(f"Skill {quote(values['id'])}: {error}.") from None


def _with_unknown(skill: Skill, d: Mapping[str, Any]) -> Skill:
    unknown = {name: value for name, value in d.items() if name not in KNOWN}
    if not unknown:
        return skill
    try:
        text = extra_text({**parse_extra(skill.extra), **unknown})
    except (TypeError, ValueError, RecursionError):
        names = quote(", ".join(map(str, unknown)))
        raise SkillBankError(f"Skill {quote(skill.id)}: JSON cannot store {names}.") from None
    return replace(skill, extra=text)


def _stats(value: object) -> SkillStats:
    if value is None or isinstance(value, SkillStats):
        return value or SkillStats()
    if not isinstance(value, dict) or not set(value) <= {field.name for field in fields(SkillStats)}:
        raise SkillBankError(f"'stats' holds uses, successes, created_step and last_used_step; found {quote(value)}.")
    return SkillStats(**value)


def _foreign_stats(d: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics of a record in Skill-TTRL's keys, as far as it has them.

    There an unused skill was last used in round 0: without a use nothing is known of the last one.
    """
    found = {name: d[key] for key, name in STATISTICS.items() if d.get(key) is not None}
    if not found.get("uses"):
        found.pop("last_used_step", None)
    return found


def _for_any_task(d: Mapping[str, Any]) -> bool:
    """True for a record of Skill-TTRL (it counts uses) whose task type means any task."""
    return d.get("task_type") == FOR_ANY_TASK and "usage_count" in d


def _keys(d: Mapping[str, Any]) -> str:
    return quote(", ".join(map(str, d))) if d else "nothing"


@dataclass(frozen=True, slots=True)
class SkillFile:
    """Contents of a skill file."""

    skills: list[Skill]
    """In the order of the file."""
    origin: str = ""
    """Content of the file besides its skills; see `Snapshot.origin`."""
    notices: tuple[str, ...] = ()
    """Sentences on the content that was not imported."""


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Skills as one file of text."""

    name: str
    read: Callable[[str, str], SkillFile]
    """(text of the file, its name for messages) -> what it holds; a `SkillBankError` refuses the file."""
    write: Callable[[Snapshot], str]
    """A version's skills as the text of a file."""
    suffixes: tuple[str, ...] = ()
    """Endings of names that mean this format, in lower case."""
    recognises: Callable[[Any], bool] | None = None
    """True for the content of a `.json` file of this format, which is then read by it."""


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """Skills as a folder of files."""

    name: str
    read: Callable[[Path], SkillFile]
    """Read a folder; a `SkillBankError` refuses it."""
    write: Callable[[Snapshot], Mapping[str, str]]
    """Relative paths with `/` and the texts of the files."""


def order_of(snapshot: Snapshot, format: str) -> list[str]:
    """The order of the skills in the file that a version came from, if it was one of this format; else empty."""
    found = checked_origin(snapshot.origin, "The bank's origin")
    content = found.get("content", []) if found.get("format") == format else []
    return [name for name in content if isinstance(name, str)]


def checked_origin(text: str, where: str) -> dict[str, Any]:
    """An `origin`: a format, and the ids of a file's skills in their order.

    Raises:
        SkillBankError: it is something else.
    """
    found = parsed(text, where) if text else {}
    if found and not (
        isinstance(found, dict) and isinstance(found.get("format"), str) and isinstance(found.get("content"), list)
    ):
        raise SkillBankError(f"{where} is damaged: expected format and content, found {quote(found)}.")
    return dict(found)


def record_at(item: object, where: str, place: int, **defaults: Any) -> Skill:
    """The skill of one record of a file, read as `skill_from_dict` does; without an id it gets one by its place.

    Raises:
        SkillBankError: it is none; the message begins with `where`.
    """
    if not isinstance(item, dict):
        raise SkillBankError(f"{where}: a skill is an object, found {quote(item)}.")
    try:
        return skill_from_dict(item, new_id=new_ids(Snapshot(), place + 1)[place], **{"source": "import", **defaults})
    except SkillBankError as error:
        raise SkillBankError(f"{where}: {error} Nothing was imported.") from None


def parsed(text: str, where: str, line: int | None = None) -> Any:
    """A file's JSON.

    Raises:
        SkillBankError: it is none, or nested too deeply.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        place = f"{where}:{line or error.lineno}"
        raise SkillBankError(
            f"{place} is not JSON: {error.msg} (column {error.colno}). Nothing was imported."
        ) from None
    except ValueError as error:  # a whole number of thousands of digits, or levels without end
        raise SkillBankError(f"{where} cannot be read: {error}. Nothing was imported.") from None


def written(content: Any) -> str:
    """`content` as the text of a JSON file. Half a surrogate pair can only be written escaped."""
    text = json.dumps(content, ensure_ascii=False, indent=2)
    return (json.dumps(content, indent=2) if re.search("[\ud800-\udfff]", text) else text) + "\n"
