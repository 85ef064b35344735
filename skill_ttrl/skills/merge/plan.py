"""What the winners asked of the bank becomes one update of it.

`merge_groups` finds the winners' operations in the groups of a step, lets a `Merger` fuse them and turns the outcome into
changes of a frozen bank: new skills added, evolved ones replaced, used ones credited. Each skill is changed at most once,
and the same groups give the same changes in whatever order their tries came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, fields, replace

from skill_ttrl.skills.admit import MAX_TEXT_CHARS, Admission, made_title
from skill_ttrl.skills.bank.changes import as_successor, flagged, normalize_skill, quote, with_usage
from skill_ttrl.skills.bank.snapshot import Snapshot
from skill_ttrl.skills.merge.extractor import Extractor, HeuristicExtractor
from skill_ttrl.skills.merge.merger import (
    MERGERS,
    Draft,
    Merged,
    Merger,
    Rewrite,
    SkillMerger,
    make_merger,
)
from skill_ttrl.skills.merge.rollout_ops import RolloutOps, extracted, ops_from_group
from skill_ttrl.skills.querying import LLMCallStats
from skill_ttrl.skills.similarity import Similarity, content_id, match_existing
from skill_ttrl.types import Change, Group, Skill, SkillStats, Task

__all__ = [
    "MERGERS",
    "Draft",
    "MergeReport",
    "Merged",
    "Merger",
    "Rewrite",
    "SkillMerger",
    "make_merger",
    "merge_groups",
]

TROUBLE = "A language model that merges or extracts gave no usable answer"
"""Begins the warning of it."""


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did, in counts."""

    tries: int = 0
    winners: int = 0
    generated: int = 0
    """Skill texts that winners wrote."""
    extracted: int = 0
    """Skill texts that were found in winners' solutions."""
    fused: int = 0
    """Texts of both kinds that said the same as another."""
    added: int = 0
    credited: int = 0
    """Skills of the bank whose use was counted; those that were replaced too are among them."""
    evolved: int = 0
    skipped: tuple[str, ...] = ()
    """What was left out, each with its reason."""
    requests: int = 0
    """Questions that were put to language models."""
    failed: int = 0
    """Of those, the ones without a usable answer whose part was left out."""
    fallback: int = 0
    """Of those, the ones without a usable answer whose part the heuristic did."""
    error: str = ""
    """What the first of these said."""

    def counts(self) -> dict[str, int]:
        """All as numbers, by name; those of language models where any was asked."""
        asked = ("requests", "failed", "fallback")
        names = [each.name for each in fields(self) if each.name not in ("skipped", "error", *asked)]
        found = {name: getattr(self, name) for name in names} | {"skipped": len(self.skipped)}
        return found | {name: getattr(self, name) for name in asked if self.requests}

    def trouble(self) -> str | None:
        """A sentence on what language models failed to do; None where they did what they were asked."""
        if not self.failed and not self.fallback:
            return None
        done = ("its part of the update is left out", "the heuristic does its part")[bool(self.fallback)]
        return f"{TROUBLE} ({self.failed + self.fallback} of {self.requests} requests): {done}. {self.error}"


def merge_groups(
    groups: Sequence[Group],
    winners: Sequence[Sequence[bool]],
    snapshot: Snapshot,
    *,
    round: int | None = None,
    merger: Merger | None = None,
    extract: bool = False,
    extractor: Extractor | None = None,
    max_text_chars: int = MAX_TEXT_CHARS,
    max_skills_per_problem: int | None = 3,
    similarity: Similarity | None = None,
    threshold: float = 0.95,
) -> tuple[tuple[Change, ...], MergeReport]:
    """The changes of the bank that a step's tries lead to, for one `BankUpdate`.

    A skill that a try was given (in its prompt, or because it asked) is credited with a use, and with a success where the
    try won. A new skill that says the same as one of the bank credits that one, once for each winner who wrote it. What
    evolves a skill that is not in the snapshot is skipped. Tries that failed in their environment say nothing.

    Args:
        groups: tries by task. Operations are `Trajectory.ops`; where they are None they are read from the text.
        winners: for each group, for each try, whether it won.
        snapshot: the bank as it is now.
        round: the training step, for statistics; None leaves `last_used_round` as it is.
        merger: fuses the operations; None: a `SkillMerger` with `similarity` and `threshold`.
        extract: where no winner of a group wrote a skill, take one from what their solutions have in common.
        extractor: finds it; None: by counting.
        max_text_chars: longer texts are skipped.
        max_skills_per_problem: new skills for one problem, the best supported first; None: no limit. One that was written for
            several problems counts for each of them, and is added while one of them has room.
        similarity: how alike a new skill and those of the bank are; None: only the same words are the same.
        threshold: least similarity of what counts as the same.

    Returns:
        The changes, each skill at most once (uses, then replacements, then new skills, each by id), and the counts.

    Raises:
        ValueError: `winners` does not fit the groups.
        EndpointError: a language model gave no usable answer, where that is to end everything.
        BudgetError: what may be spent on language models is spent.
    """
    skipped: list[str] = []
    tried = [ops_from_group(group, wins, max_text_chars, skipped) for group, wins in zip(groups, winners, strict=True)]
    tries = sorted((each for group in tried for each in group), key=RolloutOps.order)
    won = [each for each in tries if each.won]
    found: list[RolloutOps] = []
    asked = LLMCallStats()
    if extract:
        found, how = extracted(tried, extractor or HeuristicExtractor())
        skipped += how.skipped
        asked += how.asked
    voices = [*won, *sorted(found, key=RolloutOps.order)]
    merged = (merger or SkillMerger(similarity=similarity, threshold=threshold)).merge(
        [each.output for each in voices], retrieved=[each.given for each in voices], snapshot=snapshot
    )
    skipped += merged.skipped
    asked += merged.asked
    plan = _Plan(snapshot, voices, round, skipped, max_text_chars)
    fresh = plan.credit(tries, merged.new_skills, similarity, threshold)
    plan.evolve(merged.evolved_skills)
    plan.add(fresh, max_skills_per_problem)
    generated = sum(len(each.output.skill_ops.generate) for each in won)
    report = MergeReport(
        tries=len(tries),
        winners=len(won),
        generated=generated,
        extracted=len(found),
        fused=max(0, generated + len(found) - len(merged.new_skills)),
        added=len(plan.added),
        credited=len(plan.used),
        evolved=len(plan.replaced),
        skipped=tuple(sorted(skipped)),
        requests=asked.requests,
        failed=asked.failed,
        fallback=asked.fallback,
        error=asked.error,
    )
    return plan.changes(), report


class _Plan:
    """Changes of one frozen bank in the making."""

    def __init__(
        self,
        snapshot: Snapshot,
        voices: Sequence[RolloutOps],
        round: int | None,
        skipped: list[str],
        max_text_chars: int = MAX_TEXT_CHARS,
    ) -> None:
        self.snapshot = snapshot
        self.voices = voices
        self.round = round
        self.skipped = skipped
        # Winners' own texts were looked at before; a merger may write longer ones.
        self.admission = Admission(snapshot, max_text_chars)
        self.used: dict[str, Skill] = {}
        self.replaced: list[Change] = []
        self.added: list[Change] = []

    def credit(
        self, tries: Sequence[RolloutOps], drafts: Sequence[Draft], similarity: Similarity | None, threshold: float
    ) -> list[Draft]:
        """Count uses and successes; gives the drafts that no skill of the bank says already."""
        known = list(self.snapshot)
        matches = match_existing(
            [draft.text for draft in drafts], [skill.text for skill in known], similarity, threshold
        )
        for each in tries:
            each.touched = {skill_id for skill_id in each.given if skill_id in self.snapshot}
        for draft, match in zip(drafts, matches, strict=True):
            for voice in self._support(draft.support) if match is not None else ():
                voice.touched.add(known[match].id if match is not None else "")
        uses = Counter(skill_id for each in tries for skill_id in each.touched)
        successes = Counter(skill_id for each in tries if each.won for skill_id in each.touched)
        for name in sorted(uses):
            self.used[name] = with_usage(self.snapshot.skills[name], uses[name], successes[name], self.round)
        return [draft for draft, match in zip(drafts, matches, strict=True) if match is None]

    def evolve(self, rewrites: Iterable[Rewrite]) -> None:
        """Replace skills by what winners made of them."""
        for rewrite in sorted(rewrites, key=lambda each: each.base):
            base = self.snapshot.get(rewrite.base)
            problem = self.admission.problem(rewrite.text) if base is not None else "it is not in the bank (any more)"
            if base is None or problem:
                self.skipped.append(f"evolve of {quote(rewrite.base)}: {problem}")
                continue
            support = self._support(rewrite.support)
            evidence = dict.fromkeys((*base.evidence, *sorted({each.task_id for each in support})))
            new = replace(
                base,
                id=self.admission.new_id(rewrite.text),
                text=rewrite.text,
                source="merge",
                parents=(),
                evidence=tuple(evidence),
            )
            new = self.admission.take(as_successor(self.used.get(base.id, base), new))
            self.replaced.append(Change("replace", base, new))

    def add(self, drafts: Iterable[Draft], most: int | None) -> None:
        """Add new skills, at most so many for a problem."""
        full = f"its problem has {most} new skills in this update already (skills.max_skills_per_problem)"
        added: Counter[str] = Counter()
        for draft in drafts:
            support = self._support(draft.support)
            types, tasks = {each.task_type for each in support}, {each.task_id for each in support}
            problem = self.admission.problem(draft.text)
            if problem is None and most is not None and tasks and all(added[task] >= most for task in tasks):
                problem = full
            if problem:
                self.skipped.append(f"new skill {quote(draft.text)}: {problem}")
                continue
            added.update(tasks)
            source = "extract" if support and all(each.extracted for each in support) else "merge"
            name = self.admission.new_id(draft.text)
            skill = _skill(draft.text, draft.title, name, source, types, tasks, self.round)
            self.added.append(Change("add", None, self.admission.take(skill)))

    def changes(self) -> tuple[Change, ...]:
        """All of them, each skill at most once."""
        gone = {change.before.id for change in self.replaced if change.before is not None}
        credits = [Change("use", self.snapshot.skills[name], self.used[name]) for name in self.used if name not in gone]
        return (*credits, *sorted(self.replaced, key=_id_after), *sorted(self.added, key=_id_after))

    def _support(self, places: Iterable[int]) -> list[RolloutOps]:
        """The voices at these places; a merger that is a language model may name places that there are not."""
        return [self.voices[place] for place in sorted({*places}) if 0 <= place < len(self.voices)]


def note(text: str, task: Task) -> Skill:
    """A skill that a try wrote and that only this try can find, before any merge."""
    return flagged(normalize_skill(_skill(text, "", content_id(text), "note", {task.task_type}, {task.id}, None)))


def _skill(
    text: str, title: str, name: str, source: str, task_types: Set[str], task_ids: Set[str], round: int | None
) -> Skill:
    """A new skill as the bank will store it; of tasks of several types it is for any."""
    return Skill(
        id=name,
        title=title or made_title(text),
        text=text,
        task_type="".join(task_types) if len(task_types) == 1 else "",
        source=source,
        evidence=tuple(sorted(task_ids)),
        stats=SkillStats(created_round=round or 0),
    )


def _id_after(change: Change) -> str:
    return change.after.id if change.after is not None else ""
