"""Skills as folders of the Agent Skills standard (agentskills.io): `NAME/SKILL.md`, YAML between two `---`, then Markdown.

    ---
    name: "modular-arithmetic"
    description: "Modular arithmetic: Use Fermat's little theorem. Use when: powers modulo a prime"
    metadata:
      skill-ttrl-id: "sk_001"
      skill-ttrl-uses: "12"
    ---

    Use Fermat's little theorem.

What we write is valid against the standard (`problems`) and read back exactly: the body is the skill's text,
and `metadata` holds the rest, lineage and statistics included. A text that is too long for a body stands in
`references/advice.md`. The names of the folders come from titles.

Of a folder by others, `name` becomes id and title, `description` when to apply, and the body the text; `license`, foreign
`metadata` and the like stay in `Skill.extra`. Scripts, references and assets are not taken, which is said. A folder is untrusted:
nothing of it is run or followed (links neither), and its YAML makes texts only.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from skill_ttrl.errors import SkillBankError
from skill_ttrl.sanitize import escape, replace_surrogates
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.extra_fields import extra_text, parse_extra
from skill_ttrl.skills.folder import refusal
from skill_ttrl.skills.formats.records import FolderFormat, SkillFile, skill_from_dict
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Skill, SkillStats

NAME = "agentskills"
FILE = "SKILL.md"
ADVICE = "references/advice.md"
MAX_NAME, MAX_DESCRIPTION, MAX_COMPATIBILITY = 64, 1024, 500
MAX_LINES = 499
MAX_CHARS = 16_000
"""Most characters of a body: the standard recommends less than 5,000 tokens."""
OURS = "skill-ttrl-"
"""Begins our keys in `metadata`."""
DESCRIBED = "described"
"""In the fields of `Skill.extra`: `when_to_apply` is a whole description, of a folder by others."""
TEXTS = ("id", "title", "when_to_apply", "tier", "task_type", "version", "source")
LISTS = ("parents", "evidence", "flags")
STATS = tuple(each.name for each in fields(SkillStats))


def dump_folders(snapshot: Snapshot) -> dict[str, str]:
    """The files of all skills: paths with `/`, relative to the folder that is to hold them, and their texts."""
    files: dict[str, str] = {}
    for name, skill in zip(names_of(list(snapshot)), snapshot, strict=True):
        files |= {f"{name}/{path}": text for path, text in skill_files(skill, name).items()}
    return files


def names_of(skills: list[Skill]) -> list[str]:
    """A valid folder name for each skill, from its title, else its id.

    Skills whose names would be the same all get six digits that come from their ids alone: none of these names depends on
    the order of the skills or on how many there are.
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
    told = _digest(skill.id)[: min(digits, 54)]
    return f"{name[: MAX_NAME - len(told) - 1].rstrip('-')}-{told}"


def skill_files(skill: Skill, name: str) -> dict[str, str]:
    """The files of one skill's folder by their paths in it."""
    long = len(skill.text.splitlines()) >= MAX_LINES or len(skill.text) > MAX_CHARS
    body = f"The advice is long: read all of [{ADVICE}]({ADVICE})." if long else skill.text
    extra = parse_extra(skill.extra)
    front: dict[str, Any] = {"name": name, "description": describe(skill)}
    for key in ("license", "compatibility", "allowed-tools"):
        value = extra.get(key)
        allowed = isinstance(value, str) and (key != "compatibility" or 0 < len(value) <= MAX_COMPATIBILITY)
        if allowed or (key == "allowed-tools" and is_texts(value)):
            front[key] = value
    others = extra.get("metadata")
    front["metadata"] = _own(skill, long) | (as_texts(others) if isinstance(others, dict) else {})
    lines = ["---", *_yaml(front), "---", "", body]
    return {FILE: "\n".join(lines) + "\n", **({ADVICE: skill.text} if long else {})}


def describe(skill: Skill) -> str:
    """Describe the skill and when to use it, in one line of 1 to 1,024 characters that opens none of our tags."""
    when = " ".join(escape(skill.when_to_apply).split())
    if parse_extra(skill.extra).get(DESCRIBED) is True and when:
        return when[:MAX_DESCRIPTION].rstrip()
    when = when or (f"the task is of the type {skill.task_type}" if skill.task_type else "any task like it")
    use = f"Use when: {_short(' '.join(escape(when).split()), 400)}"
    what = ": ".join(part for part in (" ".join(escape(each).split()) for each in (skill.title, skill.text)) if part)
    if skill.tier == "mistake":
        what = f"A mistake to avoid. {what}"
    return f"{_short(what, MAX_DESCRIPTION - len(use) - 1)} {use}".strip()


def _own(skill: Skill, long: bool) -> dict[str, str]:
    """Return the fields of a skill that are not in the body, as texts by our keys; omits default values."""
    plain = Skill("", "", "")
    values = {name: getattr(skill, name) for name in (*TEXTS, *LISTS) if getattr(skill, name) != getattr(plain, name)}
    counts = {name: getattr(skill.stats, name) for name in STATS}
    values |= {name: value for name, value in counts.items() if value != getattr(plain.stats, name)}
    rate = skill.stats.success_rate
    values |= {"success_rate": f"{rate:.3f}"} if rate is not None else {}
    values |= {"extra": skill.extra} if skill.extra else {}
    values |= {"text": ADVICE} if long else {}
    texts = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {
        OURS + name.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
        for name, value in texts.items()
    }


def _yaml(front: Mapping[str, Any]) -> list[str]:
    """The lines of the front matter: every value in double quotes, on one line."""
    lines = []
    for key, value in front.items():
        if isinstance(value, str):
            lines.append(f"{key}: {_quoted(value)}")
        elif isinstance(value, list):
            lines += [f"{key}:", *(f"  - {_quoted(item)}" for item in value)]
        else:
            lines += [f"{key}:", *(f"  {_key(name)}: {_quoted(item)}" for name, item in value.items())]
    return lines


def _quoted(text: str) -> str:
    """A YAML text in double quotes without `---`: some readers end the front matter there, wherever it stands."""
    escapes = {'"': '\\"', "\\": "\\\\"}
    found = "".join(
        escapes.get(sign) or (sign if sign.isprintable() else _escaped(sign)) for sign in replace_surrogates(text)
    )
    return f'"{found}"'.replace("--", "-\\x2d")


def _escaped(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[a-z][a-z0-9_.-]*", name) and "---" not in name else _quoted(name)


def as_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """A foreign `metadata` as the standard wants it: texts by texts, none of them under a key of ours."""
    return {
        str(key): value if isinstance(value, str) else json.dumps(value)
        for key, value in values.items()
        if not str(key).startswith(OURS)
    }


def slug(text: str) -> str:
    """The letters and digits of a text as a valid name; empty where it has none."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME].rstrip("-")


def _digest(text: str) -> str:
    return hashlib.sha256(replace_surrogates(text).encode()).hexdigest()


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 1)].rstrip() + "…"


def is_texts(value: object) -> bool:
    """True if `value` is a list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


# Reading.

MAX_BYTES = 4_000_000
"""A larger file is refused unread."""
OPTIONAL = ("license", "compatibility", "allowed-tools", "metadata")
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_BEGIN = re.compile(r"---[ \t]*\n")
_END = re.compile(r"^---[ \t]*$", re.MULTILINE)
MAX_NAMED = 5
MAX_DEPTH = 20
"""Most lists and maps inside each other in front matter."""
MAX_VALUES = 10_000
"""Most keys and values in front matter: reading YAML takes long for each of them."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A SKILL.md taken apart."""

    front: Mapping[str, Any]
    """Texts, and lists and maps of them."""
    body: str
    """Everything behind the line that ends the front matter."""


def holds_skills(path: Path) -> bool:
    """True if `path` is a folder with a SKILL.md, or contains such folders."""
    return path.is_dir() and ((path / FILE).is_file() or any(path.glob(f"*/{FILE}")))


def read_agentskills(path: Path) -> SkillFile:
    """The skills of a folder, of the folders in it, or of one SKILL.md; in the order of their names.

    Of several, one that cannot be read is a notice, and the others are taken.

    Raises:
        SkillBankError: there is none, or none can be read.
    """
    folder = path.parent if path.name == FILE else path
    folder = folder.resolve() if folder.is_symlink() else folder  # its user chose it; links inside are others' choice
    notices: list[str] = []
    if (folder / FILE).is_file():
        return SkillFile([_skill(folder, notices)], notices=tuple(notices))
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise refusal("read", folder, error) from error
    found = [entry for entry in inside if (entry / FILE).is_file()]
    if not found and inside:
        raise SkillBankError(f"{folder} holds no skills: expected a {FILE}, or folders with one each.")
    others = [entry for entry in inside if entry not in found]
    notices += [f"skipped, not skills: {_named(others)}"] if others else []
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


def parts_of(text: str, where: str) -> Parts:
    """A SKILL.md's front matter and body.

    Raises:
        SkillBankError: there is no front matter, or it is no map in YAML.
    """
    import yaml

    text = text.removeprefix("\ufeff")
    if text.partition("\n")[0].endswith("\r"):  # an editor has changed the line ends of the whole file
        text = text.replace("\r\n", "\n")
    begin = _BEGIN.match(text)
    end = _END.search(text, begin.end()) if begin else None
    if begin is None or end is None:
        raise SkillBankError(
            f"{where} is no skill: it must start with YAML between two lines `---`. Nothing was imported."
        )
    source = text[begin.end() : end.start()]
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # libyaml's is ten times as fast; wheels have it
    try:
        # BaseLoader makes texts, lists and maps, nothing else: the standard knows texts only, and 1.10 stays 1.10.
        # An alias could name a list a billion times over, and deep nesting takes forever to read.
        depth = values = 0
        for event in yaml.parse(source, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise SkillBankError(f"{where}: YAML with aliases (*name) is not read. Nothing was imported.")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            values += isinstance(event, yaml.ScalarEvent)
            if depth > MAX_DEPTH:
                raise SkillBankError(f"{where} is nested too deeply to be read. Nothing was imported.")
            if values > MAX_VALUES:
                raise SkillBankError(
                    f"{where} has more than {MAX_VALUES:,} keys and values in its front matter, which is too many for a skill. "
                    "Nothing was imported."
                )
        front = yaml.load(source, Loader=loader)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        reason = getattr(error, "problem", None) or "characters that YAML does not allow"
        cure = " A text with a colon has to be put in quotes." if reason.startswith("mapping values") else ""
        raise SkillBankError(f"{where}:{line} is no YAML: {reason}.{cure} Nothing was imported.") from None
    if not isinstance(front, dict):
        raise SkillBankError(
            f"{where}: the front matter is a map (name: …), found {quote(front)}. Nothing was imported."
        )
    return Parts(front, text[end.end() :].removeprefix("\n"))


def problems(folder: str | Path) -> list[str]:
    """Where a skill's folder breaks the standard, in sentences; empty for a valid one.

    Raises:
        SkillBankError: its SKILL.md cannot be read at all.
    """
    folder = Path(folder)
    return _problems(parts_of(_text(folder / FILE), str(folder / FILE)), folder.resolve().name)


def _problems(parts: Parts, folder: str) -> list[str]:
    front, found = parts.front, list[str]()
    name, description = front.get("name"), front.get("description")
    if not (isinstance(name, str) and _NAME.fullmatch(name) and len(name) <= MAX_NAME):
        found.append(f"name is 1 to {MAX_NAME} of a-z, 0-9 and single hyphens inside, found {quote(name)}")
    elif name != folder:
        found.append(f"name is {name!r}, the folder {folder!r}")
    if not (isinstance(description, str) and description.strip() and len(description) <= MAX_DESCRIPTION):
        found.append(f"description is 1 to {MAX_DESCRIPTION} characters, found {_size(description)}")
    license, compatibility, tools = (front.get(key, "x") for key in OPTIONAL[:3])
    if not isinstance(license, str):
        found.append(f"license is a text, found {quote(license)}")
    if not (isinstance(compatibility, str) and 0 < len(compatibility) <= MAX_COMPATIBILITY):
        found.append(f"compatibility is 1 to {MAX_COMPATIBILITY} characters, found {_size(compatibility)}")
    if not (isinstance(tools, str) or is_texts(tools)):
        found.append(f"allowed-tools is a text or a list of texts, found {quote(tools)}")
    metadata = front.get("metadata", {})
    if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
        found.append("metadata is a map of texts")
    unknown = [key for key in front if key not in ("name", "description", *OPTIONAL)]
    if unknown:
        found.append(f"unknown keys {quote(', '.join(unknown))}")
    lines = len(parts.body.splitlines())
    if lines > MAX_LINES:
        found.append(f"the body has {lines} lines, of at most {MAX_LINES}")
    return found


def _size(value: object) -> str:
    return str(len(value)) if isinstance(value, str) else quote(value)


def _skill(folder: Path, notices: list[str]) -> Skill:
    where = str(folder / FILE)
    parts = parts_of(_text(folder / FILE), where)
    metadata = parts.front.get("metadata")
    ours = isinstance(metadata, dict) and f"{OURS}id" in metadata
    broken = _problems(parts, folder.resolve().name)
    notices += [f"{folder.name} is read, but breaks the standard: {'; '.join(broken)}"] if broken else []
    try:
        skill = _our_skill(parts, folder) if ours else _foreign_skill(parts, folder)
    except SkillBankError as error:
        raise SkillBankError(f"{where}: {error} Nothing was imported.") from None
    long = ours and parts.front["metadata"].get(f"{OURS}text") == ADVICE
    taken = {folder / FILE, *([folder / Path(ADVICE).parent] if long else [])}
    left = sorted(entry for entry in folder.iterdir() if entry not in taken)
    notices += [f"not taken of {folder.name}: {_named(left)}"] if left else []
    return skill


def _our_skill(parts: Parts, folder: Path) -> Skill:
    metadata = parts.front["metadata"]
    given = {key.removeprefix(OURS).replace("-", "_"): value for key, value in metadata.items() if key.startswith(OURS)}
    values: dict[str, Any] = {name: given[name] for name in (*TEXTS, "extra") if name in given}
    for name in (*LISTS, "version", *STATS):
        if name in given:
            values[name] = _json(given[name], name)
    values["stats"] = {name: values.pop(name) for name in STATS if name in values}
    body = parts.body.removeprefix("\n")
    values["text"] = _text(folder / ADVICE) if given.get("text") == ADVICE else body.removesuffix("\n")
    return _with_others(skill_from_dict({"title": "", **values}), parts.front)


def _foreign_skill(parts: Parts, folder: Path) -> Skill:
    name, description = (parts.front.get(key) for key in ("name", "description"))
    title = name.strip() if isinstance(name, str) and name.strip() else folder.name
    when = description.strip() if isinstance(description, str) else ""
    values = {"id": slug(title) or slug(folder.name), "title": title, "text": parts.body.strip() or when}
    values = {key: value for key, value in values.items() if value}
    skill = skill_from_dict({**values, "when_to_apply": when, "extra": {"fields": {DESCRIBED: True}}}, source=NAME)
    return _with_others(skill, parts.front)


def _with_others(skill: Skill, front: Mapping[str, Any]) -> Skill:
    """Add the remaining front matter to the skill's `extra`; metadata that `extra` holds in another form (1.5 for "1.5") stays unchanged."""
    extra = parse_extra(skill.extra)
    known = extra.get("metadata")
    others = {key: value for key, value in front.items() if key not in ("name", "description", "metadata")}
    foreign = front.get("metadata", {})
    if isinstance(foreign, dict):
        foreign = {key: value for key, value in foreign.items() if not key.startswith(OURS)}
    if foreign != (as_texts(known) if isinstance(known, dict) else {}):
        others["metadata"] = foreign
    return replace(skill, extra=extra_text({**extra, **others}))


def _json(text: object, name: str) -> Any:
    try:
        return parse_json(text) if isinstance(text, str) else text
    except ValueError:
        raise SkillBankError(f"{OURS}{name.replace('_', '-')} is written as JSON, found {quote(text)}.") from None


def _text(path: Path) -> str:
    if path.is_symlink() or path.parent.is_symlink():
        raise SkillBankError(f"{path} is reached by a link, which is not followed. Nothing was imported.")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SkillBankError(f"{path} is larger than {MAX_BYTES:,} bytes. Nothing was imported.")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise refusal("read", path, error) from error
    except UnicodeDecodeError as error:
        raise SkillBankError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None


def _named(entries: list[Path]) -> str:
    names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    return ", ".join(map(quote, names[:MAX_NAMED])) + (f" and {len(names) - MAX_NAMED} more" * (len(names) > MAX_NAMED))


AGENTSKILLS = FolderFormat(NAME, read_agentskills, dump_folders)
