"""GEPA (arXiv 2507.19457; the package `gepa`) as an engine: reflective evolution of whole documents on a Pareto front.

An iteration draws a parent from the front, rolls it out on a few training items, asks the model for a new document, and rolls that
out on the same items. Only a gain there is worth the selection items. GEPA's own state is never stored: its draws are a function of
the seed, and its rollouts and requests go through the journal, so a run is resumed by replaying it (its own resume has no generator
state). The budget is that of `Calls`, so it is not overshot. Every document on which GEPA spends the selection items is put before
our gate, and the gate's best is the outcome.

GEPA's `cache_evaluation` stays off: it numbers training and validation items alike, so results of the one would answer for the
other. `reuse_rollouts` of `Calls` has the same use. `gepa.optimize_anything` is never called: it opens a listener.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import MissingDependencyError
from skill_ttrl.optimize.calls import Calls, ChatRequest, Item
from skill_ttrl.optimize.documents import reads_the_same
from skill_ttrl.optimize.gate import Selection, decide, select_gate_score
from skill_ttrl.optimize.lessons import clip
from skill_ttrl.optimize.loop import advance, check, test_rollouts
from skill_ttrl.optimize.record import Optimized, OptimizeState, OptimizeTask, StepRecord, Watch
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.sanitize import escape

COMPONENT = "document"
MINIBATCH = 3
"""Training items of an iteration; GEPA's own default."""
FIELD_CHARS = 2000
"""Longest field of a rollout that the model is shown."""
Row = tuple[bool, Item]
"""(a selection item?, item): GEPA hands an item on without its split."""


def iterations_of(config: OptimizeConfig, train: int) -> int:
    """Iterations until so many training items have been drawn `epochs` times."""
    return config.epochs * math.ceil(train / MINIBATCH)


def optimize(
    task: OptimizeTask, document: str, config: OptimizeConfig, calls: Calls, *, seed: int, watch: Watch
) -> Optimized:
    """Train `document` on a task with GEPA.

    Args:
        task: items to train on, to decide by, and to report on.
        document: the first document.
        config: `gate` and `epochs` count.
        calls: rollouts and requests, with their journal.
        seed: of GEPA's draws.
        watch: its `step` is called after every iteration.

    Raises:
        MissingDependencyError: gepa is not installed.
        DataError, BudgetError, EndpointError, EnvError: as the loop's own; the same call continues the run.
    """
    try:
        from gepa.api import optimize as evolve
    except ImportError:
        raise MissingDependencyError.for_extra("The engine gepa", "gepa") from None
    check(task)
    selection, iterations = Selection(task.selection, calls, config.gate), iterations_of(config, len(task.train))
    first = selection.evaluate(document)
    state = OptimizeState(document, first, document, first.score)
    run: Any = _Run(config, calls, selection, watch, state, iterations)
    watch.begin(state, iterations)
    evolve(
        seed_candidate={COMPONENT: document},
        trainset=[(False, item) for item in task.train],
        valset=[(True, item) for item in task.selection],
        adapter=run,
        reflection_lm=run.reflect,
        candidate_selection_strategy="pareto",
        reflection_minibatch_size=MINIBATCH,
        stop_callbacks=run.stop,
        logger=run,
        track_best_outputs=False,
        seed=seed,
    )
    if run.problem is not None:
        raise run.problem
    return Optimized(run.state, document, first, run.rows, *test_rollouts(task, calls, document, run.state.best))


@dataclass
class _Run:
    """One run of GEPA, as our steps and behind our gate: its adapter, stopper, logger and language model."""

    config: OptimizeConfig
    calls: Calls
    selection: Selection
    watch: Watch
    state: OptimizeState
    iterations: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    problem: Exception | None = None
    """An error raised by our code, which gepa would swallow."""
    record: StepRecord | None = None
    """The iteration on its way."""
    propose_new_texts: None = None
    """gepa asks for new texts itself, through `reflect`."""
    _unanswered: str | None = None

    def log(self, message: str) -> None:
        """Gepa's logger: our records say what happened."""

    def stop(self, gepa_state: Any) -> bool:
        """Called by gepa before each iteration: put the last one on record; True ends the run."""
        if self.record is not None and self.problem is None:
            self.rows.append(self.record.row(self.state))
            self.watch.step(self.record, self.state)
        self.record, step = None, gepa_state.i + 2
        if self.problem is not None or step > self.iterations:
            return True
        epoch, place = divmod(step - 1, self.iterations // self.config.epochs)
        self.record = StepRecord(step, epoch + 1, place, self.state.current)
        self.state = replace(self.state, step=step)
        self.watch.enter(step, "rollout")
        return False

    def evaluate(self, batch: list[Row], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """Results and scores of a document on all selection items, which puts it before the gate, or on training items."""
        from gepa.core.adapter import EvaluationBatch

        document, record, gate = candidate[COMPONENT], self.record, self.config.gate
        if batch[0][0]:
            evaluation = self.selection.evaluate(document)
            results = [*evaluation.results]
            if record is not None:
                self.watch.enter(record.step, "evaluate")
                accepted, record.reason = decide(gate, self.state.current_evaluation, evaluation)
                record.evaluation, record.candidate_score = evaluation, evaluation.score
                self.state, record.action = advance(self.state, document, evaluation, accepted=accepted)
        else:
            assert record is not None
            results = self._try_out(record, document, [item for _, item in batch])
        scores = [select_gate_score(result.hard, result.soft, gate.metric, gate.mixed_weight) for result in results]
        return EvaluationBatch(results, scores, results if capture_traces else None)

    def _try_out(self, record: StepRecord, document: str, items: Sequence[Item]) -> list[RolloutResult]:
        """Roll out a parent, then its child, on the same training items."""
        if record.rollouts and reads_the_same(record.before, document):
            record.action, record.reason = "skip_no_change", "the candidate says what its parent says"
            record.candidate = document
            return [RolloutResult(str(item["id"]), fail_reason=record.reason) for item in items]
        different = {str(item["id"]): item for item in items}  # gepa fills up a batch with repetitions
        found = self.calls.roll_out("rollout", document, [*different.values()])
        if record.rollouts:
            record.candidate, record.action = document, "reject"
            record.reason = "no gain on the training items of its iteration"
        else:
            record.before, record.rollouts = document, found
            self.watch.enter(record.step, "reflect")
        results = dict(zip(different, found, strict=True))
        return [results[str(item["id"])] for item in items]

    def reflect(self, prompt: str | list[dict[str, Any]]) -> str:
        """Ask the model for a new document. gepa asks once more after an error: it is given the same one."""
        if self.problem is not None:
            raise self.problem
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
        if text != self._unanswered:
            try:
                (answer,) = self.calls.ask([ChatRequest("gepa_reflect", "", text, self.config.max_answer_tokens)])
            except Exception as error:
                self.problem = error
                raise
            if answer:
                return answer
            self._unanswered = text
            if self.record is not None:
                self.record.fallbacks["gepa_reflect"] += 1
        raise LookupError("The model gave no answer: gepa leaves the iteration out.")

    def make_reflective_dataset(self, candidate: Any, eval_batch: Any, components_to_update: list[str]) -> Any:
        """The rollouts of an iteration, in the fields that gepa's prompt has."""
        return {name: [as_example(result) for result in eval_batch.trajectories or ()] for name in components_to_update}


def as_example(result: RolloutResult) -> dict[str, str]:
    """One rollout for gepa's prompt: escaped, and of bounded length."""
    expected = f"Expected: {result.reference_text}" if result.reference_text else ""
    feedback = " ".join(filter(None, ["Right." if result.hard else "Wrong.", result.fail_reason, expected]))
    last = result.conversation[-1] if result.conversation else ""
    answer = result.predicted_answer or str(last.get("content", "") if isinstance(last, dict) else last)
    task = result.question or result.task_description
    fields = {"Inputs": task, "Generated Outputs": answer, "Feedback": feedback}
    return {name: escape(clip(text, FIELD_CHARS)) for name, text in fields.items()}
