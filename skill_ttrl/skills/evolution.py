"""Evolution of skills while the policy learns: success by type of task is tracked, and failures lead to new and better skills.

`SuccessTracker` judges the types of tasks that have enough episodes since they were last judged, and samples their failures.
`Evolver` lets a teacher look at those with the bank in view, and turns its drafts into one update of the bank. Where the bank is
full, the least useful evolved skills go; what was in it before evolution began never makes room.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from skill_ttrl.config import EvolveConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.skills.admit import AdmissionRules, Admitted, admit, fingerprint
from skill_ttrl.skills.changes import Snapshot, last_active
from skill_ttrl.skills.similarity import Similarity
from skill_ttrl.skills.teachers import taught
from skill_ttrl.skills.types import Case, Draft, SeededSample, Teacher, TeacherResult, case_of, lean, round_robin
from skill_ttrl.statistics import wilson_interval
from skill_ttrl.types import Change, Group, Skill, derive_seed, from_json, to_json

SOURCE = "evolve"
"""`Skill.source` of what evolution added. A skill whose text it changed keeps the source it had."""


@dataclass(frozen=True, slots=True)
class FailureSelection:
    """Success by type of task, and the failures to analyse."""

    success: Mapping[str, float] = field(default_factory=dict)
    """Of each type that had enough episodes, the worst first."""
    below: tuple[str, ...] = ()
    """Types below the threshold, the worst first."""
    failures: tuple[Case, ...] = ()
    """One of each type in turn, the worst type first; none where no type is below."""


class SuccessTracker:
    """Success by type of task since it was last judged, and a sample of the failures.

    The seeds that draw the sample derive from the run's seed, the step, the task and the rollout's index: it depends on nothing
    else, so a resumed run has the same one.

    Args:
        config: when, and how many.
        splits: names of the splits that the run is trained on.
        seed: the run's.
        type_names: the bank's names for types of tasks.
        tasks: ids of the training tasks; None: the split alone identifies them.
        with_listed: store the actions that were listed at each step of a failure, for a teacher that reads them.
        state: an earlier `state_dict`, to continue; empty to begin.
    """

    def __init__(
        self,
        config: EvolveConfig,
        *,
        splits: Collection[str],
        seed: int = 0,
        type_names: Mapping[str, str] | None = None,
        tasks: Collection[str] | None = None,
        with_listed: bool = False,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        state = state or {}
        self.config, self.seed = config, seed
        self.splits, self.tasks = frozenset(splits), None if tasks is None else frozenset(tasks)
        self.type_names, self.with_listed = dict(type_names or {}), with_listed
        self._most = max(config.max_failures_below_threshold, config.max_failures_above_threshold)
        self.counts: dict[str, list[int]] = {kind: list(count) for kind, count in state.get("counts", {}).items()}
        """(episodes, successes) of each type."""
        self.failures: dict[str, SeededSample[Case]] = {
            kind: SeededSample(self._most, ((key, from_json(Case, json.dumps(case))) for key, case in cases))
            for kind, cases in state.get("failures", {}).items()
        }

    def add(self, groups: Sequence[Group], step: int) -> None:
        """Count the episodes of a step. Those that failed in their environment are left out.

        Raises:
            ConfigError: an episode is not of a training task.
        """
        # What is measured must not be learned from.
        for task in (trajectory.task for group in groups for trajectory in group.trajectories):
            if task.split not in self.splits or (self.tasks is not None and task.id not in self.tasks):
                raise ConfigError(
                    f"Skills evolve from training tasks only (splits: {', '.join(sorted(self.splits)) or 'none'}), but the task {task.id!r} "
                    f"is of the split {task.split!r}. Pass episodes of training tasks."
                )
        for group in groups:
            for index, trajectory in enumerate(group.trajectories):
                if trajectory.error is not None or not trajectory.steps:
                    continue
                case = case_of(trajectory, self.type_names)
                count = self.counts.setdefault(case.task_type, [0, 0])
                count[0] += 1
                count[1] += case.won
                if case.won:
                    continue
                key = derive_seed(self.seed, "evolve", step, trajectory.task.id, index)
                sample = self.failures.setdefault(case.task_type, SeededSample(self._most))
                sample.add(key, lean(case, with_listed=self.with_listed))  # hundreds of them stand in a checkpoint

    def judge(self) -> FailureSelection:
        """Judge each type that has enough episodes, and restart its count; the others continue to count."""
        config, drawn = self.config, []
        judged = {kind: won / played for kind, (played, won) in self.counts.items() if played >= config.min_episodes}
        success = {kind: judged[kind] for kind in sorted(judged, key=lambda kind: (judged[kind], kind))}
        below = tuple(kind for kind in success if success[kind] < config.threshold)
        for kind in success:
            del self.counts[kind]
            sample = self.failures.pop(kind, SeededSample[Case](0))
            most = config.max_failures_below_threshold if kind in below else config.max_failures_above_threshold
            drawn.append([case for _, case in sample.items[:most]])
        return FailureSelection(success, below, tuple(round_robin(drawn)) if below else ())

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return {
            "counts": self.counts,
            "failures": {
                kind: [[key, json.loads(to_json(case))] for key, case in sample.items]
                for kind, sample in self.failures.items()
            },
        }


@dataclass
class Evolver:
    """Turns failures into changes of a run's bank."""

    config: EvolveConfig
    teacher: Teacher
    tracker: SuccessTracker
    retired: list[str] = field(default_factory=list)
    """Fingerprints of evolved texts that were evicted or that a gate has rejected: they do not come back."""

    def evolve(
        self,
        selection: FailureSelection,
        snapshot: Snapshot,
        *,
        step: int,
        capacity: int,
        similarity: Similarity | None = None,
        threshold: float = 0.95,
    ) -> tuple[Admitted, TeacherResult]:
        """The changes of a frozen bank. The teacher is not asked where nothing is below, or no change is allowed.

        Args:
            selection: the failures.
            snapshot: the bank as it is now.
            step: the training step.
            capacity: most skills in the bank.
            similarity: see `AdmissionRules`; so is `threshold`.
            threshold: least similarity of texts that say the same.

        Raises:
            EndpointError: a language model gave no usable answer, under `skills.on_failure: stop`.
            BudgetError: the budget for language models is spent.
        """
        if not selection.failures or not self.config.max_new_skills:
            return Admitted(), TeacherResult()
        result = taught(self.teacher, "evolve", selection.failures, tuple(snapshot), self.config)
        room = max(0, capacity - sum(skill.source != SOURCE for skill in snapshot))
        rules = AdmissionRules(
            SOURCE,
            max_drafts=self.config.max_new_skills,
            room=room,
            retired=self.retired,
            similarity=similarity,
            threshold=threshold,
        )
        found = evolved(result.drafts, snapshot, rules, step=step)
        gone = [fingerprint(each.before) for each in found.changes if each.kind == "evict" and each.before is not None]
        self.retired += [each for each in gone if each not in self.retired]
        return found, result

    def reject(self, changes: Sequence[Change]) -> None:
        """Remember the texts of changes that a gate has rejected: they do not come back."""
        texts = dict.fromkeys(fingerprint(each.after) for each in changes if each.after is not None)
        self.retired += [each for each in texts if each not in self.retired]

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return {**self.tracker.state_dict(), "retired": self.retired}


def evolved(drafts: Sequence[Draft], snapshot: Snapshot, rules: AdmissionRules, *, step: int = 0) -> Admitted:
    """Admit drafts (replacements first, each kind by id), and evict the least useful evolved skills beyond `rules.room`."""
    admitted = admit(drafts, snapshot, rules, step=step)
    made = {change.after.id: change for change in admitted.changes if change.after is not None}
    changes = [made[name] for name in sorted(made, key=lambda name: (made[name].kind == "add", name))]
    mine = [skill for skill in snapshot.changed(snapshot.version, changes) if skill.source == SOURCE]
    rank = {name: 1 + (change.kind == "add") for name, change in made.items()}  # what this step brought goes last
    mine.sort(key=lambda skill: (rank.get(skill.id, 0), least_useful_first(skill)))
    gone = [] if rules.room is None else mine[: max(0, len(mine) - rules.room)]
    return replace(admitted, changes=(*changes, *(Change("evict", skill, None) for skill in gone)))


def least_useful_first(skill: Skill) -> tuple[float, int, int, str]:
    """Sort key of eviction: the lower bound of success per use (Wilson, 95 %; 0 without a use), then as `changes.eviction_key`."""
    stats = skill.stats
    low = wilson_interval(min(stats.successes, stats.uses), stats.uses)[0] if stats.uses else 0.0
    return low, last_active(skill), stats.created_step, skill.id
