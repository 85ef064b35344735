"""Skills as folders of the Agent Skills standard (agentskills.io): `NAME/SKILL.md`, YAML between two `---`, then Markdown.

    ---
    name: "modular-arithmetic"
    description: "Modular arithmetic: Use Fermat's little theorem. Use when: powers modulo a prime"
    metadata:
      skill-ttrl-id: "sk_001"
      skill-ttrl-uses: "12"
    ---

    Use Fermat's little theorem.

An exported folder is valid against the standard and is read back exactly: the body is the skill's text, and `metadata` holds
the rest, lineage and statistics included. Folder names come from titles.

In a folder by others, `name` becomes id and title, `description` when to apply, and the body the text; other front matter
stays in `Skill.extra`. Scripts, references and assets are not imported, and a notice names them. A folder is untrusted:
nothing in it is run, links are not followed, and its YAML produces strings only.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.sanitize import escape, replace_surrogates
from skill_ttrl.skills.changes import extra_text, parse_extra, quote
from skill_ttrl.skills.folder import refusal
from skill_ttrl.skills.formats.records import SkillFile, decoded, skill_from_dict
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Skill, SkillStats

NAME = "agentskills"
FILE = "SKILL.md"
MAX_NAME, MAX_DESCRIPTION, MAX_COMPATIBILITY = 64, 1024, 500
OURS = "skill-ttrl-"
"""Prefix of our keys in `metadata`."""
DESCRIBED = "described"
"""In the fields of `Skill.extra`: `when_to_apply` is the whole description of a folder by others."""
TEXTS = ("id", "title", "when_to_apply", "tier", "task_type", "source")
LISTS = ("parents", "evidence", "flags")
STATS = tuple(each.name for each in fields(SkillStats))
MAX_BYTES = 4_000_000
"""A larger file is refused unread."""
MAX_NAMED = 5
MAX_DEPTH = 20
"""Most nested lists and maps in front matter."""
MAX_VALUES = 10_000
"""Most keys and values in front matter: reading YAML takes long for each of them."""
_BEGIN = re.compile(r"---[ \t]*\n")
_END = re.compile(r"^---[ \t]*$", re.MULTILINE)


def dump_folders(snapshot: Snapshot) -> dict[str, str]:
    """The files of all skills: relative paths with `/`, and their texts."""
    return {
        f"{name}/{FILE}": skill_text(skill, name)
        for name, skill in zip(names_of(list(snapshot)), snapshot, strict=True)
    }


def names_of(skills: list[Skill]) -> list[str]:
    """A valid folder name for each skill, from its title, else its id.

    Skills with the same name all get six digits made from their ids: no name depends on the order or number of skills.
    """
    digits = [0] * len(skills)
    while True:
        found = [_with_digits(skill, count) for skill, count in zip(skills, digits, strict=True)]
        shared = Counter(found)
        if len(shared) == len(found):
            return found
        # More digits for all that still clash: a title may be spelled like the name of another with its digits.
        digits = [count + 6 * (shared[name] > 1) for name, count in zip(found, digits, strict=True)]


def _with_digits(skill: Skill, digits: int) -> str:
    name = slug(skill.title) or slug(skill.id) or "skill"
    if not digits:
        return name
    digest = hashlib.sha256(replace_surrogates(skill.id).encode()).hexdigest()[: min(digits, 54)]
    return f"{name[: MAX_NAME - len(digest) - 1].rstrip('-')}-{digest}"


def skill_text(skill: Skill, name: str) -> str:
    """The SKILL.md of one skill."""
    extra = parse_extra(skill.extra)
    front: dict[str, Any] = {"name": name, "description": describe(skill)}
    for key in ("license", "compatibility", "allowed-tools"):
        value = extra.get(key)
        longest = MAX_COMPATIBILITY if key == "compatibility" else MAX_BYTES
        if (isinstance(value, str) and 0 < len(value) <= longest) or (key == "allowed-tools" and _is_texts(value)):
            front[key] = value
    others = extra.get("metadata")
    front["metadata"] = _own_metadata(skill) | (_as_texts(others) if isinstance(others, dict) else {})
    lines = ["---"]
    for key, value in front.items():
        if isinstance(value, str):
            lines.append(f"{key}: {_quoted(value)}")
        elif isinstance(value, list):
            lines += [f"{key}:", *(f"  - {_quoted(item)}" for item in value)]
        else:
            lines += [f"{key}:", *(f"  {_key(each)}: {_quoted(item)}" for each, item in value.items())]
    return "\n".join([*lines, "---", "", skill.text]) + "\n"


def describe(skill: Skill) -> str:
    """Describe the skill and when to use it, in one line of 1 to 1,024 characters that opens none of our tags."""
    when = _line(skill.when_to_apply)
    if parse_extra(skill.extra).get(DESCRIBED) is True and when:
        return when[:MAX_DESCRIPTION].rstrip()
    when = when or _line(f"the task type is {skill.task_type}" if skill.task_type else "any task like it")
    use = f"Use when: {_short(when, 400)}"
    what = ": ".join(filter(None, (_line(skill.title), _line(skill.text))))
    if skill.tier == "mistake":
        what = f"A mistake to avoid. {what}"
    return f"{_short(what, MAX_DESCRIPTION - len(use) - 1)} {use}".strip()


def _own_metadata(skill: Skill) -> dict[str, str]:
    """The fields of a skill that are not in the body, as strings by our keys; omits default values."""
    plain = Skill("", "", "")
    pairs = [(name, getattr(skill, name), getattr(plain, name)) for name in (*TEXTS, *LISTS, "version", "extra")]
    pairs += [(name, getattr(skill.stats, name), getattr(plain.stats, name)) for name in STATS]
    return {
        OURS + name.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
        for name, value, default in pairs
        if value != default
    }


def _quoted(text: str) -> str:
    """A YAML string in double quotes without `---`: some readers end the front matter there, wherever it is."""
    signs = (
        f"\\{sign}" if sign in '"\\' else sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in replace_surrogates(text)
    )
    return f'"{"".join(signs)}"'.replace("--", "-\\x2d")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[a-z][a-z0-9_.-]*", name) and "---" not in name else _quoted(name)


def _as_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """A foreign `metadata` as the standard wants it: strings by strings, without our keys."""
    return {
        str(key): value if isinstance(value, str) else json.dumps(value)
        for key, value in values.items()
        if not str(key).startswith(OURS)
    }


def slug(text: str) -> str:
    """The letters and digits of a text as a valid name; empty if it has none."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME].rstrip("-")


def _line(text: str) -> str:
    return " ".join(escape(text).split())


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 1)].rstrip() + "…"


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


# Reading.


def holds_skills(path: Path) -> bool:
    """True if `path` is a folder with a SKILL.md, or contains such folders."""
    return path.is_dir() and ((path / FILE).is_file() or any(path.glob(f"*/{FILE}")))


def read_agentskills(path: Path) -> SkillFile:
    """The skills of a folder, of the folders in it, or of one SKILL.md; in the order of their names.

    If one of several cannot be read, a notice says so and the others are read.

    Raises:
        SkillBankError: there is none, or none can be read.
    """
    folder = path.parent if path.name == FILE else path
    folder = (
        folder.resolve() if folder.is_symlink() else folder
    )  # the user chose this link; links inside are not followed
    notices: list[str] = []
    if (folder / FILE).is_file():
        return SkillFile([_skill(folder, notices)], notices=tuple(notices))
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise refusal("read", folder, error) from error
    found = [entry for entry in inside if (entry / FILE).is_file()]
    if not found and inside:
        raise SkillBankError(f"{folder} contains no skills: expected a {FILE}, or folders with a {FILE} each.")
    notices += _not_taken(f"skipped in {folder.name}", [entry for entry in inside if entry not in found])
    skills, failed = list[Skill](), list[SkillBankError]()
    for entry in found:
        try:
            skills.append(_skill(entry, notices))
        except SkillBankError as error:
            failed.append(error)
    if failed and not skills:
        raise failed[0]
    notices += [f"not imported: {str(error).removesuffix(' Nothing was imported.')}" for error in failed]
    return SkillFile(skills, notices=tuple(notices))


def parts_of(text: str, where: str) -> tuple[dict[str, Any], str]:
    """A SKILL.md's front matter (strings, and lists and maps of them) and its body.

    Raises:
        SkillBankError: there is no front matter, or it is not a YAML map.
    """
    import yaml

    if text.partition("\n")[0].endswith("\r"):  # an editor has changed the line ends of the whole file
        text = text.replace("\r\n", "\n")
    begin = _BEGIN.match(text)
    end = _END.search(text, begin.end()) if begin else None
    if begin is None or end is None:
        raise SkillBankError(
            f"{where} is not a skill: it must start with YAML between two lines `---`. Nothing was imported."
        )
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
                    f"{MAX_VALUES:,} keys and values. Nothing was imported."
                )
        front = yaml.load(source, Loader=loader)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        reason = getattr(error, "problem", None) or "characters that YAML does not allow"
        cure = " Put a text that contains a colon in quotes." if reason.startswith("mapping values") else ""
        raise SkillBankError(f"{where}:{line} is not valid YAML: {reason}.{cure} Nothing was imported.") from None
    if not isinstance(front, dict):
        raise SkillBankError(f"{where}: the front matter must be a map, found {quote(front)}. Nothing was imported.")
    return front, text[end.end() :].removeprefix("\n")


def _skill(folder: Path, notices: list[str]) -> Skill:
    where = folder / FILE
    if where.is_symlink() or folder.is_symlink():
        raise SkillBankError(f"{where} is reached through a link, which is not followed. Nothing was imported.")
    try:
        if where.stat().st_size > MAX_BYTES:
            raise SkillBankError(f"{where} is larger than {MAX_BYTES:,} bytes. Nothing was imported.")
        data = where.read_bytes()
    except OSError as error:
        raise refusal("read", where, error) from error
    front, body = parts_of(decoded(data, where), str(where))
    metadata = front.get("metadata")
    try:
        if isinstance(metadata, dict) and f"{OURS}id" in metadata:
            skill = _our_skill(metadata, body)
        else:
            skill = _foreign_skill(front, body, folder)
        skill = _with_others(skill, front)
    except SkillBankError as error:
        raise SkillBankError(f"{where}: {error} Nothing was imported.") from None
    notices += _not_taken(
        f"not imported from {folder.name}", [each for each in sorted(folder.iterdir()) if each != where]
    )
    return skill


def _our_skill(metadata: Mapping[str, Any], body: str) -> Skill:
    given = {key.removeprefix(OURS).replace("-", "_"): value for key, value in metadata.items() if key.startswith(OURS)}
    values: dict[str, Any] = {name: given[name] for name in (*TEXTS, "extra") if name in given}
    for name in (*LISTS, "version", *STATS):
        if name in given:
            try:
                values[name] = parse_json(given[name]) if isinstance(given[name], str) else given[name]
            except ValueError:
                key = OURS + name.replace("_", "-")
                raise SkillBankError(f"{key} must be written as JSON, found {quote(given[name])}.") from None
    values["stats"] = {name: values.pop(name) for name in STATS if name in values}
    return skill_from_dict({"title": "", "text": body.removeprefix("\n").removesuffix("\n"), **values})


def _foreign_skill(front: Mapping[str, Any], body: str, folder: Path) -> Skill:
    name, description = (str(front.get(key) or "").strip() for key in ("name", "description"))
    title = name or folder.name
    values = {"id": slug(title) or slug(folder.name), "title": title, "text": body.strip() or description}
    values = {key: value for key, value in values.items() if value}
    extra = {"fields": {DESCRIBED: True}}
    return skill_from_dict({**values, "when_to_apply": description, "extra": extra}, source=NAME)


def _with_others(skill: Skill, front: Mapping[str, Any]) -> Skill:
    """Add the remaining front matter to the skill's `extra`; metadata that `extra` holds in another form (1.5 for "1.5") stays unchanged."""
    extra = parse_extra(skill.extra)
    known = extra.get("metadata")
    others = {key: value for key, value in front.items() if key not in ("name", "description", "metadata")}
    foreign = front.get("metadata", {})
    if isinstance(foreign, dict):
        foreign = {key: value for key, value in foreign.items() if not key.startswith(OURS)}
    if foreign != (_as_texts(known) if isinstance(known, dict) else {}):
        others["metadata"] = foreign
    return replace(skill, extra=extra_text({**extra, **others}))


def _not_taken(what: str, entries: list[Path]) -> list[str]:
    names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    more = f" and {len(names) - MAX_NAMED} more" * (len(names) > MAX_NAMED)
    return [f"{what}: {', '.join(map(quote, names[:MAX_NAMED]))}{more}"] if names else []
