"""SkillOpt (arXiv 2605.23904): a skill document is trained while all weights stay frozen.

`optimize` is the one visible loop. A step (`step.py`) is rollout → reflect → aggregate → select → edit → gate, and the end of an epoch
looks back on it (`epoch.py`). The loop is a deterministic function of its inputs and of the journal that `Calls` writes, so a run is
resumed by running it again. It knows nothing of environments or models: rollouts and answers come through `Calls`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import DataError
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.epoch import STAGE, EpochRecord, Features, Silent, Watch, look_back
from skill_ttrl.optimize.gating.selection import Selection, cannot_pass, decide
from skill_ttrl.optimize.lessons import sample_order
from skill_ttrl.optimize.optimizer import Optimizer
from skill_ttrl.optimize.record import Optimized, OptimizeState, OptimizeTask
from skill_ttrl.optimize.reflection.writer import LLMWriter
from skill_ttrl.optimize.step import Loop, judge, optimize_step, too_long
from skill_ttrl.optimize.types import RolloutResult


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
        watch: its methods are called at every stage and step.

    Raises:
        DataError: no training or selection items, or the first document is over its token budget.
        BudgetError, EndpointError, EnvError: see `Calls`; the same call continues the run.
    """
    writer: LLMWriter | None = getattr(optimizer, "writer", None)
    selection, features = Selection(task.selection, calls, config.gate), Features.of(config, writer)
    loop = Loop(task, config, calls, optimizer, selection, seed, watch or Silent(), features, writer)
    check(task, document, config)
    first = loop.selection.evaluate(document)
    score = loop.selection.score(first)
    state = OptimizeState(document, first, score, document, score)
    loop.watch.begin(state, loop.steps_per_epoch * config.epochs)
    rows, ends = [], []
    for epoch in range(1, config.epochs + 1):
        for place, batch in enumerate(batches(task.train, loop.step_size, seed + 1000 * epoch)):
            state, record = optimize_step(loop, state, batch, epoch, place)
            rows.append(record.row(state))
            loop.watch.step(record, state)
        state, end = end_epoch(loop, state, epoch)
        ends += [end.row()] if end is not None else []
    state = judge_last(loop, state)
    test_first, test_best = test_rollouts(task, config, calls, document, state.best)
    return Optimized(state, document, first, rows, test_first, test_best, ends)


def test_rollouts(
    task: OptimizeTask, config: OptimizeConfig, calls: Calls, first: str, best: str
) -> tuple[list[RolloutResult], list[RolloutResult]] | tuple[None, None]:
    """Test rollouts of the first and the best document; of one alone where they are the same, of none without `config.test`."""
    if not config.test or not task.test:
        return None, None
    found = calls.roll_out("test", first, task.test)
    return found, found if best == first else calls.roll_out("test", best, task.test)


def end_epoch(loop: Loop, state: OptimizeState, epoch: int) -> tuple[OptimizeState, EpochRecord | None]:
    """Compare this epoch's document with the last's: the state with new guidance and lessons, and the record where it was done."""
    memory, config, before = state.memory, loop.config, state.memory.epoch_document
    if before is None or loop.writer is None or not loop.features.compares(epoch, config.epochs):
        return replace(state, memory=memory.after_epoch(state.current, None)), None
    record = EpochRecord(epoch, state.step, before, state.current)
    loop.watch.enter(state.step, STAGE)
    items = sample_order(loop.task.train, loop.seed, epoch)
    look_back(record, memory, loop.features, loop.calls, config, items, loop.writer)
    if record.candidate is not None and config.slow_update.gate:
        state = judge(loop, state, record, record.candidate)
    elif record.candidate is not None and (problem := too_long(record.candidate, config)) is not None:
        record.action, record.reason = "reject_too_long", problem
    elif record.candidate is not None:
        record.action, record.reason = "force_accept", "taken without an evaluation"
        state = replace(state, current=record.candidate)
    state = replace(state, memory=memory.after_epoch(state.current, record.meta_skill))
    loop.watch.epoch(record, state)
    return state, record


def judge_last(loop: Loop, state: OptimizeState) -> OptimizeState:
    """Evaluate a last document that is not the best one: guidance and notes change it outside of the gate.

    A document that was evaluated costs nothing here. It becomes the best one if it passes the gate against that and scores higher.
    """
    if state.current == state.best:
        return state
    gate, best = loop.config.gate, loop.selection.evaluate(state.best)
    found = loop.selection.evaluate(state.current, cannot_pass(gate, best), against=best)
    score = loop.selection.score(found)
    if not found.whole or not decide(gate, best, found).accepted or score <= state.best_score:
        return state
    measured = replace(state, current_evaluation=found, current_score=score)
    return replace(measured, best=state.current, best_score=score, best_step=state.step)


def batches(items: Sequence[Item], size: int, seed: int) -> list[list[Item]]:
    """All items once, shuffled by `seed`, in batches of `size`."""
    order = list(items)
    random.Random(seed).shuffle(order)
    return [order[start : start + size] for start in range(0, len(order), size)]


def check(task: OptimizeTask, document: str, config: OptimizeConfig) -> None:
    """Refuse what cannot be optimized.

    Raises:
        DataError: a split is empty, two items of one share an id, or the document is too long.
    """
    for name, items in (("training", task.train), ("selection", task.selection)):
        if not items:
            raise DataError(
                f"There are no {name} items in {task.name!r}: optimization needs training and selection items."
            )
    for name, items in (("training", task.train), ("selection", task.selection), ("test", task.test)):
        names = Counter(str(item.get("id", "")) for item in items)
        if twice := next((each for each, count in names.items() if count > 1), None):
            raise DataError(
                f"Two {name} items of {task.name!r} have the id {twice!r}. Give every item an id of its own."
            )
    if (problem := too_long(document, config)) is not None:
        raise DataError(f"The first document is too long: {problem}. Shorten it or raise the bound.")
