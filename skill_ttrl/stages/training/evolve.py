"""Evolution of skills while the policy learns: success by type of task is watched, and failures lead to new and better skills.

Every `evolve.every` steps the types are judged whose episodes since they were last judged are enough. Where one is below the
threshold, failures are drawn from what was played since (`SuccessTracker`), a teacher looks at them with the bank in view, and what it
drafts becomes one update of the bank (`skills.evolved`). Only episodes of training tasks count; others are refused.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from skill_ttrl.config import EvolveConfig
from skill_ttrl.errors import BudgetError, CheckpointError, ConfigError, EndpointError
from skill_ttrl.skills.admit import SOURCE, Evolved, evolved
from skill_ttrl.skills.bank.snapshot import Snapshot
from skill_ttrl.skills.similarity import Similarity
from skill_ttrl.skills.teachers.teacher import Case, Teacher, TeacherResult, case_of, fused, make_teacher
from skill_ttrl.types import Group, Step, Trajectory, derive_seed, from_json, to_json

if TYPE_CHECKING:
    from skill_ttrl.stages.training.context import Run, TrainingComponents

EVOLVE_LOG = "evolve.jsonl"
"""In a run's folder: what each look found, and what came of it."""
TROUBLE = "A teacher that evolves skills gave no usable answer"
UNPAID = "The budget for language models is spent: no skill evolves any more."
UNUSABLE = "Some of what the teacher drafted from failures was left out"
"""Begin the warnings of these; each is given once."""
OBSERVATION_CHARS = 2000
"""Of each observation of a failure that is kept, so many characters."""
UNTYPED = "any"
"""How messages call the type of tasks that have none."""


@dataclass(frozen=True, slots=True)
class FailureSelection:
    """What a look at success by type found."""

    success: Mapping[str, float] = field(default_factory=dict)
    """Of each type that had enough episodes, the worst first."""
    below: tuple[str, ...] = ()
    """Types below the threshold, the worst first."""
    failures: tuple[Case, ...] = ()
    """Those to analyse: one of each type in turn, the worst type first; none where no type is below."""


class SuccessTracker:
    """Success by type of task since it was last judged, and a sample of the failures.

    The failures of a type that are kept are those of the lowest seeds, each derived from the run's seed, the step, the task and
    the place of the try: a sample that depends on nothing else, so a resumed run keeps the same ones.

    Args:
        config: when, and how many.
        splits: names of the splits that the run is trained on.
        seed: the run's.
        type_names: what the bank calls the types of tasks.
        tasks: ids of the training tasks; None: the split alone tells them.
        state: what `state_dict` gave, to go on; empty to begin.
    """

    def __init__(
        self,
        config: EvolveConfig,
        *,
        splits: Collection[str],
        seed: int = 0,
        type_names: Mapping[str, str] | None = None,
        tasks: Collection[str] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        state = state or {}
        self.config, self.seed = config, seed
        self.splits, self.tasks = frozenset(splits), None if tasks is None else frozenset(tasks)
        self.type_names = dict(type_names or {})
        self.counts: dict[str, list[int]] = {kind: list(count) for kind, count in state.get("counts", {}).items()}
        """(episodes, successes) of each type."""
        self.kept: dict[str, list[tuple[int, Case]]] = {
            kind: [(key, from_json(Case, json.dumps(case))) for key, case in cases]
            for kind, cases in state.get("failures", {}).items()
        }
        """Failures of each type with the seeds that they were drawn by, lowest first."""

    def see(self, groups: Sequence[Group], step: int) -> None:
        """Count the episodes of a step. Those that failed in their environment say nothing.

        Raises:
            ConfigError: an episode is not of a training task.
        """
        self.refuse_foreign([trajectory for group in groups for trajectory in group.trajectories])
        for group in groups:
            for place, trajectory in enumerate(group.trajectories):
                if trajectory.error is not None or not trajectory.steps:
                    continue
                case = case_of(trajectory, self.type_names)
                count = self.counts.setdefault(case.task_type, [0, 0])
                count[0] += 1
                count[1] += case.won
                if not case.won:
                    self._keep(derive_seed(self.seed, "evolve", step, trajectory.task.id, place), case)

    def refuse_foreign(self, trajectories: Sequence[Trajectory]) -> None:
        """Raise `ConfigError` where an episode is not of a training task: what is measured must not be learned from."""
        for task in (trajectory.task for trajectory in trajectories):
            if task.split not in self.splits or (self.tasks is not None and task.id not in self.tasks):
                raise ConfigError(
                    f"Skills evolve from training tasks only (splits: {', '.join(sorted(self.splits)) or 'none'}), found the "
                    f"task {task.id!r} of split {task.split!r}. Evaluation episodes never feed the bank: hand over those of "
                    "the training tasks."
                )

    def judge(self) -> FailureSelection:
        """Judge each type that has enough episodes, and begin its count anew; the others go on counting."""
        judged = {
            kind: won / played for kind, (played, won) in self.counts.items() if played >= self.config.min_episodes
        }
        success = {kind: judged[kind] for kind in sorted(judged, key=lambda kind: (judged[kind], kind))}
        below = tuple(kind for kind in success if success[kind] < self.config.threshold)
        drawn = [
            [case for _, case in self.kept.get(kind, [])][: self.config.deep if kind in below else self.config.shallow]
            for kind in success
        ]
        for kind in success:
            del self.counts[kind]
            self.kept.pop(kind, None)
        in_turn = [case for row in zip_longest(*drawn) for case in row if case is not None]
        return FailureSelection(success, below, tuple(in_turn) if below else ())

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return {
            "counts": self.counts,
            "failures": {
                kind: [[key, json.loads(to_json(case))] for key, case in cases] for kind, cases in self.kept.items()
            },
        }

    def _keep(self, key: int, case: Case) -> None:
        kept, most = self.kept.setdefault(case.task_type, []), max(self.config.deep, self.config.shallow)
        if len(kept) < most or key < kept[-1][0]:
            insort(kept, (key, _slim(case)), key=itemgetter(0))
            del kept[most:]


def _slim(case: Case) -> Case:
    """The case without tokens, and with the beginning of long texts: hundreds of them stand in a checkpoint."""
    return replace(
        case,
        steps=tuple(map(_slim_step, case.steps)),
        last_observation=case.last_observation[:OBSERVATION_CHARS],
    )


def _slim_step(step: Step) -> Step:
    return Step(
        observation=step.observation[:OBSERVATION_CHARS],
        action=step.action,
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated,
        verdict=step.verdict,
        complaint=step.complaint,
    )


@dataclass
class Evolver:
    """Who turns failures into changes of a run's bank."""

    config: EvolveConfig
    teacher: Teacher
    lookout: SuccessTracker
    retired: list[str] = field(default_factory=list)
    """Fingerprints of evolved texts that went: they do not come back."""

    def round(
        self,
        judgement: FailureSelection,
        snapshot: Snapshot,
        *,
        step: int,
        capacity: int,
        similarity: Similarity | None = None,
        threshold: float = 0.95,
    ) -> tuple[Evolved, TeacherResult]:
        """What a judgement changes in a frozen bank. Nothing is asked where nothing is below, or no change is allowed.

        Args:
            judgement: what was found.
            snapshot: the bank as it is now.
            step: the training step.
            capacity: most skills in the bank.
            similarity: see `evolved`; so is `threshold`.
            threshold: least similarity of what says the same.

        Raises:
            EndpointError: a language model gave no usable answer, under `skills.on_failure: stop`.
            BudgetError: what may be spent on language models is spent.
        """
        if not judgement.failures or not self.config.max_new_skills:
            return Evolved(), TeacherResult()
        lesson = self.teacher.evolve(judgement.failures, tuple(snapshot), self.config)
        drafts, fusions = fused(lesson.drafts, similarity, threshold)
        others = sum(skill.source != SOURCE for skill in snapshot)
        room = max(0, capacity - others)
        found = evolved(
            drafts,
            snapshot,
            most=self.config.max_new_skills,
            room=room if self.config.max_evolved is None else min(room, self.config.max_evolved),
            round=step,
            retired=self.retired,
            similarity=similarity,
            threshold=threshold,
        )
        self.retired += [each for each in found.retired if each not in self.retired]
        return replace(found, notes=(*fusions, *found.notes)), lesson

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return {**self.lookout.state_dict(), "retired": self.retired}


def make_evolver(bench: TrainingComponents, state: Mapping[str, Any]) -> Evolver | None:
    """What evolves the skills of a run, going on from a checkpoint's state; None where the config has no `evolve` section.

    Raises:
        ConfigError: there is no such teacher, or the run has nothing that skills may evolve from.
        MissingDependencyError: the packages that the teacher needs are not installed.
        CheckpointError: that state is damaged.
    """
    config, bank = bench.config.evolve, bench.bank
    if config is None or bank is None or not bank.config.use:
        return None
    if bench.transductive:
        raise ConfigError(
            "evolve learns from success on the training tasks, and this run is measured on the very same tasks. "
            "Give it tasks of its own to be measured on (data.eval), or leave out the evolve section."
        )
    teacher = make_teacher(config.teacher, models=bank.models)
    kept = state.get("evolve", {})
    try:
        lookout = SuccessTracker(
            config,
            splits={task.split for task in bench.train_tasks},
            seed=bench.config.seed,
            type_names=bank.config.type_names,
            tasks=[task.id for task in bench.train_tasks],
            state=kept,
        )
        return Evolver(config, teacher, lookout, [str(each) for each in kept.get("retired", [])])
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"What the checkpoint holds of evolve cannot be read ({error}). It is damaged.") from None


def warn_if_never(run: Run) -> None:
    """Say it where no look is ever due: the run would evolve nothing without a word."""
    config, steps = run.config.evolve, run.config.rl.steps
    if config is not None and config.every > steps:
        run.warn(
            f"No skill evolves in this run: evolve.every ({config.every}) is more than rl.steps ({steps}), so that no look at "
            "success is ever due. Lower evolve.every, raise rl.steps, or leave out the evolve section."
        )


def evolve(run: Run, groups: Sequence[Group], step: int, figures: Mapping[str, float]) -> dict[str, float]:
    """Watch a step's episodes; where a look is due, let failures change the bank. Gives the figures of it.

    Args:
        run: the run, whose bank changes by one update or not at all.
        groups: the step's episodes.
        step: its number.
        figures: those of the step so far; skills that evolved and retired are added to them.

    Raises:
        ConfigError: an episode is not of a training task.
        EndpointError: as `Evolver.round`.
    """
    bank = run.bench.bank
    evolver = None if bank is None else bank.evolver
    if bank is None or evolver is None:
        return {}
    evolver.lookout.see(groups, step)
    if (step + 1) % evolver.config.every:
        return {}
    judgement = evolver.lookout.judge()
    found, lesson = Evolved(), TeacherResult()
    try:
        found, lesson = evolver.round(
            judgement,
            bank.bank.snapshot(),
            step=step,
            capacity=bank.bank.max_skills,
            similarity=bank.alike,
            threshold=bank.config.fuse_above or 1.0,
        )
    except BudgetError as error:
        run.warn(f"{UNPAID} {error}", once=UNPAID)
    except EndpointError as error:
        raise EndpointError(
            f"{error} The bank is as it was before this look. The same command with --resume auto goes on from the newest "
            "checkpoint; with skills.on_failure=skip, or heuristic, a new run gets over it.",
            error.kind,
        ) from None
    if found.changes:
        bank.bank.apply(found.changes, reason="evolve", evidence=found.evidence, round=step)
    run.folder.append_jsonl(EVOLVE_LOG, [_line(step, judgement, found, lesson)])
    _tell(run, step, judgement, found, lesson)
    return {
        "evolve_types_below": float(len(judgement.below)),
        "evolve_failures": float(len(judgement.failures)),
        "skills_evolved": figures.get("skills_evolved", 0.0) + found.added + found.changed,
        "skills_retired": figures.get("skills_retired", 0.0) + len(found.retired),
        "bank_skills": float(len(bank.bank)),
        "bank_version": float(bank.bank.version),
    }


def _line(step: int, judgement: FailureSelection, found: Evolved, lesson: TeacherResult) -> str:
    record = {
        "phase": "rl",
        "step": step,
        "worst": next(iter(judgement.success), None),
        "types_below": len(judgement.below),
        "analysed": len(judgement.failures),
        "added": found.added,
        "changed": found.changed,
        "retired": len(found.retired),
        "success": dict(judgement.success),
        "below": list(judgement.below),
        "failures": [case.task_id for case in judgement.failures],
        "changes": [
            {"kind": change.kind, "id": (change.after or change.before).id}  # type: ignore[union-attr]  # one of them is there
            for change in found.changes
        ],
        "left_out": [*lesson.notes, *found.notes],
        "requests": lesson.requests,
        "failed": lesson.failed,
    }
    return json.dumps(record, ensure_ascii=False)


def _tell(run: Run, step: int, judgement: FailureSelection, found: Evolved, lesson: TeacherResult) -> None:
    if judgement.below:
        worst = judgement.below[0]
        more = f" and {len(judgement.below) - 1} more" if len(judgement.below) > 1 else ""
        run.progress.notice(
            f"evolve: after step {step + 1} success is {judgement.success[worst]:.2f} at {worst or UNTYPED}{more}, below "
            f"{run.config.evolve.threshold if run.config.evolve else 0:g}; of {len(judgement.failures)} failures came "
            f"{found.added} new skills and {found.changed} better texts, {len(found.retired)} were retired."
        )
    if lesson.failed:
        run.warn(f"{TROUBLE} ({lesson.failed} of {lesson.requests} requests): see {EVOLVE_LOG}.", once=TROUBLE)
    left_out = [*lesson.notes, *found.notes]
    if left_out:
        run.warn(f"{UNUSABLE}, first: {left_out[0].rstrip('.')}. All are in {EVOLVE_LOG}.", once=UNUSABLE)
