"""`--dry-run` of an optimisation: rollouts, calls and tokens, step by step and in all, before anything is sent.

A number that depends on what happens is a span: at least, at most. With an assumed share of successes it is one number; then no candidate
passes, every evaluation is whole, no result is reused, and every answer is a patch of `edit_budget` edits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.schedule import edit_budget_at

Kind = Literal["rollouts", "calls"]
LOOP, LLM = "skillopt", "openai"
"""The engine and the optimizer whose work is known beforehand."""


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
    """Rollouts and calls of an optimisation."""

    steps: tuple[StepPlan, ...]
    before: Span
    """Rollouts of the first document on the selection items."""
    after: Span
    """Rollouts of the test."""

    def rollouts(self) -> dict[str, Span]:
        """In all, by what they are for."""
        found = _sums(step.rollouts for step in self.steps)
        found["selection"] = found.get("selection", NONE) + self.before
        return {**found, **({"test": self.after} if self.after.most else {})}

    def calls(self) -> dict[str, Span]:
        """In all, by stage."""
        return _sums(step.calls for step in self.steps)

    def all_calls(self) -> Span:
        """In all."""
        return sum((step.all_calls for step in self.steps), NONE)


def count(config: OptimizeConfig, sizes: Sizes, success: float | None = None, *, reuses: bool = False) -> Counted:
    """The rollouts and calls of an optimisation by `LOOP` and `LLM`.

    Args:
        config: sizes of batches and merges, the schedule, the gate.
        sizes: items by role.
        success: share of the rollouts of each step that succeed; None: any.
        reuses: an unchanged document is not rolled out on an item again.
    """
    batches = [min(config.batch_size, sizes.train - start) for start in range(0, sizes.train, config.batch_size)]
    total, updates = len(batches) * config.epochs, 0
    steps: list[StepPlan] = []
    for epoch in range(1, config.epochs + 1):
        for size in batches:
            known = success is not None
            if success is not None:
                ways = [_expected(config, size - round(success * size), size, updates + 1, total)]
            else:
                ways = _possible(config, size)
            updates += bool(ways[0])
            evaluated = sizes.selection if any(ways) else 0
            rollouts = {
                "rollout": Span(0 if reuses and epoch > 1 and not known else size, size),
                "selection": Span(evaluated if known else 0, evaluated),
            }
            calls = {stage: _span(way[stage] for way in ways) for stage in sorted(set[str]().union(*ways))}
            whole = _span(sum(way.values()) for way in ways)
            steps.append(StepPlan(len(steps) + 1, epoch, rollouts, calls, whole))
    tested = sizes.test if config.test else 0
    return Counted(tuple(steps), exactly(sizes.selection), Span(tested, tested if success is not None else 2 * tested))


def _expected(config: OptimizeConfig, failures: int, size: int, update: int, total: int) -> Counter[str]:
    """Calls of a step with so many failures, where every answer is a patch of `edit_budget` edits."""
    error, success = _analysts(config, failures, size)
    found = Counter({"analyst_error": error, "analyst_success": success}) + _merges(config, error, success)
    budget = edit_budget_at(
        update, mode=config.lr_scheduler, max_lr=config.edit_budget, min_lr=config.min_edit_budget, total_steps=total
    )
    if error + success and budget < config.edit_budget:
        found["ranking"] += 1
    return +found


@lru_cache
def _possible_of(size: int, text: str) -> tuple[Counter[str], ...]:
    config = OptimizeConfig.model_validate_json(text)
    found: dict[tuple[tuple[str, int], ...], Counter[str]] = {}
    for failures in range(size + 1):
        error, success = _analysts(config, failures, size)
        for patches in ((one, other) for one in range(error + 1) for other in range(success + 1)):
            way = Counter({"analyst_error": error, "analyst_success": success}) + _merges(config, *patches)
            for ranked in (0, 1) if sum(patches) else (0,):
                each = +(way + Counter({"ranking": ranked}))
                found[tuple(sorted(each.items()))] = each
    return tuple(found.values())


def _possible(config: OptimizeConfig, size: int) -> list[Counter[str]]:
    """Calls of a step, for any number of failures and of answers that can be used."""
    return list(_possible_of(size, config.model_dump_json()))


def _analysts(config: OptimizeConfig, failures: int, size: int) -> tuple[int, int]:
    """Analysts of failures, and of successes."""
    successes = 0 if config.failure_only else size - failures
    return math.ceil(failures / config.minibatch_size), math.ceil(successes / config.minibatch_size)


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
