"""A skill from a plain dictionary, ours or in the spellings of published systems; formats of skill files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import extra_text, new_ids, normalize_skill, parse_extra, quote
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
"""Names that published skill files use for our fields; the first one present counts."""
OWN = frozenset(each.name for each in fields(Skill))
KNOWN = OWN.union(*SPELLINGS.values(), STATISTICS, [PARENT])
"""Keys that are read into a field; all others stay in `Skill.extra`."""


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
    """Skills as one text file."""

    name: str
    read: Callable[[str, str], SkillFile]
    """(text of the file, its name for messages) -> its contents; a `SkillBankError` refuses the file."""
    write: Callable[[Snapshot], str]
    """A version's skills as the text of a file."""


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
    `parent_id` a parent, and its task type `general`, which there means any task, the tier `general`. Unknown keys stay in
    `extra`.

    Args:
        d: the dictionary.
        task_type: default.
        source: default.
        tier: default; None: `mistake` for one with `mistake_id` or `how_to_avoid`, else `task`.
        new_id: default.

    Raises:
        SkillBankError: there is no id or no text, or a field has another type.
    """
    is_mistake = "how_to_avoid" in d or "mistake_id" in d
    # There the task type `general` of a record that counts uses means any task.
    for_any = d.get("task_type") == FOR_ANY_TASK and "usage_count" in d
    values: dict[str, Any] = {"title": "", "task_type": task_type, "source": source}
    values["tier"] = tier or ("mistake" if is_mistake else "general" if for_any else "task")
    values |= {} if new_id is None else {"id": new_id}
    for name in OWN:
        spellings = SPELLINGS.get(name, (name,))
        if is_mistake and name == "title" and "title" not in d:
            spellings = ("description",)
        found = next((d[each] for each in spellings if d.get(each) is not None), None)
        values |= {} if found is None else {name: found}
    if isinstance(values.get("id"), int):
        values["id"] = str(values["id"])
    for name in ("id", "text"):
        if name not in values:
            found_keys = quote(", ".join(map(str, d))) if d else "nothing"
            raise SkillBankError(f"A skill needs {name!r} (or {', '.join(SPELLINGS[name][1:])}); found {found_keys}.")
    if "parents" not in values and d.get(PARENT) is not None:
        values["parents"] = (str(d[PARENT]),)
    values["stats"] = _stats(values.get("stats"), d)
    try:
        skill = normalize_skill(Skill(**values))
    except TypeError as error:
        raise SkillBankError(f"Skill {quote(values['id'])}: {error}.") from None
    unknown = {name: value for name, value in d.items() if name not in KNOWN}
    if not unknown:
        return skill
    try:
        return replace(skill, extra=extra_text({**parse_extra(skill.extra), **unknown}))
    except (TypeError, ValueError, RecursionError):
        names = quote(", ".join(map(str, unknown)))
        raise SkillBankError(f"Skill {quote(skill.id)}: JSON cannot store {names}.") from None


def _stats(value: object, d: Mapping[str, Any]) -> SkillStats:
    """The statistics of a record, or those in Skill-TTRL's keys. There an unused skill was last used in round 0, which says nothing."""
    if isinstance(value, SkillStats):
        return value
    if value is None:
        value = {name: d[key] for key, name in STATISTICS.items() if d.get(key) is not None}
        if not value.get("uses"):
            value.pop("last_used_step", None)
    if not isinstance(value, dict) or not set(value) <= {field.name for field in fields(SkillStats)}:
        raise SkillBankError(f"'stats' has uses, successes, created_step and last_used_step; found {quote(value)}.")
    return SkillStats(**value)


def order_of(snapshot: Snapshot, format: str) -> list[str]:
    """The order of the skills in the file that a version came from, if it was one of this format; else empty."""
    found = parsed(snapshot.origin, "The bank's origin") if snapshot.origin else {}
    content = found.get("content") if isinstance(found, dict) and found.get("format") == format else None
    return [name for name in content if isinstance(name, str)] if isinstance(content, list) else []


def record_at(item: object, where: str, place: int, **defaults: Any) -> Skill:
    """The skill of one record of a file, read as `skill_from_dict` does; without an id it gets one by its place.

    Raises:
        SkillBankError: it is not a skill; the message begins with `where`.
    """
    if not isinstance(item, dict):
        raise SkillBankError(f"{where}: a skill is an object, found {quote(item)}.")
    try:
        return skill_from_dict(item, new_id=new_ids(Snapshot(), place + 1)[place], **{"source": "import", **defaults})
    except SkillBankError as error:
        raise SkillBankError(f"{where}: {error} Nothing was imported.") from None


def parsed(text: str, where: str) -> Any:
    """A file's JSON.

    Raises:
        SkillBankError: it is not JSON, or nested too deeply.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise SkillBankError(
            f"{where}:{error.lineno} is not JSON: {error.msg} (column {error.colno}). Nothing was imported."
        ) from None
    except ValueError as error:  # a whole number of thousands of digits, or levels without end
        raise SkillBankError(f"{where} cannot be read: {error}. Nothing was imported.") from None


def decoded(data: bytes, where: Path) -> str:
    """A file's text.

    Raises:
        SkillBankError: it is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SkillBankError(f"{where} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None


def written(content: Any) -> str:
    """`content` as the text of a JSON file. Half a surrogate pair can only be written escaped."""
    text = json.dumps(content, ensure_ascii=False, indent=2)
    return (json.dumps(content, indent=2) if re.search("[\ud800-\udfff]", text) else text) + "\n"
