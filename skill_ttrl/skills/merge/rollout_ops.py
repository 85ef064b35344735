"""Parts of rollouts that a merge needs: their operations, the skills they were shown, and the techniques that winners share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.merge.types import Extracted, Extractor, Solved, select_ops
from skill_ttrl.skills.ops import OutputParser, ParsedOutput
from skill_ttrl.types import Group, SkillOps


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
        output = parser.parse(trajectory.text)
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
    return select_ops(ops, lambda text: len(text) <= most, lambda each: len(each.text) <= most)


def extract_ops(groups: Sequence[Sequence[RolloutOps]], extractor: Extractor) -> tuple[list[RolloutOps], Extracted]:
    """A technique for each group whose winners wrote no skill, as if one more winner had written it; and how it was found.

    Args:
        groups: the rollouts of each task.
        extractor: finds techniques, those of all groups at once.
    """
    asked = [group for group in groups if any(each.won for each in group) and not _wrote(group)]
    found = extractor.extract([_solved(group) for group in asked])
    extracted_ops = []
    for group, technique in zip(asked, found.found, strict=True):
        if technique is not None:
            ops = SkillOps(generate=(technique.text,), titles=(technique.title,))
            winner = next(each for each in group if each.won)
            output = ParsedOutput("", None, None, ops)
            extracted_ops.append(
                replace(winner, output=output, shown_skill_ids=(), extracted=True, credited_skill_ids=set())
            )
    return extracted_ops, found


def _wrote(group: Sequence[RolloutOps]) -> bool:
    return any(each.won and each.output.skill_ops.generate for each in group)


def _solved(group: Sequence[RolloutOps]) -> Solved:
    won = [each for each in group if each.won]
    return Solved(
        won[0].task_id,
        won[0].problem,
        tuple(sorted(map(_solution, won))),
        tuple(sorted(_solution(each) for each in group if not each.won)),
        tuple(sorted({each.output.answer for each in won if each.output.answer})),
    )


def _solution(rollout: RolloutOps) -> str:
    return rollout.output.solution or rollout.output.text
