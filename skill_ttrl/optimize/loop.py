"""SkillOpt (arXiv 2605.23904): a skill document is trained while all weights stay frozen.

`optimize` is the one visible loop. A step is rollout → reflect → aggregate → select → edit → gate. The end of an epoch compares the same
items under this epoch's document and the last's: the slow update writes the guidance block of the document from that, the meta-skill the
memory of the optimizer. The loop is a deterministic function of its inputs and of the journal that `Calls` writes, so a run is resumed by
running it again. It knows nothing of environments or models: rollouts and answers come through `Calls`.
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
from skill_ttrl.optimize.documents import MODES, reads_the_same, updated_document, with_guidance
from skill_ttrl.optimize.gate import Evaluation, Selection, decide
from skill_ttrl.optimize.lessons import Pair, describe_step, sample_order
from skill_ttrl.optimize.llm_optimizer import LLMOptimizer
from skill_ttrl.optimize.record import EpochRecord, Optimized, OptimizeState, OptimizeTask, StepRecord, Watch
from skill_ttrl.optimize.schedule import budget_of
from skill_ttrl.optimize.types import Optimizer, Patch, RolloutResult, StepView, graded

COMPARISON = "comparison"
"""Rollouts at the end of an epoch are counted under this name."""
COMPARED = 20
"""Training items that are rolled out under the documents of two epochs."""


@dataclass
class Loop:
    """The parts that all steps of an optimization share."""

    task: OptimizeTask
    config: OptimizeConfig
    calls: Calls
    optimizer: Optimizer
    seed: int
    watch: Watch
    writer: LLMOptimizer | None = field(init=False)
    """The optimizer, for the calls beyond its three stages; None where it uses no language model."""
    selection: Selection = field(init=False)
    slow_update: bool = field(init=False)
    meta_skill: bool = field(init=False)
    steps: int = field(init=False)
    step_size: int = field(init=False)
    """Training items of a step."""

    def __post_init__(self) -> None:
        """Resolve the settings that are None.

        Raises:
            ConfigError: a feature is on that needs a language model, and the optimizer has none.
        """
        own = getattr(self.optimizer, "own", self.optimizer)  # a user's own may extend ours
        self.writer = own if isinstance(own, LLMOptimizer) else None
        config, has = self.config, self.writer is not None
        self.selection = Selection(self.task.selection, self.calls, config.gate)
        self.steps, self.step_size = step_sizes(config, len(self.task.train))
        slow, meta = config.slow_update, config.meta_skill
        self.slow_update, self.meta_skill = has if slow is None else slow, has if meta is None else meta
        needed = {
            "slow_update": self.slow_update,
            "meta_skill": self.meta_skill,
            "lr_scheduler: autonomous": config.lr_scheduler == "autonomous",
            "update_mode: rewrite_from_suggestions": config.update_mode == "rewrite_from_suggestions",
        }
        if not has and (named := [name for name, on in needed.items() if on]):
            raise ConfigError(
                f"optimize.{named[0]} needs a language model, and optimize.optimizer: {config.optimizer} has none. "
                "Turn it off, or use the optimizer 'openai'."
            )


def step_sizes(config: OptimizeConfig, train: int) -> tuple[int, int]:
    """Steps of all epochs on so many training items, and the items of a step; the last step of an epoch may have fewer."""
    size = config.batch_size * config.accumulation
    return config.epochs * -(-train // size), size


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
        DataError: no training or selection items.
        BudgetError, EndpointError, EnvError: see `Calls`; the same call continues the run.
    """
    loop = Loop(task, config, calls, optimizer, seed, watch or Watch())
    check(task)
    first = loop.selection.evaluate(document)
    state = OptimizeState(document, first, document, first.score)
    loop.watch.begin(state, loop.steps)
    rows, ends = [], []
    for epoch in range(1, config.epochs + 1):
        for place, batch in enumerate(batches(task.train, loop.step_size, seed + 1000 * epoch)):
            state, record = optimize_step(loop, state, batch, epoch, place)
            rows.append(record.row(state))
            loop.watch.step(record, state)
        state, end = end_epoch(loop, state, epoch)
        ends += [end.row()] if end is not None else []
    test_first, test_best = test_rollouts(task, calls, document, state.best)
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


def batches(items: Sequence[Item], size: int, seed: int) -> list[list[Item]]:
    """All items once, shuffled by `seed`, in batches of `size`."""
    order = list(items)
    random.Random(seed).shuffle(order)
    return [order[start : start + size] for start in range(0, len(order), size)]


def optimize_step(
    loop: Loop, state: OptimizeState, batch: Sequence[Item], epoch: int, place: int
) -> tuple[OptimizeState, StepRecord]:
    """One step: from training items to the state behind it, and the record of what was made."""
    state = replace(state, step=state.step + 1)
    record = StepRecord(state.step, epoch, place, state.current)
    context = state.memory.context()
    view = StepView(state.step, epoch, state.current, (), loop.config.edit_budget, loop.seed + state.step, context)
    record.fallbacks = view.fallbacks
    for start in range(0, len(batch), loop.config.batch_size):
        with _stage(loop, record, "rollout"):
            items = batch[start : start + loop.config.batch_size]
            rollouts = loop.calls.roll_out("rollout", state.current, items)
        with _stage(loop, record, "reflect"):
            raw_patches = loop.optimizer.reflect(replace(view, rollouts=graded(rollouts)))
        record.rollouts = [*record.rollouts, *rollouts]
        record.raw_patches = [*record.raw_patches, *raw_patches]
    state = improve(loop, state, replace(view, rollouts=graded(record.rollouts)), record)
    return remember(loop, state, record), record


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
        most = set_budget(loop, state, view, record, merged)
        few = len(merged.edits) <= most
        record.selected = merged if few else loop.optimizer.select(view, merged, most) if most else Patch()
    if not record.selected.edits:
        record.action = "skip_no_budget"
        return state
    selected, writer = record.selected, loop.writer
    with _stage(loop, record, "update"):
        mode = MODES[loop.config.update_mode]
        record.candidate, record.report = updated_document(
            view.document, selected, mode, lambda: None if writer is None else writer.rewrite(view, selected)
        )
    if record.candidate is None:
        record.action = "skip_no_rewrite"
        return state
    with _stage(loop, record, "evaluate"):
        return judge(loop, state, record, record.candidate)


def set_budget(loop: Loop, state: OptimizeState, view: StepView, record: StepRecord, merged: Patch) -> int:
    """Most proposals of this step, recorded: by the schedule, by the model, or all there are."""
    config = loop.config
    if config.lr_scheduler == "none" or not MODES[config.update_mode].ranks:
        return len(merged.edits)
    if config.lr_scheduler == "autonomous" and loop.writer is not None:
        record.lr_decision = loop.writer.decide_budget(view, merged)
        record.edit_budget = record.lr_decision.budget
    else:
        record.edit_budget = budget_of(config, state.updates, loop.steps)
    return record.edit_budget


def remember(loop: Loop, state: OptimizeState, record: StepRecord) -> OptimizeState:
    """The state with a note for later steps of the epoch: failures and rejected edits."""
    if not loop.config.step_buffer:
        return state
    rejected = record.selected.edits if record.selected and record.action.startswith("reject") else ()
    scores = None if record.candidate_score is None else (state.current_score, record.candidate_score)
    results = graded(record.rollouts)
    note = describe_step(
        record.step, record.action, len(record.rollouts), results, record.raw_patches, rejected, scores
    )
    return replace(state, memory=state.memory.with_note(note))


def judge(loop: Loop, state: OptimizeState, record: StepRecord | EpochRecord, candidate: str) -> OptimizeState:
    """Put a candidate before the gate; the state behind it. One that reads as the present document does is no candidate."""
    if reads_the_same(state.current, candidate):
        record.action, record.reason = "skip_no_change", "the candidate says what the document says"
        return state
    gate, present = loop.config.gate, state.current_evaluation
    found = loop.selection.evaluate(candidate, against=present)
    decision = decide(gate, present, found)
    record.evaluation, record.reason = found, decision.reason
    record.candidate_score = found.score if found.whole else None
    state, record.action = advance(state, candidate, found, accepted=decision.accepted)
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
    """Compare this epoch's document with the last's: the state with new guidance and lessons, and the record where it was done."""
    memory, before, writer = state.memory, state.memory.epoch_document, loop.writer
    last = epoch == loop.config.epochs
    compares = epoch > 1 and (
        loop.slow_update or (loop.meta_skill and not last)
    )  # in the last one for the guidance alone
    if not compares or before is None or writer is None:
        return replace(state, memory=memory.after_epoch(state.current, None)), None
    record = EpochRecord(epoch, state.step, before, state.current)
    loop.watch.enter(state.step, COMPARISON)
    documents = before, state.current
    items = sample_order(loop.task.train, loop.seed, epoch)[:COMPARED]
    first = loop.calls.roll_out(COMPARISON, before, items)
    second = first if before == state.current else loop.calls.roll_out(COMPARISON, state.current, items)
    record.pairs = [*map(Pair, first, second)]
    if loop.slow_update:
        record.guidance = writer.write_guidance(*documents, record.pairs, record.fallbacks)
        if record.guidance is not None:
            record.candidate = with_guidance(record.after, record.guidance)
    if loop.meta_skill and not last:
        record.meta_skill = writer.write_memory(*documents, memory.meta_skill, record.pairs, record.fallbacks)
    if record.candidate is not None:
        state = judge(loop, state, record, record.candidate)
    state = replace(state, memory=memory.after_epoch(state.current, record.meta_skill))
    loop.watch.epoch(record, state)
    return state, record


@contextmanager
def _stage(loop: Loop, record: StepRecord, name: str) -> Iterator[None]:
    loop.watch.enter(record.step, name)
    began = time.perf_counter()
    yield
    record.seconds[name] = record.seconds.get(name, 0.0) + time.perf_counter() - began
