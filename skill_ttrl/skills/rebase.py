"""Rebases proposed changes: made from an older version of a shared bank, they are fitted to the newest one.

Counts of uses add up. A change of a skill that is gone or says something else by now, and a new skill whose id is taken, do not
fit any more: they are left out, each with its reason. Pure functions, like `changes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from skill_ttrl.skills.changes import normalize_skill, quote, without_stats
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.types import Change, Skill, SkillStats


@dataclass(frozen=True, slots=True)
class Rebased:
    """Changes that fit a version, and the others."""

    changes: tuple[Change, ...] = ()
    dropped: tuple[str, ...] = ()
    """Each change that was left out, with its reason: "evict 'sk_004': it is not in the bank any more"."""


def rebase(snapshot: Snapshot, changes: Iterable[Change]) -> Rebased:
    """Fit changes to a version, in order; those that already fit come out as they are.

    Args:
        snapshot: the newest version.
        changes: made from any version; a later one may build on an earlier one.
    """
    skills = dict(snapshot.skills)
    fitting, dropped = list[Change](), list[str]()
    for change in changes:
        found = _fitted(skills, change)
        if isinstance(found, str):
            dropped.append(found)
            continue
        if found.before is not None:
            del skills[found.before.id]
        if found.after is not None:
            skills[found.after.id] = normalize_skill(found.after)
        fitting.append(found)
    return Rebased(tuple(fitting), tuple(dropped))


def _fitted(skills: dict[str, Skill], change: Change) -> Change | str:
    """The change as it fits, or why it does not."""
    before, after, current = change.before, change.after, None
    about = before or after
    what = f"{change.kind} {quote(about and about.id)}"
    if before is not None:
        current = skills.get(before.id)
        if current is None:
            return f"{what}: it is not in the bank any more"
        if without_stats(current) != without_stats(normalize_skill(before)):
            return f"{what}: it has changed since"
    if after is not None and after.id in skills and (before is None or after.id != before.id):
        same = skills[after.id].text == after.text
        return (
            f"{what}: {'it is in the bank already' if same else f'the id {quote(after.id)} is taken by another skill'}"
        )
    if before is None or current is None:
        return change
    if after is not None:
        after = replace(after, stats=_summed(current.stats, before.stats, after.stats))
    return replace(change, before=current, after=after)


def _summed(current: SkillStats, before: SkillStats, after: SkillStats) -> SkillStats:
    """The current statistics and what a change adds to those that it was made from."""
    used = [step for step in (current.last_used_step, after.last_used_step) if step is not None]
    return replace(
        current,
        uses=max(0, current.uses + after.uses - before.uses),
        successes=max(0, current.successes + after.successes - before.successes),
        last_used_step=max(used, default=None),
    )
