r"""Skills as files: our JSON, SkillRL's, folders of the Agent Skills standard, and skill documents.

Reading a file is all or nothing: one bad record refuses it, and the message names the record. `json` and `agentskills` store
everything about a skill; SkillRL's files and documents have no place for statistics, lineage and evidence.

SkillRL's files have three sections, by tier:

    {"general_skills": [{"skill_id", "title", "principle", "when_to_apply"}, ...],
     "task_specific_skills": {type: [...]},
     "common_mistakes": [{"mistake_id", "description", "why_it_happens", "how_to_avoid"}, ...],
     "metadata": {...}}

A folder of the Agent Skills standard (agentskills.io) holds `NAME/SKILL.md` for each skill, YAML between two `---`, then Markdown:

    ---
    name: "modular-arithmetic"
    description: "Modular arithmetic: Use Fermat's little theorem. Use when: powers modulo a prime"
    metadata:
      skill-ttrl: "{\"id\": \"sk_001\", \"title\": \"Modular arithmetic\", ...}"
    ---

    Use Fermat's little theorem.

The body is the skill's text; what we wrote is read back exactly from `metadata`. In a folder by others, `name` becomes id and title,
`description` when to apply, and the body the text. A folder is untrusted: nothing in it is run, links are not followed, and its YAML
produces strings only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from skill_ttrl.errors import SkillBankError, annotate_error, did_you_mean
from skill_ttrl.sanitize import escape, replace_surrogates
from skill_ttrl.skills.changes import Snapshot, new_ids, normalize_skill, quote
from skill_ttrl.skills.document import document_of, order_as_origin, skills_of, slug
from skill_ttrl.skills.log import SCHEMA, is_bank, refusal
from skill_ttrl.storage.files import write_atomic, write_folder
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Skill, SkillStats, Tier
from skill_ttrl.types.skills import FOR_ANY_TASK, PARENT, STATISTICS

FORMATS = ("json", "skillrl", "document", "agentskills")
SUFFIXES = {".json": "json", ".md": "document", ".markdown": "document"}
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "skill_id", "mistake_id"),
    "title": ("title", "name"),
    "text": ("text", "content", "principle", "how_to_avoid", "description"),
    "when_to_apply": ("when_to_apply", "when", "why_it_happens"),
}
"""Names that published skill files use for our fields; the first one present counts."""
OWN = frozenset(each.name for each in fields(Skill))
KNOWN = OWN.union(*SPELLINGS.values(), STATISTICS, [PARENT])
"""Keys of a record that are read into a field."""
GENERAL, BY_TYPE, MISTAKES = SECTIONS = ("general_skills", "task_specific_skills", "common_mistakes")
NO_TYPE = "other"
"""List of the skills for one type that name none, in SkillRL's files."""
ORDINARY_KEYS = {"skill_id": "id", "title": "title", "principle": "text", "when_to_apply": "when_to_apply"}
MISTAKE_KEYS = {"mistake_id": "id", "description": "title", "why_it_happens": "when_to_apply", "how_to_avoid": "text"}
SKILL_FILE = "SKILL.md"
OURS = "skill-ttrl"
"""Our key in the `metadata` of a SKILL.md."""
MAX_NAME, MAX_DESCRIPTION = 64, 1024
MAX_BYTES, MAX_DEPTH, MAX_VALUES, MAX_NAMED = 4_000_000, 20, 10_000, 5
"""Most bytes of a SKILL.md, and levels of nesting, keys and values of its front matter, which take long to read; names in a notice."""


@dataclass(frozen=True, slots=True)
class SkillFile:
    """Contents of a skill file."""

    skills: list[Skill]
    """In the order of the file."""
    origin: str = ""
    """Order of a document's parts; see `Snapshot.origin`."""
    notices: tuple[str, ...] = ()
    """Sentences on the content that was not imported."""


def read_file(path: str | Path, format: str | None = None) -> SkillFile:
    """The skills of a file or folder, and notices on what was not imported.

    Args:
        path: the file, or a folder of the Agent Skills standard.
        format: a name of `FORMATS`; None: by its suffix, SkillRL's JSON by its content, a folder by its SKILL.md.

    Raises:
        SkillBankError: it cannot be read, or a record is not a skill: the message names file and place.
    """
    path = Path(path)
    with annotate_error(SkillBankError, "Nothing was imported."):
        if format == "agentskills" or (format is None and (path.is_dir() or path.name == SKILL_FILE)):
            return read_agentskills(path)
        name, text = format_of(path, format), _read(path)
        if name == "document":
            skills = [normalize_skill(skill) for skill in skills_of(text, source="import")]
            return SkillFile(skills, order_as_origin(skills))
        content = _parsed(text, str(path))
        return (read_skillrl if name == "skillrl" or is_skillrl(content) else read_json)(content, str(path))


def write_skills(path: str | Path, snapshot: Snapshot, format: str | None = None) -> None:
    """Write a version's skills to a file (`agentskills`: to a new folder), whole or not at all.

    Raises:
        SkillBankError: it cannot be written, or its name does not tell the format and none is given.
    """
    path, name = Path(path), format_of(path, format)
    try:
        if name == "agentskills":
            write_folder(path, {file: text.encode() for file, text in dump_agentskills(snapshot).items()})
        else:
            write_atomic(path, dump_skills(snapshot, name).encode())
    except OSError as error:
        raise refusal("write", path, error) from error


def dump_skills(snapshot: Snapshot, format: str = "json") -> str:
    """A version's skills as text in one of the formats."""
    name = format_of("", format)
    if name == "agentskills":
        raise SkillBankError(f"{format} is a folder with one folder for each skill: name it with --output.")
    writers = {"json": dump_json, "skillrl": dump_skillrl, "document": document_of}
    return writers[name](snapshot)


def format_of(path: str | Path, format: str | None = None) -> str:
    """The name of a format: `format`, else by the path's ending.

    Raises:
        SkillBankError: the path does not tell, or there is no such format.
    """
    name = SUFFIXES.get(Path(path).suffix.lower()) if format is None else format
    if name is None:
        raise SkillBankError(
            f"The name {path} does not imply a format. End it in {', '.join(SUFFIXES)}, or add --format with one of: "
            f"{', '.join(FORMATS)}."
        )
    if name not in FORMATS:
        raise SkillBankError(f"Unknown format {name!r}.{did_you_mean(name, FORMATS)}")
    return name


# --- records ---


def skill_from_dict(
    d: Mapping[str, Any], *, task_type: str = "", source: str = "", tier: str | None = None, new_id: str | None = None
) -> Skill:
    """A skill from a plain dictionary, ours or in the spellings of published systems (`SPELLINGS`); other keys are ignored.

    A mistake's `description` is its title and `how_to_avoid` its text. Skill-TTRL's counts (`STATISTICS`) become `stats`, its
    `parent_id` a parent, and its task type `general`, which there means any task, the tier `general`.

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
        return normalize_skill(Skill(**values))
    except TypeError as error:
        raise SkillBankError(f"Skill {quote(values['id'])}: {error}.") from None


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


def _record(item: object, where: str, place: int, **defaults: Any) -> Skill:
    """The skill of one record of a file; without an id it gets one by its place. `where` begins the message of an error."""
    if not isinstance(item, dict):
        raise SkillBankError(f"{where}: a skill is an object, found {quote(item)}.")
    try:
        return skill_from_dict(item, new_id=new_ids(Snapshot(), place + 1)[place], **{"source": "import", **defaults})
    except SkillBankError as error:
        raise SkillBankError(f"{where}: {error}") from None


def _not_imported(where: str, names: Mapping[str, Any] | list[str]) -> tuple[str, ...]:
    """A notice that names what was not imported from a file or folder; none where it is nothing."""
    more = f" and {len(names) - MAX_NAMED} more" * (len(names) > MAX_NAMED)
    return (f"not imported from {where}: {', '.join(map(quote, list(names)[:MAX_NAMED]))}{more}",) if names else ()


def _left_out(content: Mapping[str, Any], known: tuple[str, ...], records: list[Any], where: str) -> tuple[str, ...]:
    """Notices on the fields of a file and of its records that mean nothing to us."""
    unknown = {key: None for item in records for key in item if key not in KNOWN}
    return _not_imported(where, [name for name in content if name not in known] + [f"skills' {key}" for key in unknown])


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise refusal("read", path, error) from error
    except UnicodeDecodeError as error:
        raise SkillBankError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None


def _parsed(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise SkillBankError(f"{where}{line} is not JSON: {error}.") from None


def _json_text(content: Any) -> str:
    """`content` as the text of a JSON file. Half a surrogate pair can only be written escaped."""
    text = json.dumps(content, ensure_ascii=False, indent=2)
    return (json.dumps(content, indent=2) if re.search("[\ud800-\udfff]", text) else text) + "\n"


# --- JSON, ours and SkillRL's ---


def read_json(content: Any, where: str) -> SkillFile:
    """The skills of a plain list, or of an object with `skills`.

    Raises:
        SkillBankError: it was written under another schema, contains no skills, or a record is not a skill.
    """
    rest = content if isinstance(content, dict) else {}
    if rest.get("schema", SCHEMA) != SCHEMA:
        raise SkillBankError(
            f"{where} was written under schema {rest['schema']!r}; this version of Skill-TTRL reads {SCHEMA}. "
            "Export it again, as agentskills, with the version that wrote it."
        )
    records = rest.get("skills") if isinstance(content, dict) else content
    if not isinstance(records, list):
        raise SkillBankError(
            f"{where} contains no skills: expected a list, an object with 'skills', or SkillRL's sections "
            f"({', '.join(SECTIONS)})."
        )
    skills = [_record(item, f"{where}, skills[{n}]", n) for n, item in enumerate(records)]
    return SkillFile(skills, notices=_left_out(rest, ("schema", "version", "skills"), records, where))


def dump_json(snapshot: Snapshot) -> str:
    """A version's skills and its number as one JSON object."""
    return _json_text({"schema": SCHEMA, "version": snapshot.version, "skills": list(map(asdict, snapshot))})


def is_skillrl(content: object) -> bool:
    """True if JSON content is one of SkillRL's files."""
    return isinstance(content, dict) and any(section in content for section in SECTIONS)


def read_skillrl(content: Any, where: str) -> SkillFile:
    """The skills of one of SkillRL's files, in its order.

    Raises:
        SkillBankError: a section or a record has another form; nothing is imported then.
    """
    if not is_skillrl(content):
        raise SkillBankError(f"{where} has none of SkillRL's sections ({', '.join(SECTIONS)}).")
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
            skills.append(_record(item, at, len(skills), tier=tier, task_type=kind, source="skillrl"))
    records = [item for *_, items in lists for item in items]
    return SkillFile(skills, notices=_left_out(content, SECTIONS, records, where))


def dump_skillrl(snapshot: Snapshot) -> str:
    """A version's skills as one of SkillRL's files."""
    general, mistakes = list[dict[str, Any]](), list[dict[str, Any]]()
    by_type: dict[str, list[dict[str, Any]]] = {}
    for skill in snapshot:
        kind = skill.task_type or NO_TYPE if skill.tier == "task" else ""
        keys = MISTAKE_KEYS if skill.tier == "mistake" else ORDINARY_KEYS
        record = {key: getattr(skill, name) for key, name in keys.items()}
        record |= {} if skill.task_type == kind else {"task_type": skill.task_type}
        section = general if skill.tier == "general" else mistakes
        (by_type.setdefault(kind, []) if skill.tier == "task" else section).append(record)
    metadata = {"source": "skill-ttrl", "bank_version": snapshot.version}
    return _json_text({GENERAL: general, BY_TYPE: by_type, MISTAKES: mistakes, "metadata": metadata})


# --- folders of the Agent Skills standard ---


def dump_agentskills(snapshot: Snapshot) -> dict[str, str]:
    """The files of all skills: relative paths with `/`, and their texts. Names come from titles; equal ones get digits made from the id."""
    skills = list(snapshot)
    names = [slug(skill.title) or slug(skill.id) or "skill" for skill in skills]
    count = Counter(names)
    for place, skill in enumerate(skills):
        if count[names[place]] > 1:
            digest = hashlib.sha256(replace_surrogates(skill.id).encode()).hexdigest()[:12]
            names[place] = f"{names[place][: MAX_NAME - 13].rstrip('-')}-{digest}"
    return {f"{name}/{SKILL_FILE}": skill_text(skill, name) for name, skill in zip(names, skills, strict=True)}


def skill_text(skill: Skill, name: str) -> str:
    """The SKILL.md of one skill."""
    record = {key: value for key, value in asdict(skill).items() if key != "text"}
    lines = ["---", f"name: {_quoted(name)}", f"description: {_quoted(describe(skill))}"]
    lines += ["metadata:", f"  {OURS}: {_quoted(json.dumps(record, ensure_ascii=False))}", "---", "", skill.text]
    return "\n".join(lines) + "\n"


def describe(skill: Skill) -> str:
    """Describe the skill and when to use it, in one line of 1 to 1,024 characters that opens none of our tags."""
    when = _line(skill.when_to_apply)
    if skill.source == "agentskills" and when:  # the whole description of a folder by others
        return when[:MAX_DESCRIPTION].rstrip()
    when = when or _line(f"the task type is {skill.task_type}" if skill.task_type else "any task like it")
    use = f"Use when: {_short(when, 400)}"
    what = ": ".join(filter(None, (_line(skill.title), _line(skill.text))))
    if skill.tier == "mistake":
        what = f"A mistake to avoid. {what}"
    return f"{_short(what, MAX_DESCRIPTION - len(use) - 1)} {use}".strip()


def _quoted(text: str) -> str:
    """A YAML string in double quotes without `---`: some readers end the front matter there, wherever it is."""
    signs = (
        f"\\{sign}" if sign in '"\\' else sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in replace_surrogates(text)
    )
    return f'"{"".join(signs)}"'.replace("--", "-\\x2d")


def _line(text: str) -> str:
    return " ".join(escape(text).split())


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 1)].rstrip() + "…"


def holds_skills(path: Path) -> bool:
    """True if `path` is a folder with a SKILL.md, or contains such folders."""
    return path.is_dir() and ((path / SKILL_FILE).is_file() or any(path.glob(f"*/{SKILL_FILE}")))


def read_agentskills(path: Path) -> SkillFile:
    """The skills of a folder, of the folders in it, or of one SKILL.md; in the order of their names.

    If one of several cannot be read, a notice says so and the others are read.

    Raises:
        SkillBankError: there is none, or none can be read.
    """
    folder = path.parent if path.name == SKILL_FILE else path
    folder = folder.resolve() if folder.is_symlink() else folder  # the user chose this link; others are not followed
    if (folder / SKILL_FILE).is_file():
        found, beside = [folder], list[Path]()
    else:
        try:
            inside = sorted(folder.iterdir())
        except OSError as error:
            raise refusal("read", folder, error) from error
        found = [entry for entry in inside if (entry / SKILL_FILE).is_file()]
        beside = [entry for entry in inside if entry not in found]
        if not found and inside:
            what = "a skill bank: pass it as BANK" if is_bank(folder) else "a folder without skills"
            raise SkillBankError(f"{folder} is {what}. Expected a file of skills, or a folder with {SKILL_FILE} files.")
    notices = [*_not_imported(folder.name, list(map(_entry_name, beside)))]
    skills: list[Skill] = []
    for entry in found:
        try:
            skills.append(_folder_skill(entry, notices))
        except SkillBankError as error:
            if len(found) == 1:
                raise
            notices.append(f"not imported: {error}")
    if found and not skills:
        raise SkillBankError(f"No skill of {folder} can be read. {notices[-1]}")
    return SkillFile(skills, notices=tuple(notices))


def _entry_name(entry: Path) -> str:
    return f"{entry.name}/" if entry.is_dir() else entry.name


def _folder_skill(folder: Path, notices: list[str]) -> Skill:
    where = folder / SKILL_FILE
    if where.is_symlink() or folder.is_symlink():
        raise SkillBankError(f"{where} is reached through a link, which is not followed.")
    if where.stat().st_size > MAX_BYTES:
        raise SkillBankError(f"{where} is larger than {MAX_BYTES:,} bytes.")
    front, body = parts_of(_read(where), str(where))
    metadata = front.get("metadata")
    record = metadata.get(OURS) if isinstance(metadata, dict) else None
    try:
        if record is not None:
            known = _parsed(str(record), f"metadata, {OURS}")
            values = {**(known if isinstance(known, dict) else {}), "text": body.removeprefix("\n").removesuffix("\n")}
            others = [name for name in front if name not in ("name", "description", "metadata")]
            skill = skill_from_dict(values)
        else:
            name, description = (str(front.get(key) or "").strip() for key in ("name", "description"))
            title = name or folder.name
            values = {"id": slug(title) or slug(folder.name), "text": body.strip() or description}
            values = {key: value for key, value in values.items() if value}
            others = [name for name in front if name not in ("name", "description")]
            skill = skill_from_dict({**values, "title": title, "when_to_apply": description}, source="agentskills")
    except SkillBankError as error:
        raise SkillBankError(f"{where}: {error}") from None
    beside = [_entry_name(each) for each in sorted(folder.iterdir()) if each != where]
    notices += _not_imported(folder.name, [*others, *beside])
    return skill


def parts_of(text: str, where: str) -> tuple[dict[str, Any], str]:
    """A SKILL.md's front matter (strings, and lists and maps of them) and its body.

    Raises:
        SkillBankError: there is no front matter, or it is not a YAML map.
    """
    import yaml

    if text.partition("\n")[0].endswith("\r"):  # an editor has changed the line ends of the whole file
        text = text.replace("\r\n", "\n")
    begin = re.match(r"---[ \t]*\n", text)
    end = re.compile(r"^---[ \t]*$", re.MULTILINE).search(text, begin.end()) if begin else None
    if begin is None or end is None:
        raise SkillBankError(f"{where} is not a skill: it must start with YAML between two lines `---`.")
    source = text[begin.end() : end.start()]
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # libyaml's is ten times as fast; wheels have it
    try:
        # BaseLoader makes strings, lists and maps, nothing else: the standard has strings only, and 1.10 stays 1.10.
        # An alias could name a list a billion times over, and deep nesting takes forever to read.
        depth = values = 0
        for event in yaml.parse(source, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            values += isinstance(event, yaml.ScalarEvent)
            if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH or values > MAX_VALUES:
                raise SkillBankError(
                    f"{where}: the front matter has aliases (*name), more than {MAX_DEPTH} levels of nesting, or more than "
                    f"{MAX_VALUES:,} keys and values."
                )
        front = yaml.load(source, Loader=loader)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        reason = getattr(error, "problem", None) or "characters that YAML does not allow"
        cure = " Put a text that contains a colon in quotes." if reason.startswith("mapping values") else ""
        raise SkillBankError(f"{where}:{line} is not valid YAML: {reason}.{cure}") from None
    if not isinstance(front, dict):
        raise SkillBankError(f"{where}: the front matter must be a map, found {quote(front)}.")
    return front, text[end.end() :].removeprefix("\n")
