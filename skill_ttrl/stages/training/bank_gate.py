"""The gate of a run's skill bank (`skills.gate`): changes are collected in a draft, and applied once a paired test accepts them.

Both versions are rolled out on the gate's tasks by the policy as it is, with the same seeds. Tasks, seeds and the test follow from
the run's seed and the step, so a repeated step decides the same. Each decision is a line of `gate.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from skill_ttrl.config import GateConfig
from skill_ttrl.errors import CheckpointError
from skill_ttrl.optimize.paired import GateOutcome, PairedRule, gate_change
from skill_ttrl.rollout.outcome import env_success
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.skills.changes import Snapshot, content_changes
from skill_ttrl.skills.evolution import Evolver
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.stages.training.run import RolloutWorker, Run, TrainingComponents
from skill_ttrl.stages.training.run_bank import RunBank
from skill_ttrl.types import BankUpdate, Change, Group, Task, derive_seed, from_json

GATE_LOG = "gate.jsonl"
"""In a run's folder: each decision of the gate."""
TestChange = Callable[[Snapshot, Snapshot], GateOutcome]
"""Compares a bank before and after a change."""


@dataclass
class BankGate:
    """The gate of a run in progress: scores versions of a bank on tasks with the policy as it is. Scores are cached until `clear`."""

    config: GateConfig
    tasks: Sequence[Task]
    worker: RolloutWorker
    """Its environments are the gate's own."""
    rollouts: int = 0
    """Rollouts since `clear`."""
    _known: dict[tuple[int, int, str], tuple[Snapshot, list[float | None]]] = field(default_factory=dict)
    """Scores by the identity of the version, the seed and the first task; each holds its version, so that no other gets its identity."""

    def score(self, version: BankView, tasks: Sequence[Task], *, seed: int) -> list[float | None]:
        """Mean success of each task with a version of the bank, in [0, 1]; None where no rollout could be scored.

        Raises:
            EndpointError, EnvError: all rollouts failed.
        """
        key = (id(version.snapshot), seed, tasks[0].id)
        if key not in self._known:
            count, sampling = self.config.rollouts_per_task, self.worker.sampling
            sampling = replace(sampling, temperature=self.config.temperature or sampling.temperature)
            groups = self.worker.with_bank(version).generate_rollouts(tasks, count, sampling, seed)
            refuse_failure(groups)
            self.rollouts += count * len(tasks)
            self._known[key] = version.snapshot, [self._task_score(group) for group in groups]
        return self._known[key][1]

    def _task_score(self, group: Group) -> float | None:
        """Success of a task's rollouts, in [0, 1]; failed ones are left out. None where none is left."""
        return mean_score([float(env_success(each) or 0.0) for each in group.trajectories if each.error is None])

    def clear(self) -> None:
        """Forget the scores: the policy has changed."""
        self.rollouts = 0
        self._known.clear()

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
    try:
        bank.start_draft(from_json(BankUpdate, json.dumps(each)) for each in state.get("bank_pending", []))
    except (AttributeError, TypeError, ValueError) as error:  # a ValidationError is a ValueError
        raise CheckpointError(
            f"The checkpoint is damaged: the bank's pending changes cannot be read ({error})."
        ) from None
    return gate


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
            gate.clear()
            outcome = gate.test(bank, now, wanted, derive_seed(run.config.seed, "gate", step))
            metrics = _record(run, step, (now.version, wanted.version), changes, outcome)
            metrics["gate/rollouts"] = float(gate.rollouts)
        if not changes or outcome.decision.accept:
            bank.accept_draft()
        else:
            bank.reject_draft(step)
            if evolver is not None:
                evolver.reject(changes)
    return metrics | {"bank_skills": float(len(bank.bank)), "bank_version": float(bank.bank.version)}


def _record(
    run: Run, step: int, versions: tuple[int, int], changes: Sequence[Change], outcome: GateOutcome
) -> dict[str, float]:
    """Write a decision to `gate.jsonl`, tell the user, and return its metrics."""
    found = outcome.decision
    place = {"phase": "rl", "step": step, "kind": "change", "version": versions[0], "candidate": versions[1]}
    skills = [(change.kind, change.after or change.before) for change in changes]
    named = [{"kind": kind, "id": skill.id, "source": skill.source} for kind, skill in skills if skill is not None]
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
