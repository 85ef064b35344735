"""Differences between two versions of a bank, or between two banks: folders, runs that have one, files in any format.

Skills with the same id are the same skill. Of the rest, those with the same text, then those with the same title in the same
tier, are the same skill under another id. The content of a skill (words, tier, type, and unknown fields) decides if it has changed.
Its records (statistics, version, lineage, source, evidence) are compared separately, so two copies of one bank that were used in
different runs have the same content.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from skill_ttrl.data.operators import bank_family
from skill_ttrl.errors import SkillBankError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.sanitize import escape_terminal, one_line
from skill_ttrl.skills.changes import imported
from skill_ttrl.skills.extra_fields import parse_extra
from skill_ttrl.skills.folder import is_bank
from skill_ttrl.skills.formats.files import read_file
from skill_ttrl.skills.formats.records import SkillFile
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.stages.inspecting.inspect_bank import bank_folder, look
from skill_ttrl.types import Change, Skill, SkillStats

MAX_COMPARED = 50_000
"""Characters of a skill's text that are compared line by line."""
SAID = ("title", "when_to_apply", "tier", "task_type", "extra", "text")
"""Fields that decide if two skills have the same content."""
KEPT = ("version", "parents", "source", "evidence")
"""Fields that are compared separately, as the statistics are."""


@dataclass(frozen=True, slots=True)
class SkillDiff:
    """One skill in two versions."""

    id: str
    kind: str
    """add, remove or edit."""
    lines: Sequence[str]
    """A unified diff."""


@dataclass(frozen=True, slots=True)
class BankDiff:
    """Differences between two versions of a bank."""

    path: str
    a: int
    b: int
    skills: Sequence[SkillDiff]


@dataclass(frozen=True, slots=True)
class BankSide:
    """One of the two."""

    path: str
    version: int | None
    """None for a file."""
    skills: int


@dataclass(frozen=True, slots=True)
class SkillChange:
    """A skill that only one bank has, or that says something else in the other."""

    kind: str
    """added, removed or changed."""
    id: str
    """Its id in B; that in A where B has it no more."""
    was: str | None
    """Its id in A, where that is another one."""
    matched_by: str | None
    """id, text or title; None where only one bank has it."""
    lines: Sequence[str]
    """A unified diff."""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """Something that is kept about a skill, in both banks."""

    id: str
    field: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class BankComparison:
    """Differences between bank A and bank B."""

    a: BankSide
    b: BankSide
    same: int
    """Skills that say the same in both."""
    skills: Sequence[SkillChange]
    records: Sequence[RecordChange]
    """Statistics, version, lineage, source and evidence of skills that both have."""
    notes: Sequence[str] = ()


def skills_at(path: str | Path, format: str | None = None) -> tuple[SkillFile, int | None]:
    """The skills at a path and the bank's version: a bank's folder, a run that has one, a file, or `synthetic:operators` (None: no version).

    Raises:
        SkillBankError: nothing is there, or it holds no skills; the message suggests similar names.
    """
    if str(path).startswith("synthetic:"):
        return SkillFile(bank_family(str(path).removeprefix("synthetic:"))), None
    path = Path(path)
    if not path.exists():
        raise SkillBankError(
            f"There is nothing at {path}.{_alike(path)} Name a bank's folder, a run, or a file of skills."
        )
    if format is None and (is_bank(path) or RunFolder.exists(path)):
        with look(path) as bank:
            now = bank.snapshot()
        return SkillFile(list(now), now.origin), now.version
    return read_file(path, format), None


def compare_banks(a: str | Path, b: str | Path) -> BankComparison:
    """Compare the skills at `a` with those at `b`.

    Raises:
        SkillBankError: see `skills_at`; or a file holds an id twice.
    """
    (file_a, version_a), (file_b, version_b) = skills_at(a), skills_at(b)
    old, new = (_by_id(file.skills, path) for file, path in ((file_a, a), (file_b, b)))
    pairs, removed, added = match(old.values(), new.values())
    changed = [(skill, other, how) for skill, other, how in pairs if _said(skill) != _said(other)]
    skills = [_change("removed", skill, None, None) for skill in removed]
    skills += [_change("added", None, skill, None) for skill in added]
    skills += [_change("changed", skill, other, how) for skill, other, how in changed]
    records = [record for skill, other, _ in pairs for record in _records(skill, other)]
    renamed = [f"{skill.id} is {other.id} now (same {how})" for skill, other, how in pairs if how != "id"]
    notes = [*renamed, *file_a.notices, *file_b.notices]
    sides = [
        BankSide(str(bank_folder(path)), version, len(found))
        for path, version, found in ((a, version_a, old), (b, version_b, new))
    ]
    return BankComparison(sides[0], sides[1], len(pairs) - len(changed), skills, records, notes)


def diff_bank(path: str | Path, a: int, b: int) -> BankDiff:
    """Compare two versions of a bank, skill by skill.

    Raises:
        SkillBankError: there is no such version.
    """
    with look(path) as bank:
        return BankDiff(str(bank_folder(path)), a, b, [_skill_diff(change, a, b) for change in bank.diff(a, b)])


def match(a: Iterable[Skill], b: Iterable[Skill]) -> tuple[list[tuple[Skill, Skill, str]], list[Skill], list[Skill]]:
    """(pairs with how they were matched, those of `a` alone, those of `b` alone), each in the order of ids.

    Of several that could be matched, the first ids are.
    """
    left, right = sorted(a, key=lambda skill: skill.id), sorted(b, key=lambda skill: skill.id)
    ways: Mapping[str, Callable[[Skill], object]] = {
        "id": lambda skill: skill.id,
        "text": lambda skill: " ".join(skill.text.split()),
        "title": lambda skill: (
            (" ".join(skill.title.lower().split()), skill.tier) if skill.title.strip() else id(skill)
        ),
    }
    pairs: list[tuple[Skill, Skill, str]] = []
    for how, key in ways.items():
        waiting: dict[object, list[Skill]] = {}
        for skill in right:
            waiting.setdefault(key(skill), []).append(skill)
        lonely = []
        for skill in left:
            others = waiting.get(key(skill))
            if others:
                pairs.append((skill, others.pop(0), how))
            else:
                lonely.append(skill)
        left, right = lonely, [skill for skill in right if any(skill is other for other in waiting[key(skill)])]
    return sorted(pairs, key=lambda pair: pair[1].id), left, right


def _by_id(skills: Sequence[Skill], path: str | Path) -> dict[str, Skill]:
    try:
        imported(Snapshot(), skills)
    except SkillBankError as error:
        raise SkillBankError(f"{path}: {error}") from None
    return {skill.id: skill for skill in skills}


def _said(skill: Skill) -> tuple[str, ...]:
    return (*(str(getattr(skill, name)) for name in SAID if name != "extra"), _other_fields(skill))


def _other_fields(skill: Skill) -> str:
    """Fields that mean nothing to us; the order and the spelling that a file had are no matter here."""
    found = parse_extra(skill.extra)
    return json.dumps(dict(found), sort_keys=True, ensure_ascii=False) if found else ""


def _change(kind: str, a: Skill | None, b: Skill | None, how: str | None) -> SkillChange:
    shown = b or a
    assert shown is not None
    was = a.id if a is not None and b is not None and a.id != b.id else None
    names = (f"{a.id if a else shown.id} (A)", f"{shown.id} (B)")
    lines = difflib.unified_diff(_lines(a, _said_fields), _lines(b, _said_fields), *names, lineterm="")
    return SkillChange(kind, shown.id, was, how, list(lines))


def _skill_diff(change: Change, a: int, b: int) -> SkillDiff:
    before, after = change.before, change.after
    skill_id = (before or after or Skill("", "", "")).id
    names = (f"{skill_id} (version {a})", f"{skill_id} (version {b})")
    lines = difflib.unified_diff(_lines(before, _stored_fields), _lines(after, _stored_fields), *names, lineterm="")
    return SkillDiff(skill_id, change.kind, list(lines))


def _lines(skill: Skill | None, fields_of: Callable[[Skill], Mapping[str, object]]) -> list[str]:
    """A skill as lines to compare: fields by name, then its text."""
    if skill is None:
        return []
    head = [f"{name}: {one_line(str(value))}" for name, value in fields_of(skill).items()]
    rest = len(skill.text) - MAX_COMPARED
    more = [f"… {rest:,} more characters"] if rest > 0 else []
    return [*head, "", *escape_terminal(skill.text[:MAX_COMPARED]).split("\n"), *more]


def _said_fields(skill: Skill) -> dict[str, object]:
    said = {name.replace("_", " "): getattr(skill, name) for name in SAID[:-2]} | {"other fields": _other_fields(skill)}
    return {name: value for name, value in said.items() if value}


def _stored_fields(skill: Skill) -> dict[str, object]:
    stats = skill.stats
    return {
        "title": skill.title,
        "when to apply": skill.when_to_apply,
        "tier": skill.tier,
        "task type": skill.task_type,
        "version": skill.version,
        "parents": ", ".join(skill.parents),
        "source": skill.source,
        "evidence": ", ".join(skill.evidence),
        "uses": f"{stats.uses}, successful {stats.successes}, last in round {stats.last_used_step}",
    }


def _records(a: Skill, b: Skill) -> list[RecordChange]:
    found = [(name, getattr(a, name), getattr(b, name)) for name in KEPT]
    stats_a, stats_b = asdict(a.stats), asdict(b.stats)
    found += [(each.name, stats_a[each.name], stats_b[each.name]) for each in fields(SkillStats)]
    return [RecordChange(b.id, name, old, new) for name, old, new in found if old != new]


def _alike(path: Path) -> str:
    """A sentence with the names in the same folder that are most like the one asked for; empty when there are none."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:  # the folder is not there either, or shows nothing: then nothing is like it
        return ""
    near = difflib.get_close_matches(path.name, names, n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(str(path.parent / name) for name in near)}?" if near else ""
