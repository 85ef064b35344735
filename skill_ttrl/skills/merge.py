"""Merge the winners' skill operations into one update of the bank.

`merge_groups` finds the winners' operations in the groups of a step, lets a `Merger` fuse them and turns the outcome into
changes of a frozen bank: new skills added, evolved ones replaced, used ones credited. Each skill is changed at most once,
and the same groups give the same changes in whatever order their rollouts came.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter

from skill_ttrl.config import SkillsConfig
from skill_ttrl.errors import ConfigError, SkillBankError
from skill_ttrl.registry import naming
from skill_ttrl.skills.admit import MAX_TEXT_CHARS, Admission, made_title
from skill_ttrl.skills.changes import Snapshot, as_successor, flagged, normalize_skill, quote, with_usage
from skill_ttrl.skills.mergers import Draft, HeuristicMerger, Merged, Merger, MergeReport, technique, titles
from skill_ttrl.skills.ops import OutputParser, ParsedOutput
from skill_ttrl.skills.similarity import Similarity, content_id, match_existing
from skill_ttrl.types import BankUpdate, Change, Group, Skill, SkillOps, SkillStats, Task


def merge_groups(
    groups: Sequence[Group],
    winners: Sequence[Sequence[bool]],
    snapshot: Snapshot,
    skills: SkillsConfig | None = None,
    merger: Merger | None = None,
    *,
    similarity: Similarity | None = None,
    round: int | None = None,
) -> tuple[tuple[Change, ...], MergeReport]:
    """The changes of the bank that a step's rollouts lead to, for one `BankUpdate`.

    A skill that a rollout was given (in its prompt, or because it asked) is credited with a use, and with a success where the
    rollout won. A new skill that says the same as one of the bank credits that one, once for each winner who wrote it. What
    evolves a skill that is not in the snapshot is skipped. Rollouts that failed in their environment are left out.

    Args:
        groups: rollouts by task. Operations are `Trajectory.ops`; where they are None they are read from the text.
        winners: for each group, for each rollout, whether it won.
        snapshot: the bank as it is now.
        skills: whether skills are extracted from solutions, how many new ones a problem may bring, and above what similarity texts
            say the same; None: the defaults.
        merger: fuses the operations; None: a `HeuristicMerger`.
        similarity: compares a new skill with those of the bank; None: only the same words are the same.
        round: the training step, for statistics; None leaves `last_used_step` as it is.

    Returns:
        The changes, each skill at most once (uses, then replacements, then new skills, each by id), and the counts.

    Raises:
        ValueError: `winners` does not fit the groups.
        ConfigError: a merger of the user's own raised an error (`ExtensionError`), or returned no `Merged`.
        EndpointError, BudgetError: a language model gave no usable answer, where that ends everything; its budget is spent.
    """
    skills, skipped = skills or SkillsConfig(), list[str]()
    threshold = skills.dedup_threshold or 1.0
    pairs = zip(groups, winners, strict=True)
    by_group = [ops_from_group(group, wins, MAX_TEXT_CHARS, skipped) for group, wins in pairs]
    rollouts = sorted((each for group in by_group for each in group), key=RolloutOps.sort_key)
    won = [each for each in rollouts if each.won]
    found = extract_ops(by_group) if skills.extract_from_solutions else []
    sources = [*won, *sorted(found, key=RolloutOps.sort_key)]
    merger = merger or HeuristicMerger(similarity=similarity, threshold=threshold)
    shown = [each.shown_skill_ids for each in sources]
    with naming(f"The merger {type(merger).__qualname__}"):
        merged = merger.merge([each.output for each in sources], retrieved=shown, snapshot=snapshot)
    if not isinstance(merged, Merged):
        raise ConfigError(f"{type(merger).__qualname__}.merge must return a Merged, not {type(merged).__name__}.")
    skipped += merged.skipped
    admission = Admission(snapshot)  # a merger may write longer texts than winners
    proposed, rewrites = (
        [
            (draft, [sources[place] for place in sorted({*draft.support}) if 0 <= place < len(sources)])
            for draft in drafts
        ]
        for drafts in (merged.new_skills, merged.evolved_skills)
    )
    texts = [draft.text for draft, _ in proposed]
    matches = match_existing(texts, [skill.text for skill in snapshot], similarity, threshold)
    fresh = [pair for pair, match in zip(proposed, matches, strict=True) if match is None]
    used = _credit(rollouts, proposed, matches, snapshot, round)
    replaced: list[Change] = []
    for rewrite, writers in sorted(rewrites, key=lambda pair: pair[0].base):
        base = snapshot.get(rewrite.base)
        problem = admission.problem(rewrite.text) if base is not None else "it is not in the bank (any more)"
        if base is None or problem:
            skipped.append(f"{rewrite}: {problem}")
            continue
        name, evidence = admission.new_id(rewrite.text), sorted({each.task_id for each in writers})
        evidence = list(dict.fromkeys((*base.evidence, *evidence)))
        new = replace(base, id=name, text=rewrite.text, source="merge", parents=(), evidence=tuple(evidence))
        replaced.append(Change("replace", base, admission.take(as_successor(used.get(base.id, base), new))))
    added: list[Change] = []
    most, room = skills.max_skills_per_problem, Counter[str]()
    for draft, writers in fresh:
        types, tasks = {each.task_type for each in writers}, {each.task_id for each in writers}
        problem = admission.problem(draft.text)
        if problem is None and most is not None and tasks and all(room[task] >= most for task in tasks):
            problem = f"its problem has {most} new skills in this update already (skills.max_skills_per_problem)"
        if problem:
            skipped.append(f"{draft}: {problem}")
            continue
        room.update(tasks)
        source = "extract" if writers and all(each.extracted for each in writers) else "merge"
        skill = _skill(draft.text, draft.title, admission.new_id(draft.text), source, types, tasks, round)
        added.append(Change("add", None, admission.take(skill)))
    gone = {change.before.id for change in replaced if change.before is not None}
    credits = [Change("use", snapshot.skills[name], used[name]) for name in used if name not in gone]
    generated = sum(len(each.output.skill_ops.generate) for each in won)
    report = MergeReport(
        rollouts=len(rollouts),
        winners=len(won),
        generated=generated,
        extracted=len(found),
        fused=max(0, generated + len(found) - len(merged.new_skills)),
        added=len(added),
        credited=len(used),
        evolved=len(replaced),
        skipped=tuple(sorted(skipped)),
        **asdict(merged.asked),
    )
    by_id = attrgetter("skill.id")
    return (*credits, *sorted(replaced, key=by_id), *sorted(added, key=by_id)), report


Supported = tuple[Draft, list["RolloutOps"]]
"""A draft, and the rollouts that wrote it."""


def _credit(
    rollouts: Sequence[RolloutOps],
    proposed: Sequence[Supported],
    matches: Sequence[int | None],
    snapshot: Snapshot,
    round: int | None,
) -> dict[str, Skill]:
    """The skills whose uses and successes are counted, by id; `matches`: for each proposal the place of the skill that already says it."""
    known = list(snapshot)
    for each in rollouts:
        each.credited_skill_ids = {skill_id for skill_id in each.shown_skill_ids if skill_id in snapshot}
    for (_, writers), match in zip(proposed, matches, strict=True):
        if match is not None:
            for source in writers:
                source.credited_skill_ids.add(known[match].id)
    uses = Counter(skill_id for each in rollouts for skill_id in each.credited_skill_ids)
    successes = Counter(skill_id for each in rollouts if each.won for skill_id in each.credited_skill_ids)
    return {name: with_usage(snapshot.skills[name], uses[name], successes[name], round) for name in sorted(uses)}


def note(text: str, task: Task) -> Skill:
    """A skill that a rollout wrote and that only this rollout can find, before any merge."""
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
        stats=SkillStats(created_step=round or 0),
    )


@dataclass
class RolloutOps:
    """One rollout, or one technique found across rollouts."""

    task_id: str
    task_type: str
    problem: str
    won: bool
    output: ParsedOutput
    shown_skill_ids: tuple[str, ...] = ()
    """Ids of the skills in its prompt or retrieved by it."""
    extracted: bool = False
    credited_skill_ids: set[str] = field(default_factory=set)
    """Ids of the skills whose use it counts for."""

    @property
    def solution(self) -> str:
        """Its solution, or its whole text."""
        return self.output.solution or self.output.text

    def sort_key(self) -> tuple[str, ...]:
        """The same in whatever order rollouts come; those that it does not tell apart are the same to a merger."""
        return self.task_id, self.output.text, repr(self.output.skill_ops), repr(self.shown_skill_ids)


def ops_from_group(group: Group, wins: Sequence[bool], max_text_chars: int, skipped: list[str]) -> list[RolloutOps]:
    """Operations of the rollouts that did not fail in their environment; texts left out are noted in `skipped`."""
    parser = OutputParser()
    found = []
    for trajectory, won in zip(group.trajectories, wins, strict=True):
        if trajectory.error is not None:
            continue
        output = parser.parse(trajectory.content)
        ops = output.skill_ops if trajectory.ops is None else trajectory.ops
        if won:
            ops = _short(ops, group.task.id, max_text_chars, skipped)
        problem = trajectory.steps[0].observation if trajectory.steps else ""
        shown = tuple(dict.fromkeys((*trajectory.skills_in_prompt, *trajectory.retrieved)))
        output = replace(output, skill_ops=ops)
        found.append(RolloutOps(group.task.id, group.task.task_type, problem, won, output, shown))
    return found


def _short(ops: SkillOps, task_id: str, most: int, skipped: list[str]) -> SkillOps:
    """The operations without texts that are too long."""
    for text in (*ops.generate, *(each.text for each in ops.evolve)):
        if len(text) > most:
            skipped.append(f"a text of {len(text)} characters, written for {quote(task_id)}: the most is {most}")
    pairs = [pair for pair in zip(ops.generate, titles(ops), strict=True) if len(pair[0]) <= most]
    rewrites = tuple(each for each in ops.evolve if len(each.text) <= most)
    return replace(
        ops, generate=tuple(text for text, _ in pairs), titles=tuple(title for _, title in pairs), evolve=rewrites
    )


def extract_ops(groups: Sequence[Sequence[RolloutOps]]) -> list[RolloutOps]:
    """A technique for each group whose winners wrote no skill, as if one more winner had written it."""
    found = []
    for group in groups:
        won = [each for each in group if each.won]
        if not won or any(each.output.skill_ops.generate for each in won):
            continue
        lost = sorted(each.solution for each in group if not each.won)
        text = technique(won[0].problem, sorted(each.solution for each in won), lost)
        if text is not None:
            output = ParsedOutput("", None, None, SkillOps(generate=(text,)))
            found.append(replace(won[0], output=output, shown_skill_ids=(), extracted=True, credited_skill_ids=set()))
    return found


def group_digest(group: Group, step: int | None) -> str:
    """16 hexadecimal digits made from the task's id, the step, what was shown and what was written, in any order of samples.

    Args:
        group: the samples of one task.
        step: training step that they were drawn in; None outside of a run.
    """
    written = sorted((each.steps[0].observation if each.steps else "", each.text) for each in group.trajectories)
    content = [step, group.task.id, written]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def merged_samples(updates: Iterable[BankUpdate]) -> dict[str, int]:
    """The samples that are in a bank's present version, each with the version that brought it; rolled back ones are not.

    Args:
        updates: the bank's whole history.

    Raises:
        SkillBankError: an update says that it brings back a version which is not before it.
    """
    history = {update.version: update for update in updates}
    found: dict[str, int] = {}
    version = max(history, default=0)
    while update := history.get(version):
        found |= dict.fromkeys(update.samples, version)
        earlier = version - 1 if update.back_to is None else update.back_to
        if not 0 <= earlier < version:
            raise SkillBankError(
                f"The bank's log is damaged: version {version} brings back version {earlier}, which is not before it. Restore "
                "the file from a copy."
            )
        version = earlier
    return found
