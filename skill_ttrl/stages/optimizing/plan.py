"""`--dry-run` of an optimization: rollouts, calls and tokens, step by step and in all, before anything is sent.

A number that depends on what happens is a span: at least, at most. With an assumed share of successes it is one number; then no candidate
passes, every evaluation is whole, no result is reused, and every answer is a patch of `edit_budget` edits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.epoch import Features
from skill_ttrl.optimize.schedule import edit_budget_at

Kind = Literal["rollouts", "calls"]
MANY = 8
"""Patches of one kind up to which every number of them is looked at."""
LOOP, LLM = "skillopt", "openai"
"""The engine and the optimizer whose work is known beforehand."""
GEPA, REFLECT = "gepa", "gepa_reflect"
"""Another engine, of which bounds are known, and the stage in which it asks for a new document."""
ANALYSTS = ("analyst_error", "analyst_success")
"""Stages of the analysts of failures and of successes."""


@dataclass(frozen=True, slots=True)
class Span:
    """A number of which two bounds are known; they are equal where it is known itself."""

    least: float
    most: float

    def __add__(self, other: Span) -> Span:
        return Span(self.least + other.least, self.most + other.most)

    def times(self, other: Span) -> Span:
        """So many of these, both not negative."""
        return Span(self.least * other.least, self.most * other.most)

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most


NONE = Span(0, 0)


def exactly(value: float) -> Span:
    """A number that is known."""
    return Span(value, value)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Items by role."""

    train: int
    selection: int
    test: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work of one step."""

    step: int
    epoch: int
    rollouts: Mapping[str, Span]
    """By what they are for."""
    calls: Mapping[str, Span]
    """Of the optimizer's model, by stage."""
    all_calls: Span
    """Of all stages: narrower than their sum where one stage's more is another's less."""


@dataclass(frozen=True)
class Counted:
    """Rollouts and calls of an optimization."""

    steps: tuple[StepPlan, ...]
    before: Span
    """Rollouts of the first document on the selection items."""
    after: Span
    """Rollouts of the test."""
    ends: tuple[StepPlan, ...] = ()
    """The work at the ends of epochs."""
    last: Span = NONE
    """Rollouts of the last document on the selection items, where it was changed outside of the gate."""

    def rollouts(self) -> dict[str, Span]:
        """In all, by what they are for."""
        found = _sums(step.rollouts for step in (*self.steps, *self.ends))
        found["selection"] = found.get("selection", NONE) + self.before + self.last
        return {**found, **({"test": self.after} if self.after.most else {})}

    def calls(self) -> dict[str, Span]:
        """In all, by stage."""
        return _sums(step.calls for step in (*self.steps, *self.ends))

    def all_calls(self) -> Span:
        """In all."""
        return sum((step.all_calls for step in (*self.steps, *self.ends)), NONE)


def count(config: OptimizeConfig, sizes: Sizes, success: float | None = None, *, reuses: bool = False) -> Counted:
    """The rollouts and calls of an optimization by `LOOP` and `LLM`.

    Args:
        config: sizes of batches and merges, the schedule, the gate.
        sizes: items by role.
        success: share of the rollouts of each step that succeed; None: any.
        reuses: an unchanged document is not rolled out on an item again.
    """
    batches = step_batches(config, sizes.train)
    total, updates = len(batches) * config.epochs, 0
    steps: list[StepPlan] = []
    for epoch in range(1, config.epochs + 1):
        for parts in batches:
            known, size = success is not None, sum(parts)
            ways = (
                _possible(config, parts) if success is None else [_expected(config, parts, success, updates + 1, total)]
            )
            updates += bool(ways[0])
            evaluated = sizes.selection if any(ways) else 0
            rollouts = {
                "rollout": Span(0 if reuses and epoch > 1 and not known else size, size),
                "selection": Span(evaluated if known else 0, evaluated),
            }
            calls = {stage: _span(way[stage] for way in ways) for stage in sorted(set[str]().union(*ways))}
            whole = _span(sum(way.values()) for way in ways)
            steps.append(StepPlan(len(steps) + 1, epoch, rollouts, calls, whole))
    after = _tested(config, sizes)
    return Counted(
        tuple(steps),
        exactly(sizes.selection),
        after if success is None else exactly(after.least),
        *epoch_ends(config, sizes, len(batches), known=success is not None, reuses=reuses),
    )


def count_gepa(config: OptimizeConfig, sizes: Sizes, *, minibatch: int, iterations: int, reuses: bool) -> Counted:
    """Bounds on the rollouts and calls of the engine gepa: an iteration evaluates a parent and at most one new document on a minibatch."""
    least = 0 if reuses else minibatch
    rollouts = {"rollout": Span(least, 2 * minibatch), "selection": Span(0, sizes.selection)}
    asked = Span(0, 1)
    steps = tuple(StepPlan(step + 1, 1, rollouts, {REFLECT: asked}, asked) for step in range(iterations))
    return Counted(steps, exactly(sizes.selection), _tested(config, sizes))


def count_unknown(config: OptimizeConfig, sizes: Sizes) -> Counted:
    """The rollouts of an engine of which nothing is known but that both documents are evaluated."""
    return Counted((), exactly(sizes.selection), _tested(config, sizes))


def _tested(config: OptimizeConfig, sizes: Sizes) -> Span:
    """Rollouts of the test: once where the first document is the best, else twice."""
    tested = sizes.test if config.test else 0
    return Span(tested, 2 * tested)


def step_batches(config: OptimizeConfig, train: int) -> list[list[int]]:
    """Sizes of the batches of each step of an epoch."""
    found = []
    for start in range(0, train, config.batch_size * config.accumulation):
        end = min(train, start + config.batch_size * config.accumulation)
        found.append([min(config.batch_size, end - place) for place in range(start, end, config.batch_size)])
    return found


def _expected(config: OptimizeConfig, parts: Sequence[int], success: float, update: int, total: int) -> Counter[str]:
    """Calls of a step of which so many rollouts succeed, where every answer is a patch of `edit_budget` edits."""
    error, right, *asked = _added(_analysts(config, size - round(success * size), size) for size in parts)
    found = Counter(dict(zip(ANALYSTS, asked, strict=True))) + _merges(config, error, right)
    if error + right:
        found += _carried_out(config)
        budget = edit_budget_at(
            update,
            mode=config.lr_scheduler,
            max_lr=config.edit_budget,
            min_lr=config.min_edit_budget,
            total_steps=total,
        )
        found["ranking"] += _bounded(config) and config.lr_control_mode == "fixed" and budget < config.edit_budget
    return +found


@lru_cache
def _possible_of(parts: tuple[int, ...], text: str) -> tuple[Counter[str], ...]:
    config = OptimizeConfig.model_validate_json(text)
    found: dict[tuple[tuple[str, int], ...], Counter[str]] = {}
    analysts: set[tuple[int, ...]] = {(0, 0, 0, 0)}
    for size in parts:
        of_part = {_analysts(config, failures, size) for failures in range(size + 1)}
        analysts = {_added(pair) for pair in product(analysts, of_part)}
    shortens = config.skill_aware.enabled and config.skill_aware.consolidate_threshold > 0
    for error, success, *asked in sorted(analysts):
        for patches in product(_some(error), _some(success)):
            way = Counter(dict(zip(ANALYSTS, asked, strict=True))) + _merges(config, *patches)
            most = way + Counter({"appendix_consolidate": int(shortens)})
            if sum(patches):
                most += _carried_out(config) + Counter({"ranking": int(_bounded(config))})
            for each in (+way, +most):  # between the two lies what else there may be
                found[tuple(sorted(each.items()))] = each
    return tuple(found.values())


def _some(most: int) -> list[int]:
    """Numbers of patches up to `most`, among which are those with the fewest and the most merges."""
    return [*range(min(most, MANY) + 1), *([most] if most > MANY else [])]


def _possible(config: OptimizeConfig, parts: Sequence[int]) -> list[Counter[str]]:
    """Calls of a step, for any number of failures and of answers that can be used."""
    return list(_possible_of(tuple(parts), config.model_dump_json()))


def _bounded(config: OptimizeConfig) -> bool:
    """True if a step has an edit budget."""
    return config.lr_control_mode != "none" and config.update_mode != "full_rewrite_minibatch"


def _carried_out(config: OptimizeConfig) -> Counter[str]:
    """Calls of a step that has proposals, besides merges and rankings."""
    autonomous = config.lr_control_mode == "autonomous" and _bounded(config)
    rewrites = config.update_mode == "rewrite_from_suggestions"
    return +Counter({"lr_autonomous": int(autonomous), "rewrite_skill": int(rewrites)})


def epoch_ends(
    config: OptimizeConfig, sizes: Sizes, steps: int, *, known: bool, reuses: bool
) -> tuple[tuple[StepPlan, ...], Span]:
    """The work at the ends of epochs, and the selection rollouts of a last document that was changed outside of the gate.

    Where the success is known no candidate passes: both documents are the same and rolled out once, and no item changes.
    """
    slow = config.slow_update
    features = Features(*(use is None or use for use in (slow.enabled, config.meta_skill)))
    samples = min(slow.samples, sizes.train)
    most = sizes.train if slow.pair_policy == "changed" else samples
    asks = Span(int(slow.pair_policy == "mixed" or (known and slow.pair_policy != "changed")), 1)
    if known:
        asks = exactly(asks.least)
    ends = []
    for epoch in range(2, config.epochs + 1):
        if not features.compares(epoch, config.epochs):
            continue
        calls = {"slow_update": asks} if features.slow_update else {}
        calls |= {"meta_skill": asks} if features.meta_skill and epoch < config.epochs else {}
        compared = exactly(samples) if known else Span(0 if reuses else samples, 2 * most)
        judged = sizes.selection if features.slow_update and slow.gate else 0
        rollouts = {"comparison": compared, "selection": exactly(judged * asks.least) if known else Span(0, judged)}
        ends.append(StepPlan(epoch * steps, epoch, rollouts, calls, sum(calls.values(), NONE)))
    forced = bool(ends) and features.slow_update and not slow.gate
    if known:
        return tuple(ends), exactly(sizes.selection if forced and asks.least else 0)
    return tuple(ends), Span(0, sizes.selection if forced or config.skill_aware.enabled else 0)


def _analysts(config: OptimizeConfig, failures: int, size: int) -> tuple[int, ...]:
    """Minibatches of failures and of successes, then the requests for each."""
    successes = 0 if config.failure_only else size - failures
    minibatches = [math.ceil(count / config.minibatch_size) for count in (failures, successes)]
    return (*minibatches, *(math.ceil(count / config.minibatches_per_request) for count in minibatches))


def _added(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


def _merges(config: OptimizeConfig, failure: int, success: int) -> Counter[str]:
    """Merges of so many patches of failures and of successes that have edits."""
    if config.merge == "joint" and 1 < failure + success <= config.merge_batch_size:
        return Counter({"merge_final": 1})
    found = {
        "merge_failure": _levels(failure, config.merge_batch_size),
        "merge_success": _levels(success, config.merge_batch_size),
    }
    return +Counter({**found, "merge_final": int(bool(failure and success))})


def _levels(patches: int, size: int) -> int:
    """Calls that merge patches level by level until one is left; a group of one needs none."""
    calls = 0
    while patches > 1:
        calls += patches // size + (patches % size > 1)
        patches = math.ceil(patches / size)
    return calls


def _span(values: Iterable[float]) -> Span:
    found = [*values]
    return Span(min(found), max(found))


def _sums(parts: Iterable[Mapping[str, Span]]) -> dict[str, Span]:
    found: dict[str, Span] = {}
    for part in parts:
        for name, span in part.items():
            found[name] = found.get(name, NONE) + span
    return found
