"""Admission: the one door through which drafted skills come into a bank.

`admit` takes the drafts of teachers: those that say the same are fused, each is refused with a reason or gets an id, and each
admitted one is a change. A merge of rollouts' operations, which credits those who wrote a text, uses the `Admission` below it.
Nothing here writes: the caller applies the changes as one update.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from skill_ttrl.skills.changes import Snapshot, as_successor, flagged, free_names, normalize_skill, quote
from skill_ttrl.skills.similarity import Similarity, clusters, content_id, match_existing, normalized_tokens, sentences
from skill_ttrl.skills.types import Draft, grouped
from skill_ttrl.types import Change, ChangeKind, Skill, SkillStats

MAX_TEXT_CHARS = 10_000
"""Longest text of a skill that a bank takes in from rollouts and from failures."""
TITLE_CHARS = 60
"""Longest title that is made from a text which came without one."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Bounds on what one source of drafts may change in a bank."""

    source: str
    """`Skill.source` of the new skills. A rewritten skill keeps the source it had."""
    max_text_chars: int = MAX_TEXT_CHARS
    rewrites: bool = True
    """Drafts may replace the text of a skill."""
    max_drafts: int | None = None
    """Most admitted drafts (`evolve.max_new_skills`); None: any number."""
    room: int | None = None
    """Most new skills; None: any number."""
    room_settings: str = "skills.max_skills"
    """Settings behind `room`, for messages."""
    retired: Collection[str] = ()
    """Fingerprints of skills that were evicted, or rejected by a gate: they do not come back."""
    similarity: Similarity | None = None
    """Compares texts whose words differ; None: only texts of the same words say the same."""
    threshold: float = 0.95
    """Least similarity of texts that say the same."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The outcome for all drafts."""

    changes: tuple[Change, ...] = ()
    """`replace` or `add` for each admitted draft, in order; `evict` where evolution makes room."""
    fusions: tuple[str, ...] = ()
    """Drafts that were fused, in words."""
    refused: tuple[tuple[Draft, str], ...] = ()
    """Each refused draft with the reason."""

    def count(self, kind: ChangeKind) -> int:
        """Changes of a kind."""
        return sum(change.kind == kind for change in self.changes)

    @property
    def evidence(self) -> tuple[str, ...]:
        """Ids of the tasks that the changed skills had not in their evidence before."""
        made = [(change.after, change.before) for change in self.changes if change.after is not None]
        new = (each for after, old in made for each in after.evidence if old is None or each not in old.evidence)
        return tuple(dict.fromkeys(new))


def admit(drafts: Sequence[Draft], snapshot: Snapshot, rules: AdmissionRules, *, step: int = 0) -> Admitted:
    """The changes that drafts, the most important first, lead to. A refused draft does not affect the others.

    Args:
        drafts: proposals of a teacher.
        snapshot: the bank as it is now.
        rules: bounds of this source.
        step: the training step, `created_step` of new skills.
    """
    different, fusions = fused(drafts, rules.similarity, rules.threshold)
    matches = said_already(different, list(snapshot), rules.similarity, rules.threshold)
    admission = Admission(snapshot, rules.max_text_chars)
    changes: list[Change] = []
    refused: list[tuple[Draft, str]] = []
    for draft, match in zip(different, matches, strict=True):
        base = snapshot.get(draft.base)
        problem = admission.problem(draft.text, draft.task_type, match) or _no_room(draft, changes, rules)
        if draft.base and not rules.rewrites:
            problem = "it replaces another skill, and distilling only adds skills"
        elif draft.base and base is None:
            problem = "it is not in the bank (any more)"
        if problem is not None:
            refused.append((draft, problem))
        elif base is not None:  # tier, type and source stay what they were
            new = replace(
                base,
                title=draft.title or base.title,
                text=draft.text.strip(),
                when_to_apply=draft.when_to_apply or base.when_to_apply,
                evidence=tuple(dict.fromkeys((*base.evidence, *draft.evidence))),
            )
            changes.append(Change("replace", base, admission.take(as_successor(base, new))))
        else:
            new = Skill(
                admission.new_id(draft.text),
                draft.title,
                draft.text,
                draft.when_to_apply,
                draft.tier,
                draft.task_type,
                source=rules.source,
                evidence=draft.evidence,
                stats=SkillStats(created_step=step),
            )
            changes.append(Change("add", None, admission.take(new)))
    return Admitted(tuple(changes), tuple(fusions), tuple(refused))


def _no_room(draft: Draft, changes: Sequence[Change], rules: AdmissionRules) -> str | None:
    if any(change.before is not None and change.before.id == draft.base for change in changes):
        return "there is another text for it"
    if fingerprint(draft) in rules.retired:
        return "it was evicted or rejected before"
    added = sum(change.kind == "add" for change in changes)
    if not draft.base and rules.room is not None and added >= rules.room:
        return f"the bank is full ({rules.room_settings})"
    if rules.max_drafts is not None and len(changes) >= rules.max_drafts:
        return f"this round has {rules.max_drafts} already (evolve.max_new_skills)"
    return None


class Admission:
    """Refuses texts that a bank, or a skill admitted before, has already; gives out ids.

    Args:
        snapshot: the bank as it is now.
        max_text_chars: longest admitted text.
    """

    def __init__(self, snapshot: Snapshot, max_text_chars: int = MAX_TEXT_CHARS) -> None:
        self._max_text_chars = max_text_chars
        self._ids = set(snapshot.skills)
        self._by_content = grouped(snapshot, key=lambda skill: normalized_tokens(skill.text))

    def problem(self, text: str, task_type: str | None = None, match: str | None = None) -> str | None:
        """Why a text cannot become a skill's; None where it can.

        Args:
            text: any text.
            task_type: compare with skills that tasks of this type are shown; None: with all.
            match: id of a skill that says the same in other words, where one is known.
        """
        if problem := text_problem(text, self._max_text_chars):
            return problem
        same = self._by_content.get(normalized_tokens(text), ())
        owner = next((skill.id for skill in same if task_type is None or covers(skill, task_type)), match)
        return None if owner is None else f"{quote(owner)} says that already"

    def new_id(self, text: str) -> str:
        """The id made from the text alone, the same each time; numbered where an edited skill has it."""
        return next(free_names(content_id(text), "-", self._ids))

    def take(self, skill: Skill) -> Skill:
        """The skill as the bank will store it; from now on its id and its text are taken."""
        skill = flagged(normalize_skill(skill))
        self._ids.add(skill.id)
        self._by_content.setdefault(normalized_tokens(skill.text), []).append(skill)
        return skill


def text_problem(text: str, max_chars: int) -> str | None:
    """Why a text cannot be a skill's at all; None where it can."""
    if not text.strip():
        return "the text is empty"
    return None if len(text) <= max_chars else f"a text of {len(text)} characters, the most is {max_chars}"


def made_title(text: str) -> str:
    """The first sentence of a text, cut between words where it is long."""
    first = (sentences(text) or [text])[0]
    if len(first) <= TITLE_CHARS:
        return first.rstrip(".:;,")
    cut = first[:TITLE_CHARS]
    return (cut.rpartition(" ")[0] or cut).rstrip(".:;,") + "…"


def covers(skill: Skill, task_type: str) -> bool:
    """True if prompts of tasks of this type may show the skill; an empty type is any."""
    return skill.tier == "general" or skill.task_type in ("", task_type)


def fingerprint(what: Skill | Draft) -> str:
    """Identifies a text for a type of task, whatever its id was."""
    return f"{content_id(what.text)}@{what.task_type}"


def said_already(
    drafts: Sequence[Draft], skills: Sequence[Skill], similarity: Similarity | None, threshold: float
) -> list[str | None]:
    """For each new draft the id of the skill that says the same to the same tasks (`covers`), if there is one.

    Drafts with a base are passed over; `similarity` and `threshold` are those of `AdmissionRules`.
    """
    found: list[str | None] = [None] * len(drafts)
    for kind in dict.fromkeys(draft.task_type for draft in drafts):
        places = [place for place, draft in enumerate(drafts) if draft.task_type == kind and not draft.base]
        known = [skill for skill in skills if covers(skill, kind)]
        texts = [drafts[place].text for place in places]
        matches = match_existing(texts, [each.text for each in known], similarity, threshold)
        for place, match in zip(places, matches, strict=True):
            found[place] = None if match is None else known[match].id
    return found


def fused(
    drafts: Sequence[Draft], similarity: Similarity | None = None, threshold: float = 0.95
) -> tuple[list[Draft], list[str]]:
    """Fuse drafts of one kind that say the same, in the order of the first of them; gives the fusions in words too.

    A general principle is not repeated for a type of task, nor a mistake of any type for one type; apart from that each type
    keeps its own. The wording is that of `similarity.clusters`, the evidence that of all. Rewrites of skills are left alone.

    Args:
        drafts: the most important first.
        similarity: as in `clusters`; None: only texts of the same words.
        threshold: least similarity of texts that say the same.
    """
    notes: list[str] = []
    placed: dict[int, Draft] = {place: draft for place, draft in enumerate(drafts) if draft.base}
    new = (place for place, draft in enumerate(drafts) if not draft.base)
    for places in grouped(new, key=lambda place: drafts[place].tier == "mistake").values():
        for cluster in clusters([drafts[place].text for place in places], similarity, threshold):
            members = [places[member] for member in cluster.members]
            for_any = any(not drafts[place].task_type for place in members)
            scopes = grouped(members, key=lambda place: "" if for_any else drafts[place].task_type)
            for first, *others in scopes.values():
                alike = [drafts[place] for place in (first, *others)]
                best = min(alike, key=lambda draft: (bool(draft.task_type), draft.text.strip() != cluster.text))
                evidence = dict.fromkeys(each for draft in alike for each in draft.evidence)
                placed[first] = replace(best, evidence=tuple(evidence))
                if others:
                    notes.append(f"{len(alike)} skills that say the same are one: {quote(best.title)}.")
    return [placed[place] for place in sorted(placed)], notes
