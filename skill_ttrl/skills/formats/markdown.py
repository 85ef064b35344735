"""Skills as one Markdown file, to be read and edited by people; reading gives back exactly what was written.

    ## sk_001

    - title: Modular arithmetic
    - tier: task
    - when to apply: powers modulo a prime

    ```text
    Use Fermat's little theorem.
    ```

A value that is more than one plain line is written as a JSON text. The fence is longer than any in the text. By hand the
fence may be left out: then the text is everything up to the next heading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from skill_ttrl.errors import SkillBankError, did_you_mean
from skill_ttrl.skills.formats.format import FileFormat
from skill_ttrl.skills.formats.records import SkillFile, skill_from_dict
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Skill, SkillStats

TEXTS = ("title", "tier", "task_type", "when_to_apply", "source", "extra")
LISTS = ("parents", "evidence", "flags")
COUNTS = ("uses", "successes", "created_step", "last_used_step")
FIELDS = (*TEXTS, "version", *LISTS, *COUNTS)


def dump_markdown(snapshot: Snapshot) -> str:
    """A version's skills as Markdown; what has its default value is left out."""
    return "\n".join([f"# Skill bank, version {snapshot.version}\n", *map(_section, snapshot)])


def parse_markdown(text: str, where: str) -> list[Skill]:
    """The skills of a Markdown file.

    Raises:
        SkillBankError: a section is no skill; names file and line.
    """
    if text.partition("\n")[0].endswith("\r"):  # an editor has changed the line ends of the whole file
        text = text.replace("\r\n", "\n")
    found = []
    for number, name, lines in _sections(text):
        place = f"{where}:{number}"
        values, rest = _fields(lines, place)
        body = _body(rest, place)
        try:
            found.append(skill_from_dict({"id": name, "text": body, **values}, source="import"))
        except SkillBankError as error:
            raise SkillBankError(f"{place}: {error} Nothing was imported.") from None
    return found


def _section(skill: Skill) -> str:
    plain = Skill("", "", "")
    lines = [f"## {skill.id}\n"]
    for name in FIELDS:
        owner, default = (skill.stats, plain.stats) if name in COUNTS else (skill, plain)
        value = getattr(owner, name)
        if name == "tier" or value != getattr(default, name):
            lines.append(f"- {name.replace('_', ' ')}: {_value(value)}")
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", skill.text)), 3)
    return "\n".join([*lines, f"\n{fence}text\n{skill.text}\n{fence}\n"])


def _value(value: Any) -> str:
    if isinstance(value, str):
        as_it_is = value.isprintable() and value == value.strip() and value and value[0] not in '"['
        return value if as_it_is else json.dumps(value)
    return json.dumps(value)


def _sections(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, id, lines below) of each `## ` heading outside fences."""
    name, began, lines, fence = "", 0, list[str](), ""
    for number, line in enumerate(text.split("\n"), start=1):
        if not fence and line.startswith("## "):
            if name:
                yield began, name, lines
            name, began, lines = line[3:].strip(), number, []
            continue
        ticks = re.match("`{3,}", line)
        if fence:
            fence = "" if line.rstrip() == fence else fence
        elif ticks:
            fence = ticks[0]
        lines.append(line)
    if name:
        yield began, name, lines


def _fields(lines: list[str], place: str) -> tuple[dict[str, Any], list[str]]:
    """The `- name: value` lines at the top, and the lines below them."""
    values: dict[str, Any] = {}
    at = 0
    while at < len(lines) and (not lines[at].strip() or lines[at].startswith("- ")):
        if lines[at].strip():
            label, colon, value = lines[at][2:].partition(":")
            name = label.strip().replace(" ", "_")
            if not colon or name not in FIELDS:
                raise SkillBankError(
                    f"{place}: unknown field {label.strip()!r} in the list below the heading."
                    f"{did_you_mean(name, FIELDS)} Nothing was imported."
                )
            values[name] = _parsed(name, value.strip(), place)
        at += 1
    counts = {name: values.pop(name) for name in COUNTS if name in values}
    return {**values, "stats": SkillStats(**counts)}, lines[at:]


def _parsed(name: str, value: str, place: str) -> Any:
    if name in TEXTS and not value.startswith('"'):
        return value
    try:
        return parse_json(value)
    except ValueError:
        kind = "a text in quotes" if name in TEXTS else "a list of texts in quotes" if name in LISTS else "a number"
        raise SkillBankError(f"{place}: {name!r} is {kind}, found {value!r}. Nothing was imported.") from None


def _body(lines: list[str], place: str) -> str:
    """The text between the fences, exactly; without a fence all lines, trimmed."""
    opening = re.match("`{3,}", lines[0]) if lines else None
    if opening is None:
        return "\n".join(lines).strip()
    for end, line in enumerate(lines[1:], start=1):
        if line.rstrip() == opening[0]:
            return "\n".join(lines[1:end])
    raise SkillBankError(f"{place}: the fence {opening[0]} of its text is not closed. Nothing was imported.")


MARKDOWN = FileFormat(
    "markdown", lambda text, where: SkillFile(parse_markdown(text, where)), dump_markdown, (".md", ".markdown")
)
