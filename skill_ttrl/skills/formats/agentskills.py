"""Skills as folders of the Agent Skills standard (agentskills.io): `NAME/SKILL.md`, YAML between two `---`, then Markdown.

    ---
    name: "modular-arithmetic"
    description: "Modular arithmetic: Use Fermat's little theorem. Use when: powers modulo a prime"
    metadata:
      skill-ttrl-id: "sk_001"
      skill-ttrl-uses: "12"
    ---

    Use Fermat's little theorem.

What we write is valid against the standard (`agentskills_read.problems`) and read back exactly: the body is the skill's text,
and `metadata` holds the rest, lineage and statistics included. A text that is too long for a body stands in
`references/advice.md`. The names of the folders come from titles. Reading is
`skills/formats/agentskills_read.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from skill_ttrl.sanitize import escape, replace_surrogates
from skill_ttrl.skills.extra_fields import parse_extra
from skill_ttrl.skills.snapshot import Snapshot
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
    extra = parse_extra(skill.extra).fields
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
    if parse_extra(skill.extra).fields.get(DESCRIBED) is True and when:
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
