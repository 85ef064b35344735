"""SkillOpt (arXiv 2605.23904): a skill document is trained while all weights stay frozen.

`optimize` is the one visible loop. A step is rollout → reflect → aggregate → select → edit → gate. The end of an epoch compares the same
items under this epoch's document and the last's: the slow update writes the guidance block of the document from that. The loop is a
deterministic function of its inputs and of the journal that `Calls` writes, so a run is resumed by running it again. It knows nothing
of environments or models: rollouts and answers come through `Calls`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.documents import apply_patch_outside, reads_the_same, with_guidance
from skill_ttrl.optimize.gate import Evaluation, Selection, decide
from skill_ttrl.optimize.lessons import Pair
from skill_ttrl.optimize.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.record import EpochRecord, Judged, Optimized, OptimizeState, OptimizeTask, StepRecord, Watch
from skill_ttrl.optimize.schedule import budget_of
from skill_ttrl.optimize.types import Optimizer, RolloutResult, StepView, graded, unwrapped
from skill_ttrl.types import derive_seed

COMPARISON = "comparison"
"""Rollouts at the end of an epoch are counted under this name."""
COMPARED = 20
"""Training items that are rolled out under the documents of two epochs."""


@dataclass
class Loop:
    """The parts that all steps of an optimization share."""

    task: OptimizeTask
    """Items to train on, to decide by, and to report on."""
    config: OptimizeConfig
    """Sizes, budgets and the gate."""
    calls: Calls
    """Rollouts and requests, with their journal."""
    optimizer: Optimizer
    """Proposes edits."""
    seed: int = 42
    """Of batches and minibatches."""
    watch: Watch = field(default_factory=Watch)
    """Its methods are called at every stage and step."""
    writer: LLMOptimizer | None = field(init=False)
    """The optimizer, where it writes guidance too (`slow_update`)."""
    selection: Selection = field(init=False)
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        """Resolve what depends on the task and the optimizer.

        Raises:
            ConfigError: the slow update is on, and the optimizer uses no language model.
        """
        own, config = unwrapped(self.optimizer), self.config  # a user's own may extend ours
        self.writer = own if isinstance(own, LLMOptimizer) and config.slow_update is not False else None
        self.selection = Selection(self.task.selection, self.calls, config.gate)
        self.steps, _ = step_sizes(config, len(self.task.train))
        if config.slow_update and self.writer is None:
            raise ConfigError(
                f"optimize.slow_update needs a language model, and optimize.optimizer: {config.optimizer} has none. "
                "Turn it off, or use the optimizer 'openai'."
            )


def step_sizes(config: OptimizeConfig, train: int) -> tuple[int, int]:
    """Steps of all epochs on so many training items, and the items of a step; the last step of an epoch may have fewer."""
    return config.epochs * -(-train // config.batch_size), config.batch_size


def optimize(loop: Loop, document: str) -> Optimized:
    """Train a document, from `document` on.

    Raises:
        DataError: no training or selection items.
        BudgetError, EndpointError, EnvError: see `Calls`; the same call continues the run.
    """
    task, config = loop.task, loop.config
    check(task)
    first = loop.selection.evaluate(document)
    state = OptimizeState(document, first, document, first.score)
    loop.watch.begin(state, loop.steps)
    rows, ends, size = [], [], config.batch_size
    for epoch in range(1, config.epochs + 1):
        order = list(task.train)
        random.Random(loop.seed + 1000 * epoch).shuffle(order)
        for place, start in enumerate(range(0, len(order), size)):
            state, record = optimize_step(loop, state, order[start : start + size], epoch, place)
            rows.append(record.row(state))
            loop.watch.step(record, state)
        state, end = end_epoch(loop, state, epoch)
        ends += [end.row()] if end is not None else []
    test_first, test_best = test_rollouts(task, loop.calls, document, state.best)
    return Optimized(state, document, first, rows, test_first, test_best, ends)


def check(task: OptimizeTask) -> None:
    """Check that this can be optimized.

    Raises:
        DataError: a split is empty, or two items of one share an id.
    """
    for name, items in (("training", task.train), ("selection", task.selection), ("test", task.test)):
        if not items and name != "test":
            raise DataError(f"{task.name!r} has no {name} items: optimization needs training and selection items.")
        names = Counter(str(item.get("id", "")) for item in items)
        if twice := next((each for each, count in names.items() if count > 1), None):
            raise DataError(f"Two {name} items of {task.name!r} have the id {twice!r}. Ids must be unique.")


def test_rollouts(
    task: OptimizeTask, calls: Calls, first: str, best: str
) -> tuple[list[RolloutResult], list[RolloutResult]] | tuple[None, None]:
    """Test rollouts of the first and the best document; of one alone where they are the same, of none without test items."""
    if not task.test:
        return None, None
    found = calls.roll_out("test", first, task.test)
    return found, found if best == first else calls.roll_out("test", best, task.test)


def optimize_step(
    loop: Loop, state: OptimizeState, batch: Sequence[Item], epoch: int, place: int
) -> tuple[OptimizeState, StepRecord]:
    """One step: from training items to the state behind it, and the record of what was made."""
    state = replace(state, step=state.step + 1)
    record = StepRecord(state.step, epoch, place, state.current)
    with _stage(loop, record, "rollout"):
        record.rollouts = loop.calls.roll_out("rollout", state.current, batch)
    seed, shown = loop.seed + state.step, graded(record.rollouts)
    view = StepView(state.step, epoch, state.current, shown, loop.config.edit_budget, seed)
    record.fallbacks = view.fallbacks
    with _stage(loop, record, "reflect"):
        record.raw_patches = loop.optimizer.reflect(view)
    return improve(loop, state, view, record), record


def improve(loop: Loop, state: OptimizeState, view: StepView, record: StepRecord) -> OptimizeState:
    """Aggregate, select, edit and gate what the analysts proposed; the state behind the decision."""
    if not record.raw_patches:
        record.reason = "no analyst gave a patch"
        return state
    with _stage(loop, record, "aggregate"):
        merged = record.merged = loop.optimizer.merge(view, record.raw_patches)
    if not merged.edits:
        proposed = sum(len(raw.patch.edits) for raw in record.raw_patches)
        record.reason = f"merging left none of {proposed} proposed edits" if proposed else "no patch has an edit"
        return state
    state = replace(state, updates=state.updates + 1)
    with _stage(loop, record, "select"):
        record.selected = merged
        if loop.config.lr_scheduler != "none":
            record.edit_budget = most = budget_of(loop.config, state.updates, loop.steps)
            if len(merged.edits) > most:
                record.selected = loop.optimizer.select(view, merged, most)
    if not record.selected.edits:
        record.action = "skip_no_budget"
        return state
    with _stage(loop, record, "update"):
        record.candidate, record.report = apply_patch_outside(view.document, record.selected)
    with _stage(loop, record, "evaluate"):
        return judge(loop, state, record, record.candidate)


def judge(loop: Loop, state: OptimizeState, record: Judged, candidate: str) -> OptimizeState:
    """Put a candidate before the gate; the state behind it. One that reads as the present document does is no candidate."""
    if reads_the_same(state.current, candidate):
        record.action, record.reason = "skip_no_change", "the candidate says what the document says"
        return state
    record.evaluation = found = loop.selection.evaluate(candidate, against=state.current_evaluation)
    accepted, record.reason = decide(loop.config.gate, state.current_evaluation, found)
    record.candidate_score = found.score if found.whole else None
    state, record.action = advance(state, candidate, found, accepted=accepted)
    return state


def advance(
    state: OptimizeState, candidate: str, evaluation: Evaluation, *, accepted: bool
) -> tuple[OptimizeState, str]:
    """The state behind a decision of the gate, and the name of what happened."""
    if not accepted:
        return state, "reject"
    state = replace(state, current=candidate, current_evaluation=evaluation)
    if evaluation.score <= state.best_score:
        return state, "accept"
    return replace(state, best=candidate, best_score=evaluation.score, best_step=state.step), "accept_new_best"


def end_epoch(loop: Loop, state: OptimizeState, epoch: int) -> tuple[OptimizeState, EpochRecord | None]:
    """Compare this epoch's document with the last's: the state with new guidance, and the record where it was done."""
    before, now, writer = state.epoch_document, state.current, loop.writer
    if before is None or writer is None:
        return replace(state, epoch_document=now), None
    loop.watch.enter(state.step, COMPARISON)
    items = list(loop.task.train)
    random.Random(derive_seed(loop.seed, "comparison", str(epoch))).shuffle(items)
    first = loop.calls.roll_out(COMPARISON, before, items[:COMPARED])
    second = first if before == now else loop.calls.roll_out(COMPARISON, now, items[:COMPARED])
    record = EpochRecord(epoch, state.step, [*map(Pair, first, second)], action="no_content")
    record.guidance = writer.guide(before, now, record.pairs, record.fallbacks)
    if record.guidance is not None:
        record.candidate = with_guidance(now, record.guidance)
        state = judge(loop, state, record, record.candidate)
    state = replace(state, epoch_document=state.current)
    loop.watch.epoch(record, state)
    return state, record


@contextmanager
def _stage(loop: Loop, record: StepRecord, name: str) -> Iterator[None]:
    loop.watch.enter(record.step, name)
    began = time.perf_counter()
    yield
    record.seconds[name] = record.seconds.get(name, 0.0) + time.perf_counter() - began
