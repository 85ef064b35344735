"""A run in progress: what its phases share besides the parts that act."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from skill_ttrl.config import RLConfig, SkillTTRLConfig
from skill_ttrl.llm.backend import counting
from skill_ttrl.llm.openai.ledger import Ledger
from skill_ttrl.progress import Progress
from skill_ttrl.rollout.samples import TaskSamples
from skill_ttrl.runs.checkpoint import Checkpoint
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.metrics import MetricsLog, eval_line
from skill_ttrl.runs.stop_rules import COLLAPSE, stop_step
from skill_ttrl.signals import RESUME, StopSignal
from skill_ttrl.stages.evaluation.measure import correctness, evaluation_draws
from skill_ttrl.stages.evaluation.results import Evaluation
from skill_ttrl.stages.training.components import OnRolloutEnd, TrainingComponents, ignore
from skill_ttrl.stages.training.meter import Meter
from skill_ttrl.types import Group, Trajectory, to_json
from skill_ttrl.voting import given_up

BEFORE = "before"
"""Label of the evaluation of the policy that votes begin to train."""
GIVEN_UP = "Answers that could not be read"
"""Begins the warning of them, which a run gives once."""


@dataclass
class WarningLog:
    """Warns the user of each thing once, and keeps the texts for the summary."""

    progress: Progress
    texts: list[str] = field(default_factory=list)

    def __call__(self, text: str, *, once: str | None = None) -> None:
        """Warn, unless the same was said; `once`: unless an earlier text begins so."""
        if not any(each.startswith(once) if once else each == text for each in self.texts):
            self.texts.append(text)
            self.progress.notice(text, warning=True)


def warn_of_undecided_answers(warn: WarningLog, where: str, groups: Sequence[Group]) -> None:
    """Warn once of many undecided answers: votes for them are split although they may be equal."""
    found = given_up(answer for group in groups for answer in group.answers)
    if found.many:
        text = f"{GIVEN_UP} ({where}): {found} Metric: undecided_answers; see docs/answers.md."
        warn(text, once=GIVEN_UP)


@dataclass(frozen=True)
class ResumePoint:
    """Where a run starts: at its checkpoint, or without one at the beginning."""

    config: SkillTTRLConfig
    checkpoint: Checkpoint | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    """Trainer state of the checkpoint."""

    def over(self, phase: str) -> bool:
        """True where the checkpoint is of a later phase."""
        order: list[str] = list(self.config.phases)
        return self.checkpoint is not None and order.index(phase) < order.index(self.checkpoint.phase)

    def steps_done(self, phase: str) -> int:
        """Steps of `phase` that the checkpoint holds: those it was saved at, or all where it is of a later phase."""
        if self.checkpoint is None:
            return 0
        if self.over(phase):
            config = self.config
            return {"sft": config.sft.steps, "dagger": sum(config.dagger.round_steps)}.get(phase, config.rl.steps)
        return self.checkpoint.step if self.checkpoint.phase == phase else 0


@dataclass(frozen=True)
class Run:
    """A run in progress."""

    components: TrainingComponents
    meter: Meter
    folder: RunFolder
    log: MetricsLog
    progress: Progress
    stop: StopSignal
    resumed: ResumePoint
    ledger: Ledger
    """Cost of its remote models, and the budget."""
    warn: WarningLog
    baseline: Evaluation | None = None
    """The evaluation `before` of another run of the same starting policy; None: this run measures it."""

    @property
    def config(self) -> SkillTTRLConfig:
        """The run's config."""
        return self.components.config

    def evaluate(self, label: str, *, use_bank: bool = True) -> Evaluation:
        """Evaluate once under this label; a resumed run reads what it measured before it was stopped."""
        done = self.meter.evaluations
        if label in done:
            return done[label]
        if label == BEFORE and self.baseline is not None:
            found = self.baseline
            self.progress.notice(f"The evaluation {label!r} is that of {found.reused_from} (run.baseline).")
        else:
            found = self._measure(label, use_bank)
        self.folder.append_jsonl("evaluations.jsonl", [to_json(found)])
        place = "evaluate" if use_bank else "evaluate_no_skills"
        last = self.config.phases[-1]  # an evaluation before it is at 0
        learned = self.log.steps.get(last, self.resumed.steps_done(last))
        self.log.track(place, tracked_metrics(found), learned)
        done[label] = found
        if found.failed:
            self.warn(f"In the evaluation {label!r}, {found.failed:.1%} of the rollouts failed and count as wrong.")
        return found

    def _measure(self, label: str, use_bank: bool) -> Evaluation:
        def keep(rows: Sequence[TaskSamples]) -> None:
            if self.config.run.save_eval_samples:
                lines = [eval_line(label, row, correctness(row)) for row in rows]
                self.folder.append_jsonl("eval_samples.jsonl", lines)

        phase = f"evaluate {label}"
        draws = evaluation_draws(self.config.eval, self.config.rollout, self.config.seed)
        rollouts = len(self.meter.eval_tasks) * sum(draw.rollouts_per_task for draw in draws)
        self.progress.start(phase, rollouts, "rollout")
        leaving = (
            f"Interrupted during the evaluation {label!r}, which will start over; training is saved in "
            f"{self.folder.path}. {RESUME}"
        )
        with self.stop.interruptible(leaving), self.ledger.phase("evaluate"):
            began = time.perf_counter()
            bank = self.components.bank.view() if use_bank else None
            with self._advancing(phase) as on_rollout_end:
                found = self.meter.evaluate(self.components.worker, label, bank, on_rollout_end, keep)
        self.log.time("evaluate", len(self.meter.evaluations), {"seconds": time.perf_counter() - began})
        self.progress.finish(phase)
        return found

    @contextmanager
    def _advancing(self, phase: str) -> Iterator[OnRolloutEnd]:
        """Advance the phase with each rollout that ends. Rollouts of one turn end together; the `hf` backend counts them before."""
        ended: list[bool] = []
        several, shown = self.config.agent.max_turns > 1, 0

        def show(under_way: int = 0) -> None:
            nonlocal shown
            done = len(ended) + under_way
            if done > shown:
                shown = done
                self.progress.advance(phase, shown, {"success": sum(ended) / len(ended)} if several and ended else {})

        def on_rollout_end(trajectory: Trajectory) -> None:
            ended.append(trajectory.is_success)
            show()

        watched = nullcontext() if several else counting(self.components.backend, show)
        with watched:
            yield on_rollout_end

    def count_rollouts(self, phase: str, part: str) -> OnRolloutEnd:
        """Show under `part` of the phase how many multi-turn rollouts have ended, and how many were won."""
        ended: list[bool] = []

        def count(trajectory: Trajectory) -> None:
            ended.append(trajectory.is_success)
            self.progress.enter(phase, f"{part}: {len(ended)} episodes, {sum(ended)} won")

        return count if self.config.agent.max_turns > 1 else ignore


def tracked_metrics(found: Evaluation) -> dict[str, float]:
    """Metrics of an evaluation for a tracker; those that were not measured are left out."""
    names = ("accuracy", "majority", "greedy", "score", "greedy_score", "majority_ratio", "entropy", "failed")
    measured = {name: getattr(found, name) for name in names}
    if all(result.majority_answer is None for result in found.results):  # no answers, so nothing to agree on
        measured |= {"majority": None, "majority_ratio": None, "entropy": None}
    measured |= {f"pass@{k}": value for k, value in found.pass_at_k.items()}
    measured |= {f"accuracy/{kind or 'other'}": each.accuracy for kind, each in found.by_type.items()}
    return {name: value for name, value in measured.items() if value is not None}


def stopped_by(rows: Sequence[Mapping[str, Any]], config: RLConfig, finished: int) -> str | None:
    """Why `rl.stop_rule` ends a run with these metrics after at most `finished` steps; None: it continues.

    Only the first `finished` steps count, so a resumed run stops where it stopped before.
    """
    collapses = config.stops_collapse
    if config.stop_rule is None or (config.stop_rule == COLLAPSE and not collapses):
        return None
    stop = stop_step(rows[:finished], config.stop_rule, config.stop_options)
    if stop is None or (stop == config.steps and not collapses):  # it ended by itself
        return None
    given = " The weights of before RL are given back." if collapses else ""
    return f"The stopping rule {config.stop_rule} ended RL after {stop} of {config.steps} steps.{given}"
