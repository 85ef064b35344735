"""SkillOpt (arXiv 2605.23904): a skill document is trained while all weights stay frozen.

`optimize` is the one visible loop: rollout → reflect → aggregate → select → edit → gate. It is a deterministic function of its inputs
and of the journal that `Calls` writes, so a run is resumed by running it again. It knows nothing of environments or models: rollouts and
answers come through `Calls`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import DataError
from skill_ttrl.optimize.acceptance import cannot_pass, decide
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.edits import apply_patch_with_report
from skill_ttrl.optimize.optimizer import Optimizer, StepView
from skill_ttrl.optimize.record import Optimized, OptimizeState, OptimizeTask, StepRecord
from skill_ttrl.optimize.schedule import build_scheduler
from skill_ttrl.optimize.selection import Evaluation, Selection
from skill_ttrl.optimize.types import RolloutResult

BYTES_PER_TOKEN = 4


class Watch(Protocol):
    """A listener to the loop; where it overrides nothing it does nothing."""

    def begin(self, state: OptimizeState, steps: int) -> None:
        """The first document is evaluated, and `steps` steps follow."""
        return

    def enter(self, step: int, stage: str) -> None:
        """A stage of a step begins."""
        return

    def step(self, record: StepRecord, state: OptimizeState) -> None:
        """A step is finished. May raise to leave."""
        return


class Silent(Watch):
    """Listens and does nothing."""


@dataclass(frozen=True)
class Loop:
    """What the steps of one optimisation share."""

    task: OptimizeTask
    config: OptimizeConfig
    calls: Calls
    optimizer: Optimizer
    selection: Selection
    seed: int
    watch: Watch

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the last one perhaps smaller."""
        return math.ceil(len(self.task.train) / self.config.batch_size)


def optimize(
    task: OptimizeTask,
    document: str,
    config: OptimizeConfig,
    calls: Calls,
    optimizer: Optimizer,
    *,
    seed: int = 42,
    watch: Watch | None = None,
) -> Optimized:
    """Train `document` on a task.

    Args:
        task: items to train on, to decide by, and to report on.
        document: the first document.
        config: sizes, budgets and the gate.
        calls: rollouts and requests, with their journal.
        optimizer: proposes edits.
        seed: of batches and minibatches.
        watch: told of every stage and step.

    Raises:
        DataError: no training or selection items, or the first document is over its token budget.
        BudgetError, EndpointError, EnvError: see `Calls`; the same call continues the run.
    """
    loop = Loop(task, config, calls, optimizer, Selection(task.selection, calls, config.gate), seed, watch or Silent())
    check(task, document, config)
    first = loop.selection.evaluate(document)
    score = loop.selection.score(first)
    state = OptimizeState(document, first, score, document, score)
    loop.watch.begin(state, loop.steps_per_epoch * config.epochs)
    rows = []
    for epoch in range(1, config.epochs + 1):
        for place, batch in enumerate(batches(task.train, config.batch_size, seed + 1000 * epoch)):
            state, record = optimize_step(loop, state, batch, epoch, place)
            rows.append(record.row(state))
            loop.watch.step(record, state)
    return Optimized(state, document, first, rows, *test_rollouts(task, config, calls, document, state.best))


def test_rollouts(
    task: OptimizeTask, config: OptimizeConfig, calls: Calls, first: str, best: str
) -> tuple[list[RolloutResult], list[RolloutResult]] | tuple[None, None]:
    """Test rollouts of the first and the best document; of one alone where they are the same, of none without `config.test`."""
    if not config.test or not task.test:
        return None, None
    found = calls.roll_out("test", first, task.test)
    return found, found if best == first else calls.roll_out("test", best, task.test)


def optimize_step(
    loop: Loop, state: OptimizeState, batch: Sequence[Item], epoch: int, place: int
) -> tuple[OptimizeState, StepRecord]:
    """One step: from a batch of training items to the state behind it, and the record of what was made."""
    step = state.step + 1
    record = StepRecord(step, epoch, place, state.current)
    state = replace(state, step=step)
    with _stage(loop, record, "rollout"):
        record.rollouts = loop.calls.roll_out("rollout", state.current, batch)
    view = view_of(loop, state, record.rollouts, epoch)
    record.fallbacks = view.fallbacks
    with _stage(loop, record, "reflect"):
        record.raw_patches = loop.optimizer.reflect(view)
    if not record.raw_patches:
        return state, record
    with _stage(loop, record, "aggregate"):
        record.merged = loop.optimizer.merge(view, record.raw_patches)
    if not record.merged.edits:
        return state, record
    state = replace(state, updates=state.updates + 1)
    with _stage(loop, record, "select"):
        record.edit_budget = edit_budget(loop, state.updates)
        few = len(record.merged.edits) <= record.edit_budget
        record.selected = record.merged if few else loop.optimizer.select(view, record.merged, record.edit_budget)
    with _stage(loop, record, "update"):
        record.candidate, record.report = apply_patch_with_report(state.current, record.selected)
    with _stage(loop, record, "evaluate"):
        state = judge(loop, state, record, record.candidate)
    return state, record


def view_of(loop: Loop, state: OptimizeState, rollouts: Sequence[RolloutResult], epoch: int) -> StepView:
    """The facts that the optimizer may use in this step."""
    return StepView(state.step, epoch, state.current, rollouts, loop.config.edit_budget, loop.seed + state.step)


def edit_budget(loop: Loop, update: int) -> int:
    """Most edits of the `update`-th patch (from 1)."""
    config = loop.config
    total = loop.steps_per_epoch * config.epochs
    return build_scheduler(config.lr_scheduler, config.edit_budget, config.min_edit_budget, total).get_lr(update)


def judge(loop: Loop, state: OptimizeState, record: StepRecord, candidate: str) -> OptimizeState:
    """Put a candidate before the gate; the state behind it."""
    if (problem := too_long(candidate, loop.config)) is not None:
        record.action, record.reason = "reject_too_long", problem
        return state
    gate = loop.config.gate
    present = state.current_evaluation
    found = loop.selection.evaluate(candidate, cannot_pass(gate, present), against=present)
    decision = decide(gate, present, found)
    score = loop.selection.score(found)
    record.evaluation, record.reason = found, decision.reason
    record.candidate_score = score if found.whole else None
    state, record.action = advance(state, candidate, found, score, accepted=decision.accepted)
    return state


def advance(
    state: OptimizeState, candidate: str, evaluation: Evaluation, score: float, *, accepted: bool
) -> tuple[OptimizeState, str]:
    """The state behind a decision of the gate, and the name of what happened."""
    if not accepted:
        return state, "reject"
    state = replace(state, current=candidate, current_evaluation=evaluation, current_score=score)
    if score <= state.best_score:
        return state, "accept"
    return replace(state, best=candidate, best_score=score, best_step=state.step), "accept_new_best"


def batches(items: Sequence[Item], size: int, seed: int) -> list[list[Item]]:
    """All items once, shuffled by `seed`, in batches of `size`."""
    order = list(items)
    random.Random(seed).shuffle(order)
    return [order[start : start + size] for start in range(0, len(order), size)]


def too_long(document: str, config: OptimizeConfig) -> str | None:
    """A sentence that says by how much a document exceeds its token budget; None where it fits."""
    tokens, most = math.ceil(len(document.encode()) / BYTES_PER_TOKEN), config.max_document_tokens
    return None if most is None or tokens <= most else f"about {tokens} tokens, optimize.max_document_tokens is {most}"


def check(task: OptimizeTask, document: str, config: OptimizeConfig) -> None:
    """Refuse what cannot be optimised.

    Raises:
        DataError: a split is empty, two items of one share an id, or the document is too long.
    """
    for name, items in (("training", task.train), ("selection", task.selection)):
        if not items:
            raise DataError(
                f"There are no {name} items in {task.name!r}: optimisation needs training and selection items."
            )
    for name, items in (("training", task.train), ("selection", task.selection), ("test", task.test)):
        names = [str(item.get("id", "")) for item in items]
        if twice := next((each for each in names if names.count(each) > 1), None):
            raise DataError(
                f"Two {name} items of {task.name!r} have the id {twice!r}. Give every item an id of its own."
            )
    if (problem := too_long(document, config)) is not None:
        raise DataError(f"The first document is too long: {problem}. Shorten it or raise the bound.")


@contextmanager
def _stage(loop: Loop, record: StepRecord, name: str) -> Iterator[None]:
    loop.watch.enter(record.step, name)
    began = time.perf_counter()
    yield
    record.seconds[name] = time.perf_counter() - began
