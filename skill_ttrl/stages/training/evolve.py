"""The run's side of evolving skills: when failures are looked at, and what is applied, logged and reported.

Every `evolve.every` steps the tracker judges success by type of task; see `skills.evolution`. Each look changes the bank by one
update or not at all, and is a line of `evolve.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from skill_ttrl.errors import BudgetError, CheckpointError
from skill_ttrl.skills.admit import Admitted
from skill_ttrl.skills.changes import quote
from skill_ttrl.skills.evolution import SOURCE, Evolver, SuccessTracker
from skill_ttrl.skills.querying import bank_unchanged
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.skills.types import TeacherResult
from skill_ttrl.stages.training.run import Run, TrainingComponents
from skill_ttrl.stages.training.run_bank import UNCHANGED
from skill_ttrl.types import Group

EVOLVE_LOG = "evolve.jsonl"
"""In a run's folder: what each look found, and what came of it."""
TROUBLE = "A teacher that evolves skills gave no usable answer"
UNPAID = "The budget for language models is spent, so skills no longer evolve."
UNUSABLE = "Some of what the teacher drafted from failures was left out"
"""Begin the warnings of these; each is given once."""
UNTYPED = "any"
"""Name of the type of tasks without one, for messages."""


def make_evolver(components: TrainingComponents, state: Mapping[str, Any]) -> Evolver | None:
    """The evolver of a run, restored from a checkpoint's state; None where the config has no `evolve` section.

    Raises:
        ConfigError: there is no such teacher.
        MissingDependencyError: the packages that the teacher needs are not installed.
        CheckpointError: that state is damaged.
    """
    config, bank, tasks = components.config.evolve, components.bank, components.train_tasks
    if config is None or not bank:
        return None
    teacher = make_teacher(config.teacher, models=bank.models)
    saved = state.get("evolve", {})
    try:
        tracker = SuccessTracker(
            config,
            splits={task.split for task in tasks},
            seed=components.config.seed,
            type_names=bank.config.type_names,
            tasks=[task.id for task in tasks],
            with_listed=getattr(teacher, "reads_listed", False),
            state=saved,
        )
        return Evolver(config, teacher, tracker, [str(each) for each in saved.get("retired", [])])
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"The checkpoint is damaged: its evolve state cannot be read ({error}).") from None


def warn_if_never(run: Run) -> None:
    """Say it where no look is ever due: the run would evolve nothing without a word."""
    config, steps = run.config.evolve, run.config.rl.steps
    if config is not None and config.every > steps:
        run.warn(
            f"No skill evolves in this run because evolve.every ({config.every}) exceeds rl.steps ({steps}). Lower evolve.every, "
            "raise rl.steps, or leave out the evolve section."
        )


def evolve(
    run: Run, evolver: Evolver | None, groups: Sequence[Group], step: int, figures: Mapping[str, float]
) -> dict[str, float]:
    """Count a step's episodes; where a look is due, let failures change the bank. Returns its metrics.

    Args:
        run: the run, whose bank changes by one update or not at all.
        evolver: what lets failures change it; None where nothing does.
        groups: the step's episodes.
        step: its number.
        figures: the step's metrics so far; `skills_evolved` and `skills_evicted` add to theirs.

    Raises:
        ConfigError: an episode is not of a training task.
        EndpointError: as `Evolver.evolve`.
    """
    bank = run.components.bank
    if not bank or evolver is None:
        return {}
    evolver.tracker.add(groups, step)
    if (step + 1) % evolver.config.every:
        return {}
    selection = evolver.tracker.judge()
    found, result = Admitted(), TeacherResult()
    try:
        with bank_unchanged(UNCHANGED):
            found, result = evolver.evolve(
                selection,
                bank.target.snapshot(),
                step=step,
                capacity=bank.target.settings.max_skills,
                similarity=bank.alike,
                threshold=bank.config.dedup_threshold or 1.0,
            )
    except BudgetError as error:
        run.warn(f"{UNPAID} {error}", once=UNPAID)
    if found.changes:
        bank.apply(found.changes, reason=SOURCE, evidence=found.evidence, round=step)
    new, improved, evicted = found.count("add"), found.count("replace"), found.count("evict")
    left_out = _left_out(found, result)
    record = {
        "phase": "rl",
        "step": step,
        "worst": next(iter(selection.success), None),
        "types_below": len(selection.below),
        "analysed": len(selection.failures),
        "added": new,
        "changed": improved,
        "retired": evicted,
        "success": dict(selection.success),
        "below": list(selection.below),
        "failures": [case.task_id for case in selection.failures],
        "changes": [
            {"kind": change.kind, "id": (change.after or change.before).id}  # type: ignore[union-attr]  # one of them is there
            for change in found.changes
        ],
        "left_out": left_out,
        "requests": result.requests,
        "failed": result.failed,
    }
    run.folder.append_jsonl(EVOLVE_LOG, [json.dumps(record, ensure_ascii=False)])
    if selection.below:
        worst = selection.below[0]
        more = f" and {len(selection.below) - 1} more" if len(selection.below) > 1 else ""
        run.progress.notice(
            f"evolve, after step {step + 1}: success is {selection.success[worst]:.2f} at {worst or UNTYPED}{more}, below "
            f"{evolver.config.threshold:g}; {len(selection.failures)} failures gave {new} new and {improved} improved skills, "
            f"{evicted} were evicted."
        )
    if result.failed:
        run.warn(f"{TROUBLE} ({result.failed} of {result.requests} requests): see {EVOLVE_LOG}.", once=TROUBLE)
    if left_out:
        run.warn(f"{UNUSABLE}, first: {left_out[0].rstrip('.')}. All are in {EVOLVE_LOG}.", once=UNUSABLE)
    return {
        "evolve_types_below": float(len(selection.below)),
        "evolve_failures": float(len(selection.failures)),
        "skills_evolved": figures.get("skills_evolved", 0.0) + new + improved,
        "skills_evicted": figures.get("skills_evicted", 0.0) + evicted,
        "bank_skills": float(len(bank.bank)),
        "bank_version": float(bank.bank.version),
    }


def _left_out(found: Admitted, result: TeacherResult) -> list[str]:
    names = (f"text for {quote(each.base)}" if each.base else f"skill {quote(each.text)}" for each, _ in found.refused)
    refused = (f"{name}: {problem}" for name, (_, problem) in zip(names, found.refused, strict=True))
    return [*result.notes, *found.fusions, *refused]
