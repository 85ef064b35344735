"""Changes of a run's skill bank besides those of its winners: skills evolved from failures, text edits, and the gate that tests changes.

With `optimize.every` the bank is written as a document, a step's rollouts are reflected on, and what the edits changed becomes one update.
So one bank has two optimizers: weights learn to use it, and edits change what it says. Success is what the learner is rewarded for, or
what the environment says; true answers are shown only where they are the reward.

Every `evolve.every` steps the tracker judges success by type of task; see `skills.evolution`. Each look changes the bank by one update
or not at all, and is a line of `evolve.jsonl`.

With `skills.gate` changes are collected in a draft, and applied once a paired test accepts them. The current policy rolls out both versions
on the gate's tasks with the same seeds. Tasks, seeds and the test follow from the run's seed and the step, so a repeated step decides
the same. Each decision is a line of `gate.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from skill_ttrl.config import GateConfig, OptimizeConfig
from skill_ttrl.errors import BudgetError, CheckpointError, SkillBankError
from skill_ttrl.optimize.calls import Calls, EndpointChat
from skill_ttrl.optimize.documents import apply_patch_outside
from skill_ttrl.optimize.engines import asks_endpoint, make_optimizer
from skill_ttrl.optimize.paired import GateOutcome, PairedRule, gate_change
from skill_ttrl.optimize.schedule import budget_of
from skill_ttrl.optimize.types import Optimizer, Patch, RolloutResult, StepView, unwrapped
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.skills.admit import Admitted
from skill_ttrl.skills.changes import Snapshot, content_changes, quote
from skill_ttrl.skills.document import document_changes, document_of
from skill_ttrl.skills.evolution import SOURCE, Evolver, SuccessTracker
from skill_ttrl.skills.querying import bank_unchanged
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.skills.types import TeacherResult
from skill_ttrl.train.document_rollouts import as_result
from skill_ttrl.train.run import RolloutWorker, Run, TrainingComponents
from skill_ttrl.train.run_bank import UNCHANGED, RunBank
from skill_ttrl.types import BankUpdate, Change, Group, Task, derive_seed, from_json

GATE_LOG = "gate.jsonl"
"""In a run's folder: each decision of the gate."""
TestChange = Callable[[Snapshot, Snapshot], GateOutcome]
"""Compares a bank before and after a change."""


@dataclass
class BankGate:
    """The gate of a run in progress: scores versions of a bank on tasks with the policy as it is."""

    config: GateConfig
    tasks: Sequence[Task]
    worker: RolloutWorker
    """Its environments are the gate's own."""
    rollouts: int = 0
    """Rollouts so far."""

    def score(self, version: BankView, tasks: Sequence[Task], *, seed: int) -> list[float | None]:
        """Mean success of each task with a version of the bank, in [0, 1]; None where no rollout could be scored.

        Raises:
            EndpointError, EnvError: all rollouts failed.
        """
        count, sampling = self.config.rollouts_per_task, self.worker.sampling
        sampling = replace(sampling, temperature=self.config.temperature or sampling.temperature)
        groups = self.worker.with_bank(version).generate_rollouts(tasks, count, sampling, seed)
        refuse_failure(groups)
        self.rollouts += count * len(tasks)
        return [
            mean_score([float(each.success or 0.0) for each in group.trajectories if each.error is None])
            for group in groups
        ]

    def test(self, bank: RunBank, before: Snapshot, after: Snapshot, seed: int) -> GateOutcome:
        """Compare two versions of the bank on the gate's tasks."""
        rule = PairedRule(self.config.rule, self.config.min_effect)
        return gate_change(bank.view_of(before), bank.view_of(after), self.score, self.tasks, rule, seed=seed)


def make_gate(components: TrainingComponents, state: Mapping[str, Any]) -> BankGate | None:
    """The gate of a run, restored from a checkpoint's state; None where the config has none, or the bank is not used.

    The bank collects its changes from here on: phases before this one change it directly.

    Raises:
        CheckpointError: that state is damaged.
    """
    bank, given = components.bank, components.gate
    if not bank or given is None or bank.config.gate is None:
        return None
    gate = BankGate(bank.config.gate, given.tasks, replace(components.worker, envs=given.envs))
    with _reading("the bank's pending changes"):
        bank.start_draft(from_json(BankUpdate, json.dumps(each)) for each in state.get("bank_pending", []))
    return gate


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Read a part of a checkpoint's state; where that fails the checkpoint is damaged."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a ValidationError is a ValueError
        raise CheckpointError(f"The checkpoint is damaged: {what} cannot be read ({error}).") from None


def decide_changes(run: Run, gate: BankGate | None, evolver: Evolver | None, step: int) -> dict[str, float]:
    """Apply or reject the collected changes, where a decision is due. Changes that count uses alone are applied without a test.

    Returns:
        The metrics of the decision, and the size and version of the bank.

    Raises:
        EndpointError, EnvError: all rollouts of the gate failed.
    """
    bank = run.components.bank
    if gate is None or not bank:
        return {}
    metrics: dict[str, float] = {}
    if step + 1 == run.config.rl.steps or (step + 1) % gate.config.every == 0:
        now, wanted = bank.bank.snapshot(), bank.target.snapshot()
        if changes := content_changes(now, wanted):
            gate.rollouts = 0
            outcome = gate.test(bank, now, wanted, derive_seed(run.config.seed, "gate", step))
            metrics = _record(run, step, (now.version, wanted.version), changes, outcome)
            metrics["gate/rollouts"] = float(gate.rollouts)
        if not changes or outcome.decision.accept:
            bank.accept_draft()
        else:
            bank.reject_draft(step)
            if evolver is not None:
                evolver.reject(changes)
    return metrics | bank.metrics()


def _record(
    run: Run, step: int, versions: tuple[int, int], changes: Sequence[Change], outcome: GateOutcome
) -> dict[str, float]:
    """Write a decision to `gate.jsonl`, tell the user, and return its metrics."""
    found = outcome.decision
    place = {"phase": "rl", "step": step, "kind": "change", "version": versions[0], "candidate": versions[1]}
    named = [{"kind": each.kind, "id": each.skill.id, "source": each.skill.source} for each in changes]
    record = place | outcome_record(outcome) | {"changes": named}
    run.folder.append_jsonl(GATE_LOG, [json.dumps(record, ensure_ascii=False)])
    run.progress.notice(
        f"gate, after step {step + 1}: {'accepted' if found.accept else 'rejected'} {len(changes)} bank changes on "
        f"{found.n} of {outcome.tasks} tasks: {found.reason}."
    )
    return {
        "gate/accepted": float(found.accept),
        "gate/difference": found.difference,
        "gate/p_value": found.p_value,
        "gate/changes": float(len(changes)),
    }


def outcome_record(outcome: GateOutcome) -> dict[str, Any]:
    """A decision and its numbers, JSON-able."""
    found = outcome.decision
    return {
        "accepted": found.accept,
        "difference": found.difference,
        "low": found.interval[0],
        "high": found.interval[1],
        "p_value": found.p_value,
        "tasks": found.n,
        "of": outcome.tasks,
        "failed": outcome.failed,
        "before": mean_score(outcome.before),
        "after": mean_score(outcome.after),
        "reason": found.reason,
    }


def verdict(outcome: GateOutcome) -> str:
    """A decision in words."""
    found = outcome.decision
    word = "accepted" if found.accept else "rejected"
    return f"The gate {word} the change of the bank on {found.n} of {outcome.tasks} tasks: {found.reason}."


def mean_score(scores: Sequence[float | None]) -> float | None:
    """Mean of the scores that there are."""
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known else None


# Evolution.

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
    with _reading("its evolve state"):
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
        "changes": [{"kind": change.kind, "id": change.skill.id} for change in found.changes],
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
        **bank.metrics(),
    }


def _left_out(found: Admitted, result: TeacherResult) -> list[str]:
    names = (f"text for {quote(each.base)}" if each.base else f"skill {quote(each.text)}" for each, _ in found.refused)
    refused = (f"{name}: {problem}" for name, (_, problem) in zip(names, found.refused, strict=True))
    return [*result.notes, *found.fusions, *refused]


# Text edits: every `optimize.every` steps of the rl phase one step of SkillOpt on the run's own bank.

TEXT = "optimize"
"""Source of the skills, and reason of the updates."""
OPTIMIZE_LOG = "optimize.jsonl"
"""In a run's folder: each step of text edits, and what came of it."""
EDITS_UNPAID = "The budget for language models is spent: text edits have ended."
REFUSED = "Some text edits could not become skills"
"""Begin the warnings of these; each is given once."""


@dataclass
class BankText:
    """The text optimizer of a run that also trains weights."""

    config: OptimizeConfig
    optimizer: Optimizer
    total: int
    """Steps with text edits in the whole run."""
    updates: int = 0
    """Those that had edits to select from: the scheduler counts these."""
    close: Callable[[], None] = lambda: None
    """Ends the connections to the optimizer's model."""

    def due(self, step: int) -> bool:
        """True if step `step` (from 0) ends with text edits."""
        return self.config.every is not None and (step + 1) % self.config.every == 0

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint; that of the optimizer too, where it has any."""
        own: dict[str, Any] = getattr(unwrapped(self.optimizer), "state_dict", dict)()
        return {"updates": self.updates, "optimizer": own}

    def propose(self, document: str, rollouts: Sequence[RolloutResult], number: int, seed: int) -> Patch:
        """The edits of one step, at most as many as the schedule allows: reflect, aggregate, select."""
        view = StepView(number, 1, document, rollouts, self.config.edit_budget, seed)
        patches = self.optimizer.reflect(view)
        merged = self.optimizer.merge(view, patches) if patches else Patch()
        if not merged.edits:
            return merged
        self.updates += 1
        most = budget_of(self.config, self.updates, self.total)
        return merged if len(merged.edits) <= most else self.optimizer.select(view, merged, most)


def make_bank_text(components: TrainingComponents, state: Mapping[str, Any]) -> BankText | None:
    """The text optimizer of a run, restored from a checkpoint's state; None where `optimize.every` is not set.

    Raises:
        ConfigError: the optimizer cannot be made.
        CheckpointError: that state is damaged.
    """
    config = components.config.optimize
    if config is None or config.every is None:
        return None
    endpoints = components.config.endpoints
    chat = EndpointChat(endpoints) if asks_endpoint(config, endpoints) else None
    calls = Calls(chat, lambda *_, **__: [])  # the run's own rollouts are reflected on
    optimizer = make_optimizer(calls, config)
    close = (lambda: None) if chat is None else chat.close
    found = BankText(config, optimizer, components.config.rl.steps // config.every, close=close)
    if (saved := state.get(TEXT)) is not None:
        with _reading("its optimize state"):
            found.updates = int(saved["updates"])
            if saved["optimizer"]:
                unwrapped(optimizer).load_state_dict(saved["optimizer"])
    return found


def edit_text(run: Run, text: BankText | None, groups: Sequence[Group], step: int) -> dict[str, float]:
    """Let a step's rollouts edit the text of the bank, where that is due. Returns the metrics.

    Args:
        run: its bank changes by one update or not at all.
        text: the text optimizer; None: nothing edits the bank.
        groups: the step's rollouts, rewarded.
        step: its number.

    Raises:
        EndpointError: a language model cannot be reached.
    """
    bank = run.components.bank
    if text is None or not bank or not text.due(step):
        return {}
    shows = run.config.rl.reward == "label"
    before, rollouts = bank.target.snapshot(), rollouts_of(groups, text.config.batch_size, show_reference=shows)
    document, number = document_of(before), (step + 1) // (text.config.every or 1)
    report: Sequence[Mapping[str, Any]] = []
    changes: tuple[Change, ...] = ()
    try:
        patch = text.propose(document, rollouts, number, derive_seed(run.config.seed, TEXT, step))
        candidate, report = apply_patch_outside(document, patch)
        changes, origin = document_changes(before, candidate, source=TEXT, round=step)
        if changes:
            evidence = tuple(dict.fromkeys(result.id for result in rollouts if not result.hard))
            bank.apply(changes, reason=TEXT, evidence=evidence, round=step, origin=origin)
    except BudgetError as error:
        run.warn(f"{EDITS_UNPAID} {error}", once=EDITS_UNPAID)
    except SkillBankError as error:
        changes = ()
        run.warn(f"{REFUSED}, first in step {step}: {error}", once=REFUSED)
    failures = sum(not result.hard for result in rollouts)
    applied = sum(str(each["status"]).startswith("applied") for each in report)
    record = {
        "phase": "rl",
        "step": step,
        "rollouts": len(rollouts),
        "failures": failures,
        "edits": len(report),
        "applied": applied,
        "changed": len(changes),
        "report": [dict(each) for each in report],
        "changes": [{"kind": change.kind, "id": change.skill.id} for change in changes],
    }
    run.folder.append_jsonl(OPTIMIZE_LOG, [json.dumps(record, ensure_ascii=False)])
    run.progress.notice(
        f"optimize: step {step + 1}: {applied} of {len(report)} edits applied ({failures} of {len(rollouts)} rollouts failed), {len(changes)} "
        "skills changed."
    )
    return {
        "optimize/failures": float(failures),
        "optimize/edits": float(applied),
        "optimize/changes": float(len(changes)),
        **bank.metrics(),
    }


def rollouts_of(groups: Sequence[Group], most: int, *, show_reference: bool) -> list[RolloutResult]:
    """At most `most` rollouts of the groups: the first of each, then the second of each, and so on.

    A rollout succeeded where the environment says so, and where it does not grade, where it was rewarded.
    """
    rounds = zip_longest(*(group.trajectories for group in groups))
    found = []
    for each in [trajectory for one in rounds for trajectory in one if trajectory is not None][:most]:
        said, rewarded = each.success, each.error is None and (each.reward or 0.0) > 0
        success = rewarded if said is None else said
        found.append(as_result(each, show_reference=show_reference, success=success))
    return found
