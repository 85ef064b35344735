"""A bank at one version, a frozen value, and what may change it: a snapshot and proposed changes in, validated changes out.

Retrieval, prompts and merging see a `Snapshot`, never a bank that changes. Every change passes `validate_changes`; `eviction_key`
is the order of eviction. Texts are data of unknown origin and are stored unchanged, but an id, which models write and prompts show, must
be a plain word.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain, count, islice
from types import MappingProxyType
from typing import Any, Literal, get_args

from skill_ttrl.errors import SkillBankError
from skill_ttrl.sanitize import flags, replace_surrogates
from skill_ttrl.types import Change, ChangeKind, Skill, SkillStats, Tier

OnDuplicate = Literal["refuse", "skip", "replace", "rename"]
MAX_ID = 128
"""Longest id in characters."""
TIERS: tuple[str, ...] = get_args(Tier)
_ID = re.compile(rf"[^\s<>\"'&#]{{1,{MAX_ID}}}")
_TEXTS = ("id", "title", "text", "when_to_apply", "tier", "task_type", "source")
_LISTS = ("parents", "evidence", "flags")
_ENDING = ("remove", "evict")
"""Kinds of changes after which the skill is gone."""
EDITABLE = ("title", "text", "when_to_apply", "tier", "task_type", "source")
"""Fields that an edit may set; the others are the bank's own book-keeping."""


@dataclass(frozen=True)
class Snapshot:
    """All skills of one version, by id in sorted order."""

    version: int = 0
    skills: Mapping[str, Skill] = field(default_factory=lambda: MappingProxyType({}))
    origin: str = ""
    """Content of the imported file that the bank started from, besides its skills (their order, its metadata, its layout):
    a JSON object as text, empty if there is none. Used only to write such a file again."""

    @classmethod
    def of(cls, version: int, skills: Iterable[Skill], origin: str = "") -> Snapshot:
        """A snapshot of these skills; a later one of the same id counts."""
        by_id = {skill.id: skill for skill in skills}
        return cls(version, MappingProxyType({key: by_id[key] for key in sorted(by_id)}), origin)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a list of skills: the view that makes it frozen cannot be pickled."""
        return Snapshot.of, (self.version, tuple(self), self.origin)

    def __len__(self) -> int:
        return len(self.skills)

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.skills.values())

    def __contains__(self, skill_id: object) -> bool:
        return skill_id in self.skills

    def get(self, skill_id: str) -> Skill | None:
        """The skill of this id, or None."""
        return self.skills.get(skill_id)

    def changed(self, version: int, changes: Iterable[Change], origin: str | None = None) -> Snapshot:
        """The snapshot after these changes; `origin` None leaves that as it was."""
        skills = dict(self.skills)
        for change in changes:
            if change.before is not None:
                skills.pop(change.before.id, None)
            if change.after is not None:
                skills[change.after.id] = change.after
        return Snapshot.of(version, skills.values(), self.origin if origin is None else origin)


def fits_type(skill: Skill, task_type: str | None) -> bool:
    """True if a task of this type may be shown the skill: it is for the type, for any, or general. None or empty: any task."""
    return not task_type or skill.tier == "general" or skill.task_type in ("", task_type)


def new_ids(snapshot: Snapshot, number: int) -> list[str]:
    """Ids for new skills: `sk_` and the version they will first appear in, then `_2`, `_3`, … within it.

    Made from the version alone, they are the same at each repetition, and an id that was evicted is not given again.
    """
    return list(islice(free_names(f"sk_{snapshot.version + 1:03d}", "_", snapshot), number))


def free_names(base: str, sign: str, taken: Container[str]) -> Iterator[str]:
    """Yield the names that are not taken: `base`, then `base` with the sign and 2, 3, … behind it."""
    return (name for name in chain([base], (f"{base}{sign}{number}" for number in count(2))) if name not in taken)


def normalize_skill(skill: Skill) -> Skill:
    """The skill as it can be stored: half characters (lone surrogates) replaced, lists as tuples, everything of its type.

    Raises:
        SkillBankError: the id is no plain word, the tier is unknown, the text is empty or a field has another type.
    """
    where = f"Skill {quote(skill.id)}"
    if not is_id(skill.id):
        raise SkillBankError(
            f"{quote(skill.id)} cannot be a skill's id. An id is one word of at most {MAX_ID} printable characters "
            "without quotes, '<', '>', '&' and '#', e.g. sk_001."
        )
    checked: dict[str, Any] = {name: _text(getattr(skill, name), f"{where}: {name}") for name in _TEXTS}
    checked |= {name: _texts(getattr(skill, name), f"{where}: {name}") for name in _LISTS}
    if checked["tier"] not in TIERS:
        raise SkillBankError(f"{where} has the tier {checked['tier']!r}. A tier is one of: {', '.join(TIERS)}.")
    if not checked["text"].strip():
        raise SkillBankError(f"{where} has an empty text. Write one.")
    counts = [skill.version, *(getattr(skill.stats, each.name) for each in fields(SkillStats))]
    if counts[-1] is None:  # never used
        counts.pop()
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise SkillBankError(f"{where}: version and statistics must be whole numbers of 0 or more, found {counts}.")
    return replace(skill, **checked)


def is_id(skill_id: object) -> bool:
    """True for a plain word of printable characters without spaces, quotes, `<`, `>`, `&` and `#`."""
    return isinstance(skill_id, str) and _ID.fullmatch(skill_id) is not None and skill_id.isprintable()


def flagged(skill: Skill) -> Skill:
    """The skill with what looks hostile in its words noted in `flags`."""
    return replace(skill, flags=flags("\n".join((skill.title, skill.text, skill.when_to_apply))))


def validate_changes(snapshot: Snapshot, changes: Iterable[Change]) -> tuple[Change, ...]:
    """The changes, one after another, checked against what they change and tidied.

    Raises:
        SkillBankError: a change of a skill that is not there or has become another since, or an id given twice.
    """
    skills = dict(snapshot.skills)
    done = []
    for change in changes:
        _check_kind(change)
        before = _current(skills, change)
        after = None if change.after is None else _stored(change.after, before)
        if before is not None:
            del skills[before.id]
        if after is not None:
            if after.id in skills:
                raise duplicate_error(after.id, snapshot.version)
            skills[after.id] = after
        done.append(replace(change, before=before, after=after))
    return tuple(done)


def evictions(snapshot: Snapshot, capacity: int, *, spare: Collection[str] = ()) -> tuple[Change, ...]:
    """Changes that bring the bank down to `capacity` skills, the least useful first.

    Those of `spare` (just added) stay as long as there are others.
    """
    over = len(snapshot) - capacity
    if over <= 0:
        return ()
    order = sorted(snapshot, key=lambda skill: (skill.id in spare, eviction_key(skill)))
    return tuple(Change("evict", skill, None) for skill in order[:over])


def eviction_key(skill: Skill) -> tuple[float, int, int, str]:
    """Order of eviction: by success rate (one success and one failure added, so that an unused skill counts as 1/2), then
    by the round of the last use (of the creation where there was none), then by the round of the creation, then by id.
    """
    stats = skill.stats
    return (stats.successes + 1) / (stats.uses + 2), last_active(skill), stats.created_step, skill.id


def last_active(skill: Skill) -> int:
    """The round of its last use, or of its creation."""
    used, created = skill.stats.last_used_step, skill.stats.created_step
    return created if used is None else max(used, created)


def as_successor(old: Skill, new: Skill) -> Skill:
    """`new` in the place of `old`: one version on, with its statistics, and `old` among its ancestors.

    Where the id stays the same, the version tells them apart and no parent is added.
    """
    ancestors = [*old.parents, *new.parents, *([old.id] if new.id != old.id else [])]
    parents = tuple(dict.fromkeys(name for name in ancestors if name != new.id))
    return replace(new, version=old.version + 1, parents=parents, stats=old.stats)


def with_usage(skill: Skill, uses: int, successes: int, round: int | None) -> Skill:
    """The skill after so many more uses and successes; `round` is when."""
    stats = skill.stats
    last = stats.last_used_step if round is None else max(round, stats.last_used_step or 0)
    counted = replace(stats, uses=stats.uses + uses, successes=stats.successes + successes, last_used_step=last)
    return replace(skill, stats=counted)


def difference(a: Snapshot, b: Snapshot) -> tuple[Change, ...]:
    """The changes that make `a` into `b`, by id: what only `b` has is added, what only `a` has removed, the rest edited."""
    found: list[Change] = []
    for skill_id in sorted({*a.skills, *b.skills}):
        before, after = a.get(skill_id), b.get(skill_id)
        if before != after:
            kind: ChangeKind = "add" if before is None else "remove" if after is None else "edit"
            found.append(Change(kind, before, after))
    return tuple(found)


def content_changes(a: Snapshot, b: Snapshot) -> tuple[Change, ...]:
    """`difference` without the skills whose statistics alone differ: what a prompt could show otherwise."""
    return tuple(change for change in difference(a, b) if without_stats(change.before) != without_stats(change.after))


def usage_changes(a: Snapshot, b: Snapshot) -> tuple[Change, ...]:
    """The changes that give the skills of `a` the statistics that they have in `b`; skills of one of them alone are left out."""
    found = ((skill, b.get(skill.id)) for skill in a)
    return tuple(
        Change("use", skill, replace(skill, stats=other.stats))
        for skill, other in found
        if other is not None and other.stats != skill.stats
    )


def without_stats(skill: Skill | None) -> Skill | None:
    """The skill without its statistics and flags: equal ones say the same."""
    return None if skill is None else replace(skill, stats=SkillStats(), flags=())


def imported(snapshot: Snapshot, skills: Iterable[Skill], on_duplicate: OnDuplicate = "refuse") -> tuple[Change, ...]:
    """The changes that bring `skills` into the bank.

    Args:
        snapshot: the bank they come into.
        skills: in order; an id may occur twice among themselves too.
        on_duplicate: for an id that is taken: `refuse` all, `skip` the new one, `replace` the old one (which keeps its
            statistics and lineage), or `rename` the new one to `ID_2`, `ID_3`, …

    Raises:
        SkillBankError: an id is taken, under `refuse`.
    """
    if on_duplicate not in get_args(OnDuplicate):
        raise SkillBankError(
            f"Unknown value {on_duplicate!r} of on_duplicate. Known: {', '.join(get_args(OnDuplicate))}."
        )
    held = dict(snapshot.skills)
    found: list[Change] = []
    for skill in skills:
        old, new = held.get(skill.id), skill
        if old is not None and on_duplicate == "refuse":
            raise duplicate_error(skill.id, snapshot.version if skill.id in snapshot else None)
        if old is not None and on_duplicate == "rename":
            names = (f"{skill.id[: MAX_ID - 8]}_{number}" for number in range(2, len(held) + 3))
            old, new = None, replace(skill, id=next(name for name in names if name not in held))
        if old is not None and (on_duplicate == "skip" or all(getattr(old, f) == getattr(new, f) for f in EDITABLE)):
            continue
        new = new if old is None else as_successor(old, new)
        found.append(Change("add" if old is None else "replace", old, new))
        held[new.id] = new
    return tuple(found)


def duplicate_error(skill_id: str, version: int | None) -> SkillBankError:
    """The error for an id that is taken: in the bank at this version, or (None) twice among what is imported."""
    if version is None:
        return SkillBankError(f"The id {quote(skill_id)} is given twice. Ids are unique in a bank: change one of them.")
    return SkillBankError(
        f"There is a skill {quote(skill_id)} in the bank already (version {version}). Choose another id, or replace or "
        "edit that skill."
    )


def quote(text: object) -> str:
    """An untrusted id for a message: quoted, control characters written out, not longer than a line."""
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else quoted[:79] + "…"


def _current(skills: Mapping[str, Skill], change: Change) -> Skill | None:
    if change.before is None:
        return None
    current = skills.get(change.before.id)
    if current is None:
        raise SkillBankError(
            f"Cannot {change.kind} the skill {quote(change.before.id)}: it is not in the bank (anymore). Create the change from the bank's present version."
        )
    # What looks hostile is found anew by each version of the library: it says nothing about who changed the skill.
    if replace(normalize_skill(change.before), flags=()) != replace(current, flags=()):
        raise SkillBankError(
            f"Cannot {change.kind} the skill {quote(current.id)}: it has changed since the change was created. Create it again from the bank's present version."
        )
    return current


def _stored(after: Skill, before: Skill | None) -> Skill:
    """The skill to store; its words are searched for hostile ones only where they are new."""
    skill = normalize_skill(after)
    if before is not None and all(getattr(skill, name) == getattr(before, name) for name in EDITABLE[:3]):
        return replace(skill, flags=before.flags)
    return flagged(skill)


def _check_kind(change: Change) -> None:
    kind, kinds = change.kind, get_args(ChangeKind)
    if kind not in kinds:
        raise SkillBankError(f"Unknown kind of change {kind!r}. Known: {', '.join(kinds)}.")
    expected, found = (kind != "add", kind not in _ENDING), (change.before is not None, change.after is not None)
    if expected != found:
        raise SkillBankError(f"A change of kind {kind!r} has a skill before and after: {expected}; found {found}.")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise SkillBankError(f"{where} is a text, found {quote(value)}.")
    return replace_surrogates(value)


def _texts(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SkillBankError(f"{where} is a list of texts, found {quote(value)}.")
    return tuple(_text(item, where) for item in value)
