"""What became of episodes: success overall and by type of task, with intervals; and the score, where rewards are partial.

Success is what the environment calls so (`samples.judged`). An environment in which an episode can be partly right says beside
how far it came: `score` in its `info`, from 0 to 1 of a perfect one (WebShop). Then the mean score is reported too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from skill_ttrl.intervals import mean_interval
from skill_ttrl.rollout.samples import exploits_of, judged, scored
from skill_ttrl.types import Trajectory

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is counted of one episode."""

    task: str
    """Id of what was played."""
    task_type: str
    success: bool | None
    """Whether the environment says that it succeeded (`samples.judged`); None where it could not tell."""
    steps: int
    error: str | None
    """What went wrong where it failed; such an episode counts as no success."""
    source: str
    """See `Trajectory.source`."""
    score: float | None = None
    """How near it came to a perfect one, in [0, 1]; None where the environment does not say, or the episode failed."""
    exploits: int = 0
    """How often the agent tried a way around the task, as far as the environment counts that."""
    invalid: int | None = None
    """Steps in which what a model wrote was no valid action (`Step.verdict`); None where that is not judged."""
    unanswered: bool = False
    """True if it failed because the model gave no answer."""


@dataclass(frozen=True, slots=True)
class SuccessStats:
    """Episodes that were counted together."""

    tasks: int
    """Different tasks."""
    episodes: int
    success: float | None
    """Share of the episodes, in [0, 1]; None where one of them could not be judged."""
    interval: Interval | None
    """Of the mean over tasks (`runs.statistics.mean_interval`: Wilson's for one episode a task), at the level that was asked for."""
    steps: float | None
    """Mean steps of an episode that did not fail; None where all did."""
    failed: int
    """Episodes in which the environment or the agent failed: no success."""
    score: float | None = None
    """Mean score, in [0, 1], failed episodes counted as 0; None where the environment gives none, or not of every episode."""
    score_interval: Interval | None = None
    exploits: int = 0
    """Episodes in which the agent tried a way around the task."""
    invalid: float | None = None
    """Share of the steps in which what a model wrote was no valid action, in [0, 1]; None where that is not judged."""


def outcome_of(trajectory: Trajectory) -> Outcome:
    """What is counted of an episode."""
    return Outcome(
        trajectory.task.id,
        trajectory.task.task_type,
        judged(trajectory),
        len(trajectory.steps),
        trajectory.error,
        trajectory.source,
        scored(trajectory) if trajectory.error is None else None,
        exploits_of(trajectory) or 0,
        _invalid(trajectory),
        trajectory.stop_reason == "no_answer",
    )


def _invalid(trajectory: Trajectory) -> int | None:
    judged_steps = [step.verdict for step in trajectory.steps if step.verdict is not None]
    return judged_steps.count("invalid") if judged_steps else None


def count_success(outcomes: Sequence[Outcome], *, confidence: float = 0.95) -> SuccessStats:
    """Success of episodes together, and their score where all have one.

    Args:
        outcomes: at least one.
        confidence: level of the interval, in (0, 1).
    """
    by_task: dict[str, list[bool]] = {}
    scores: dict[str, list[float]] = {}
    for outcome in outcomes:
        by_task.setdefault(outcome.task, []).append(bool(outcome.success))
        scores.setdefault(outcome.task, []).append(outcome.score or 0.0)
    whole = [outcome for outcome in outcomes if outcome.error is None]
    known = all(outcome.success is not None for outcome in outcomes)
    read = [outcome for outcome in outcomes if outcome.invalid is not None]
    partial = bool(whole) and all(outcome.score is not None for outcome in whole)
    return SuccessStats(
        tasks=len(by_task),
        episodes=len(outcomes),
        success=sum(bool(outcome.success) for outcome in outcomes) / len(outcomes) if known else None,
        interval=interval_of_tries(list(by_task.values()), confidence=confidence) if known else None,
        steps=sum(outcome.steps for outcome in whole) / len(whole) if whole else None,
        failed=len(outcomes) - len(whole),
        score=sum(outcome.score or 0.0 for outcome in outcomes) / len(outcomes) if partial else None,
        score_interval=interval_of_tries(list(scores.values()), confidence=confidence) if partial else None,
        exploits=sum(outcome.exploits > 0 for outcome in outcomes),
        invalid=sum(each.invalid or 0 for each in read) / sum(each.steps for each in read) if read else None,
    )


def count_by_type(outcomes: Iterable[Outcome], *, confidence: float = 0.95) -> dict[str, SuccessStats]:
    """Success of each type of task, by name; empty where there is only one."""
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.task_type, []).append(outcome)
    if len(found) < 2:
        return {}
    return {kind: count_success(found[kind], confidence=confidence) for kind in sorted(found)}


def interval_of_tries(tries: Sequence[Sequence[float]], *, confidence: float) -> Interval:
    """Interval of the mean over tasks, each of which is the mean of its tries: tries at one task are not independent.

    Args:
        tries: for each task what each try at it was worth, in [0, 1]; at least one.
        confidence: in (0, 1).
    """
    return mean_interval([sum(each) / len(each) for each in tries], confidence=confidence)


def running_success(counts: Mapping[str, tuple[int, int]], score: float | None = None) -> dict[str, float]:
    """Success so far, overall ("success") and by type, from (successes, episodes) of each type, and the mean score."""
    episodes = sum(count for _, count in counts.values())
    figures = {"success": sum(won for won, _ in counts.values()) / max(1, episodes)}
    if score is not None:
        figures["score"] = score
    if len(counts) > 1:
        figures |= {kind or "other": won / count for kind, (won, count) in sorted(counts.items())}
    return figures
