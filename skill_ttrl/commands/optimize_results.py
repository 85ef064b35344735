"""The outcome of an optimization: scores with intervals, decisions, and work by stage.

The outcome is the same for a run that was stopped and continued as for one that never was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.calls import IDENTITY, NAMES, Calls, Counts
from skill_ttrl.optimize.record import Optimized
from skill_ttrl.optimize.types import RolloutResult, skill_hash
from skill_ttrl.runs.summary import read_outcome
from skill_ttrl.statistics import PAIRED_TEST, mean_interval, paired_difference, verdict
from skill_ttrl.storage.jsonl import parsed

SCHEMA_VERSION = 1
ROLLOUTS = ("rollout", "selection", "comparison", "test")
"""Stages whose work are rollouts, in the order in which they are shown; the work of others are calls."""


@dataclass(frozen=True, slots=True)
class Score:
    """Mean success of a document on items, with its interval (Wilson)."""

    hard: float
    low: float
    high: float
    soft: float
    """Mean partial credit."""
    items: int


@dataclass(frozen=True, slots=True)
class OptimizeSummary:
    """The outcome of an optimization."""

    name: str
    seed: int
    policy: str
    environment: str
    engine: str
    optimizer: str
    items: dict[str, int]
    """Items by role."""
    steps: int
    actions: dict[str, int]
    """Steps by what became of them: accept_new_best, accept, reject, …"""
    best_step: int
    """0: the first document is the best."""
    best_hash: str
    """Of the best document, as `history.json` has it."""
    best_tokens: int
    """A token is taken for 4 bytes."""
    selection_first: Score
    selection_best: float
    """Under the gate's metric. The document was chosen by it, so it is optimistic."""
    test_first: Score | None = None
    """None: nothing was tested."""
    test_best: Score | None = None
    test_change: tuple[float, float, float] | None = None
    """Best - first, paired over items: difference and interval."""
    fallbacks: dict[str, int] = field(default_factory=dict)
    """Answers that could not be used, by stage; a rule stood in, or nothing did."""
    work: dict[str, Counts] = field(default_factory=dict)
    """By stage, in all processes of a run together."""
    confidence: float = 0.95
    usage: dict[str, Any] = field(default_factory=dict)
    """Spending on models behind addresses (`Ledger.report`)."""
    schema_version: int = SCHEMA_VERSION


def summarize(found: Optimized, options: OptimizeConfig, calls: Calls, **about: Any) -> OptimizeSummary:
    """The summary of a finished optimization; `about` holds its name, seed, policy, environment, items and usage."""
    rows, state = found.rows, found.state
    both = zip(found.test_first or (), found.test_best or (), strict=True)
    pairs = [pair for pair in both if not (pair[0].ungraded or pair[1].ungraded)]
    first, best = [one for one, _ in pairs], [other for _, other in pairs]
    fallbacks = sum((Counter(row["fallbacks"]) for row in (*rows, *found.ends)), Counter[str]())
    return OptimizeSummary(
        **about,
        engine=options.engine,
        optimizer=options.optimizer,
        steps=len(rows),
        actions=dict(sorted(Counter(str(row["action"]) for row in rows).items())),
        best_step=state.best_step,
        best_hash=skill_hash(state.best),
        best_tokens=-(-len(state.best.encode()) // 4),
        selection_first=score_of(found.first_evaluation.results),
        selection_best=state.best_score,
        test_first=score_of(first) if pairs else None,
        test_best=score_of(best) if pairs else None,
        test_change=paired_difference([one.hard for one in first], [one.hard for one in best]) if pairs else None,
        fallbacks=dict(sorted(fallbacks.items())),
        work=dict(sorted(calls.counts.items())),
    )


def score_of(results: Sequence[RolloutResult]) -> Score:
    """The score of results, with its interval."""
    hard = [float(each.hard) for each in results]
    low, high = mean_interval(hard)
    return Score(sum(hard) / len(hard), low, high, sum(each.soft for each in results) / len(hard), len(hard))


def read_summary(folder: Path) -> OptimizeSummary | None:
    """The summary in a run's folder; None while it has not ended. Raises as `read_outcome`."""
    return read_outcome(folder, OptimizeSummary) if (folder / "summary.json").exists() else None


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The steps of an optimization so far.

    Raises:
        DataError: they cannot be read.
    """
    file = folder / "history.json"
    return parsed(str(file), file.read_bytes(), list[dict[str, Any]]) if file.is_file() else []


def summary_lines(found: OptimizeSummary) -> list[str]:
    """Lines under the table of scores: decisions, work and spending, in sentences."""
    from skill_ttrl.llm.openai.ledger import usage_lines

    actions = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in found.actions.items())
    lines = [
        f"{found.steps} steps: {actions}. Best document: step {found.best_step}, about {found.best_tokens:,} tokens."
    ]
    if found.test_change is not None and found.test_best is not None:
        change, low, high = found.test_change
        lines.append(
            f"Test, best − first: {change:+.3f} [{low:+.3f}, {high:+.3f}], paired over {found.test_best.items} items: "
            f"{verdict((low, high))} ({PAIRED_TEST})."
        )
    played = [f"{NAMES.get(stage, stage)} {_times(found.work[stage])}" for stage in ROLLOUTS if stage in found.work]
    lines += [f"Rollouts: {', '.join(played)}."] if played else []
    if asked := {stage: each for stage, each in found.work.items() if stage not in ROLLOUTS}:
        counts = ", ".join(f"{stage} {_times(each)}" for stage, each in asked.items())
        read, written = (
            sum(getattr(each, f"{kind}_tokens") for each in asked.values()) for kind in ("prompt", "completion")
        )
        lines.append(f"Calls of the optimizer's model: {counts}; {read:,} tokens in, {written:,} out.")
    if found.fallbacks:
        lines.append(f"Unusable answers: {', '.join(f'{stage} {count}' for stage, count in found.fallbacks.items())}.")
    return [*lines, *(f"{text[0].upper()}{text[1:]}." for text in usage_lines(found.usage))]


def _times(each: Counts) -> str:
    counts = {"more reused": each.reused, "without an answer": each.failed, "ungraded": each.ungraded}
    notes = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return f"{each.done:,}" + (f" ({notes})" if notes else "")


SUMMARY = "summary.json"


def is_optimization(path: str | Path) -> bool:
    """True if a folder is that of an optimization."""
    return Path(path).joinpath(IDENTITY).is_file()
