"""What becomes of the drafts that failures led to: one update of a frozen bank, with room made among evolved skills alone.

A new skill gets its id from its words, a better text keeps the id of its skill and is one version on. Evolved skills (`source`
"evolve") have a bound of their own; over it the least useful of them go, by the lower bound of their success per use. What was
in the bank before evolution began never makes room for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from skill_ttrl.intervals import wilson_interval
from skill_ttrl.skills.bank.changes import as_successor, flagged, last_active, normalize_skill, quote
from skill_ttrl.skills.bank.snapshot import Snapshot
from skill_ttrl.skills.merge.plan import MAX_TEXT_CHARS
from skill_ttrl.skills.similarity import Similarity, content_id, match_existing, normalized_tokens
from skill_ttrl.skills.teachers.teacher import Draft, skill_of
from skill_ttrl.types import Change, Skill

SOURCE = "evolve"
"""`Skill.source` of what evolution added. A skill whose text it changed keeps the source it had."""


@dataclass(frozen=True, slots=True)
class Evolved:
    """What a round of evolution does to a bank."""

    changes: tuple[Change, ...] = ()
    """Replacements, then new skills, then those that go; each skill at most once."""
    added: int = 0
    changed: int = 0
    retired: tuple[str, ...] = ()
    """`fingerprint`s of those that went."""
    notes: tuple[str, ...] = ()
    """What was left out, each with its reason."""
    evidence: tuple[str, ...] = ()
    """Ids of the tasks that the changes come from."""


def evolved(
    drafts: Sequence[Draft],
    snapshot: Snapshot,
    *,
    most: int,
    room: int | None = None,
    round: int | None = None,
    retired: Collection[str] = (),
    similarity: Similarity | None = None,
    threshold: float = 0.95,
) -> Evolved:
    """The changes that drafts lead to. A draft that cannot be used is left out with its reason, and the others stand.

    Args:
        drafts: the most important first.
        snapshot: the bank as it is now.
        most: drafts that are used; what comes after them is left out.
        room: most evolved skills in the bank; None: any number.
        round: the training step.
        retired: fingerprints of what was tried and went: it does not come back.
        similarity: how alike texts are; None: only texts of the same words say the same.
        threshold: least similarity of what says the same.
    """
    notes: list[str] = []
    replaced: dict[str, Change] = {}
    added: dict[str, Change] = {}
    said = [(normalized_tokens(skill.text), skill) for skill in snapshot]
    near = said_already(drafts, list(snapshot), similarity, threshold)
    for draft, match in zip(drafts, near, strict=True):
        base = snapshot.get(draft.base) if draft.base else None
        words = normalized_tokens(draft.text)
        same = (skill.id for text, skill in said if text == words and covers(skill, draft.task_type))
        problem = _refusal(draft, base, next(same, match))
        if problem is None and draft.base in replaced:
            problem = "there is another text for it"
        elif problem is None and fingerprint(draft) in retired:
            problem = "it was tried, and retired as the least useful"
        elif problem is None and base is None and room is not None and len(added) >= room:
            problem = "there is no room for it (evolve.max_evolved, skills.max_skills)"
        elif problem is None and len(replaced) + len(added) >= most:
            problem = f"there are {most} in this round already (evolve.max_new_skills)"
        if problem is not None:
            notes.append(
                f"{f'text for {quote(draft.base)}' if draft.base else f'skill {quote(draft.text)}'}: {problem}"
            )
            continue
        if base is not None:
            new = _better(base, draft)
            replaced[base.id] = Change("replace", base, new)
        else:
            new = flagged(
                normalize_skill(skill_of(draft, source=SOURCE, taken={*snapshot.skills, *added}, round=round))
            )
            added[new.id] = Change("add", None, new)
        said.append((words, new))
    made = (*(replaced[name] for name in sorted(replaced)), *(added[name] for name in sorted(added)))
    gone = _too_many(snapshot.changed(snapshot.version, made), room, replaced, added)
    return Evolved(
        changes=(*made, *(Change("evict", skill, None) for skill in gone)),
        added=len(added),
        changed=len(replaced),
        retired=tuple(fingerprint(skill) for skill in gone),
        notes=tuple(notes),
        evidence=tuple(dict.fromkeys(each for change in made for each in _new_evidence(change))),
    )


def covers(skill: Skill, task_type: str) -> bool:
    """Whether tasks of this type are shown what the skill says; an empty type is any."""
    return skill.tier == "general" or skill.task_type in ("", task_type)


def fingerprint(what: Skill | Draft) -> str:
    """What tells a text for a type of task from others, whatever its id was."""
    return f"{content_id(what.text)}@{what.task_type}"


def least_useful_first(skill: Skill) -> tuple[float, int, int, str]:
    """Order in which evolved skills go: by the lower bound of success per use (Wilson, 95 %; 0 without a use), then as in
    `changes.eviction_key`.
    """
    stats = skill.stats
    low = wilson_interval(min(stats.successes, stats.uses), stats.uses)[0] if stats.uses else 0.0
    return low, last_active(skill), stats.created_round, skill.id


def _too_many(after: Snapshot, room: int | None, replaced: Collection[str], added: Collection[str]) -> list[Skill]:
    """Those of the evolved skills that there is no room for; what this round changed and brought goes last."""
    mine = [skill for skill in after if skill.source == SOURCE]
    order = sorted(mine, key=lambda skill: (skill.id in added, skill.id in replaced, least_useful_first(skill)))
    return [] if room is None else order[: max(0, len(mine) - room)]


def said_already(
    drafts: Sequence[Draft], skills: Sequence[Skill], similarity: Similarity | None, threshold: float
) -> list[str | None]:
    """For each new draft the id of the skill that says the same to the same tasks (`covers`), if there is one.

    Args:
        drafts: those with a base are passed over.
        skills: what is in the bank.
        similarity: how alike texts are; None: only texts of the same words say the same.
        threshold: least similarity of what says the same.
    """
    found: list[str | None] = [None] * len(drafts)
    for kind in dict.fromkeys(draft.task_type for draft in drafts):
        places = [place for place, draft in enumerate(drafts) if draft.task_type == kind and not draft.base]
        known = [skill for skill in skills if covers(skill, kind)]
        texts = [drafts[place].text for place in places]
        for place, match in zip(
            places, match_existing(texts, [each.text for each in known], similarity, threshold), strict=True
        ):
            found[place] = None if match is None else known[match].id
    return found


def _refusal(draft: Draft, base: Skill | None, owner: str | None) -> str | None:
    if draft.base and base is None:
        return "it is not in the bank (any more)"
    if not draft.text.strip():
        return "the text is empty"
    if len(draft.text) > MAX_TEXT_CHARS:
        return f"a text of {len(draft.text)} characters, the most is {MAX_TEXT_CHARS}"
    return None if owner is None else f"{quote(owner)} says that already"


def _better(base: Skill, draft: Draft) -> Skill:
    """The skill with its new words; tier, type and source stay what they were."""
    evidence = tuple(dict.fromkeys((*base.evidence, *draft.evidence)))
    new = replace(
        base,
        title=draft.title or base.title,
        text=draft.text.strip(),
        when_to_apply=draft.when_to_apply or base.when_to_apply,
        evidence=evidence,
    )
    return flagged(normalize_skill(as_successor(base, new)))


def _new_evidence(change: Change) -> tuple[str, ...]:
    before = change.before.evidence if change.before is not None else ()
    after = change.after.evidence if change.after is not None else ()
    return tuple(each for each in after if each not in before)
