"""One step of SkillOpt: rollout, reflect, aggregate, select, edit, gate; and what is remembered of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import Calls, Item
from skill_ttrl.optimize.documents import MODES, add_notes, notes_of, reads_the_same, set_notes, updated_document
from skill_ttrl.optimize.epoch import EpochRecord, Features, Watch
from skill_ttrl.optimize.gating.selection import Evaluation, Selection, cannot_pass, decide
from skill_ttrl.optimize.lessons import StepNote, describe_rejected, failure_patterns
from skill_ttrl.optimize.optimizer import Optimizer, StepView
from skill_ttrl.optimize.record import OptimizeState, OptimizeTask, StepRecord
from skill_ttrl.optimize.reflection.writer import LLMWriter
from skill_ttrl.optimize.schedule import edit_budget_at
from skill_ttrl.optimize.scores import graded
from skill_ttrl.optimize.types import Patch

BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class Loop:
    """The parts that all steps of an optimization share."""

    task: OptimizeTask
    config: OptimizeConfig
    calls: Calls
    optimizer: Optimizer
    selection: Selection
    seed: int
    watch: Watch
    features: Features
    writer: LLMWriter | None = None
    """Asks for what goes beyond an optimizer's three stages; None where the optimizer asks no language model."""

    @property
    def step_size(self) -> int:
        """Training items of a step."""
        return self.config.batch_size * self.config.accumulation

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the last one perhaps with fewer items."""
        return math.ceil(len(self.task.train) / self.step_size)


def optimize_step(
    loop: Loop, state: OptimizeState, batch: Sequence[Item], epoch: int, place: int
) -> tuple[OptimizeState, StepRecord]:
    """One step: from training items to the state behind it, and the record of what was made."""
    state = replace(state, step=state.step + 1)
    record = StepRecord(state.step, epoch, place, state.current)
    view = view_of(loop, state, epoch)
    record.fallbacks = view.fallbacks
    for start in range(0, len(batch), loop.config.batch_size):
        with _stage(loop, record, "rollout"):
            items = batch[start : start + loop.config.batch_size]
            rollouts = loop.calls.roll_out("rollout", state.current, items)
        with _stage(loop, record, "reflect"):
            raw_patches = loop.optimizer.reflect(replace(view, rollouts=graded(rollouts)))
        record.rollouts = [*record.rollouts, *rollouts]
        record.raw_patches = [*record.raw_patches, *raw_patches]
    view = replace(view, rollouts=graded(record.rollouts))
    state = improve(loop, state, view, record)
    return remember(loop, state, record), record


def improve(loop: Loop, state: OptimizeState, view: StepView, record: StepRecord) -> OptimizeState:
    """Aggregate, select, edit and gate what the analysts proposed; the state behind the decision."""
    if not record.raw_patches:
        record.reason = "no analyst gave a patch"
        return state
    with _stage(loop, record, "aggregate"):
        record.merged = loop.optimizer.merge(view, record.raw_patches)
    if not record.merged.edits:
        proposed = sum(len(raw.patch.edits) for raw in record.raw_patches)
        record.reason = (
            f"of {proposed} proposed edits none was left after merging" if proposed else "no patch has an edit"
        )
        return state
    state = replace(state, updates=state.updates + 1)
    with _stage(loop, record, "select"):
        most = set_budget(loop, state, view, record)
        few = len(record.merged.edits) <= most
        record.selected = (
            record.merged if few else loop.optimizer.select(view, record.merged, most) if most else Patch()
        )
    if not record.selected.edits:
        record.action = "skip_no_budget"
        return state
    with _stage(loop, record, "update"):
        record.candidate, record.report = update(loop, view, record.selected)
    if record.candidate is None:
        record.action = "skip_no_rewrite"
        return state
    with _stage(loop, record, "evaluate"):
        return judge(loop, state, record, record.candidate)


def view_of(loop: Loop, state: OptimizeState, epoch: int) -> StepView:
    """The facts that the optimizer may use in this step; its rollouts are still to come."""
    most, seed = loop.config.edit_budget, loop.seed + state.step
    context = length_bound(state.current, loop.config) | state.memory.context()
    return StepView(state.step, epoch, state.current, (), most, seed, context)


def length_bound(document: str, config: OptimizeConfig) -> dict[str, str]:
    """A prompt's section on how long the document may become; none without a bound."""
    if config.max_document_tokens is None:
        return {}
    text = (
        f"The document has about {tokens_of(document)} tokens. With more than {config.max_document_tokens} it is rejected "
        "unread: where there is no room, shorten or replace what is there."
    )
    return {"Length": text}


def set_budget(loop: Loop, state: OptimizeState, view: StepView, record: StepRecord) -> int:
    """Most proposals of this step, put on record: by the schedule, by the model, or all there are."""
    config, merged = loop.config, record.merged or Patch()
    if config.lr_control_mode == "none" or not MODES[config.update_mode].ranks:
        return len(merged.edits)
    if config.lr_control_mode == "autonomous" and loop.writer is not None:
        record.lr_decision = loop.writer.decide_budget(view, merged)
        record.edit_budget = record.lr_decision.budget
    else:
        record.edit_budget = edit_budget(loop, state.updates)
    return record.edit_budget


def edit_budget(loop: Loop, update: int) -> int:
    """Most edits of the `update`-th patch (from 1)."""
    config = loop.config
    return edit_budget_at(
        update,
        mode=config.lr_scheduler,
        max_lr=config.edit_budget,
        min_lr=config.min_edit_budget,
        total_steps=loop.steps_per_epoch * config.epochs,
    )


def update(loop: Loop, view: StepView, selected: Patch) -> tuple[str | None, list[dict[str, Any]]]:
    """The document with the selected proposals carried out, and the status of each; None where none could be written."""

    def rewrite() -> str | None:
        return None if loop.writer is None else loop.writer.rewrite(view, selected)

    return updated_document(view.document, selected, MODES[loop.config.update_mode], rewrite)


def remember(loop: Loop, state: OptimizeState, record: StepRecord) -> OptimizeState:
    """The state with notes for later steps: on lapses in the document, failures and rejected edits in the memory."""
    if loop.config.skill_aware.enabled:
        state = add_lapses(loop, state, record)
    if not loop.config.step_buffer:
        return state
    rejected = (
        describe_rejected(record.selected.edits) if record.selected and record.action.startswith("reject") else ()
    )
    score = record.candidate_score
    note = StepNote(
        record.step,
        record.action,
        len(record.rollouts),
        sum(not result.hard for result in graded(record.rollouts)),
        failure_patterns(graded(record.rollouts), record.raw_patches),
        rejected,
        None if score is None else (state.current_score, score),
    )
    return replace(state, memory=state.memory.with_note(note))


def add_lapses(loop: Loop, state: OptimizeState, record: StepRecord) -> OptimizeState:
    """The state with the analysts' notes in the appendix of the present document, whatever the gate said of the candidate."""
    notes = [note for raw in record.raw_patches for note in raw.appendix_notes]
    document, most = add_notes(state.current, notes), loop.config.skill_aware.consolidate_threshold
    present = notes_of(document)
    record.lapse_notes, record.added_notes = len(notes), len(present) - len(notes_of(state.current))
    if 0 < most < len(present) and document != state.current and loop.writer is not None:
        document = set_notes(document, loop.writer.consolidate(present, record.fallbacks) or present)
    if too_long(document, loop.config) is not None:
        record.fallbacks["appendix_too_long"] += 1
        return state
    return replace(state, current=document)


def judge(loop: Loop, state: OptimizeState, record: StepRecord | EpochRecord, candidate: str) -> OptimizeState:
    """Put a candidate before the gate; the state behind it. One that reads as the present document does is no candidate."""
    if reads_the_same(state.current, candidate):
        record.action, record.reason = "skip_no_change", "the candidate says what the document says"
        return state
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


def tokens_of(document: str) -> int:
    """About how many tokens a document has: one for every 4 bytes."""
    return math.ceil(len(document.encode()) / BYTES_PER_TOKEN)


def too_long(document: str, config: OptimizeConfig) -> str | None:
    """A sentence that says by how much a document exceeds its token budget; None where it fits."""
    tokens, most = tokens_of(document), config.max_document_tokens
    return None if most is None or tokens <= most else f"about {tokens} tokens, optimize.max_document_tokens is {most}"


@contextmanager
def _stage(loop: Loop, record: StepRecord, name: str) -> Iterator[None]:
    loop.watch.enter(record.step, name)
    began = time.perf_counter()
    yield
    record.seconds[name] = record.seconds.get(name, 0.0) + time.perf_counter() - began
