"""How episodes ended: success, score and ways around the task, counted together, by type of task, and as they come.

Success is what the environment reports (`Trajectory.success`). An environment in which an episode can be partly right also says how
far it came: `score` in its `info`, from 0 to 1 of a perfect one (WebShop). Then the mean score is reported too.

A line of `samples.jsonl` is one `TaskSamples`: a problem and its rollouts under one way of sampling. Every result of an evaluation or a
vote is a pure function of these lines. They hold no single tokens; those of a run are in its `trajectories.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from skill_ttrl.llm.backend import Sampling
from skill_ttrl.statistics import Interval, mean_interval
from skill_ttrl.types import Completion, Group, Task, ToolCall, Trajectory, equal_rewards, where_any
from skill_ttrl.voting.strategies import mean_if_known


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """One episode as it is counted."""

    task: str
    """Id of what was played."""
    task_type: str
    success: bool | None
    """`Trajectory.success`."""
    steps: int
    error: str | None
    """Reason of the failure; such an episode counts as no success."""
    source: str
    """Where the task is from (`Trajectory.source`)."""
    score: float | None = None
    """`Trajectory.score`; None also where the episode failed."""
    exploits: int = 0
    """`Trajectory.exploits`; 0 where the environment does not count them."""
    invalid: int | None = None
    """Steps in which what a model wrote was no valid action (`Step.action_status`); None where that is not known."""
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
    """Of the mean over tasks (`statistics.mean_interval`: Wilson's for one episode a task), at 95 %."""
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
    """Share of the steps in which what a model wrote was no valid action, in [0, 1]; None where that is not known."""


def episode_result(trajectory: Trajectory) -> EpisodeResult:
    """Count one episode."""
    verdicts = [step.action_status for step in trajectory.steps if step.action_status is not None]
    return EpisodeResult(
        trajectory.task.id,
        trajectory.task.task_type,
        trajectory.success,
        len(trajectory.steps),
        trajectory.error,
        trajectory.source,
        trajectory.score if trajectory.error is None else None,
        trajectory.exploits or 0,
        verdicts.count("invalid") if verdicts else None,
        trajectory.stop_reason == "no_answer",
    )


def count_success(results: Sequence[EpisodeResult]) -> SuccessStats:
    """Success of at least one episode together, and the score where all have one."""
    by_task: dict[str, list[bool]] = {}
    scores: dict[str, list[float]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(bool(result.success))
        scores.setdefault(result.task, []).append(result.score or 0.0)
    whole = [result for result in results if result.error is None]
    read = [result for result in results if result.invalid is not None]
    success = mean_if_known([result.success for result in results])
    # An episode that failed scores nothing.
    score = mean_if_known([result.score if result.error is None else 0.0 for result in results]) if whole else None
    return SuccessStats(
        tasks=len(by_task),
        episodes=len(results),
        success=success,
        interval=None if success is None else interval_of_rollouts([*by_task.values()]),
        steps=sum(result.steps for result in whole) / len(whole) if whole else None,
        failed=len(results) - len(whole),
        score=score,
        score_interval=None if score is None else interval_of_rollouts([*scores.values()]),
        exploits=sum(result.exploits > 0 for result in results),
        invalid=sum(each.invalid or 0 for each in read) / sum(each.steps for each in read) if read else None,
    )


def count_by_type(results: Iterable[EpisodeResult]) -> dict[str, SuccessStats]:
    """Success of each type of task, by name; empty where there is only one."""
    found: dict[str, list[EpisodeResult]] = {}
    for result in results:
        found.setdefault(result.task_type, []).append(result)
    if len(found) < 2:
        return {}
    return {kind: count_success(found[kind]) for kind in sorted(found)}


def interval_of_rollouts(rollouts: Sequence[Sequence[float]]) -> Interval:
    """Interval of the mean over tasks, each of which is the mean of its rollouts: those of one task are not independent.

    `rollouts` has for each task the value of each of its rollouts, in [0, 1], at least one.
    """
    return mean_interval([sum(each) / len(each) for each in rollouts])


def winning(group: Group) -> list[bool]:
    """True for each rollout that won: it has the best reward of its group, and more than 0.

    A rollout that was rewarded with the environment's own return has not won where the environment says so (`won` in `info`): of
    purchases that are all wrong in part, the best is nothing to learn a skill from. Other rewards never see what it says.
    """
    best = max((trajectory.reward or 0.0 for trajectory in group.trajectories), default=0.0)
    return [
        best > 0
        and equal_rewards((each.reward or 0.0, best))
        and not (each.reward == each.env_return and each.won is False)
        for each in group.trajectories
    ]


SAMPLE, GREEDY = "sample", "greedy"
"""Names of two ways of sampling: at the temperature of the figures, and the likeliest words only."""


@dataclass(frozen=True, slots=True)
class SamplingPass:
    """One way of sampling every problem."""

    name: str
    rollouts_per_task: int
    """Samples of each problem."""
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout of a problem."""

    text: str
    """All that the model wrote, turn by turn."""
    answer: str | None
    """The final answer as the environment took it; None when none was given."""
    logprob: float | None = None
    """Log-probability (nats) of all sampled tokens together, at the sampling temperature; None where it is not known."""
    tokens: int | None = None
    """Sampled tokens; None where they are not known."""
    truncated: bool = False
    """True if a completion reached the token limit."""
    is_correct: bool | None = None
    """True if its answer is the task's true one, as graded when `samples.jsonl` was written; without a true answer, success as the
    environment reports it (`Trajectory.success`). None: neither is known."""
    error: str | None = None
    """Error of a failed rollout."""
    skills: Mapping[str, int] | None = None
    """Counts of its skill operations and of what it retrieved from the bank; None without a bank."""
    score: float | None = None
    """Score in [0, 1], 1 for a perfect rollout (`Trajectory.score`); None where the environment gives none, or the rollout failed."""
    exploits: int | None = None
    """Attempts to get around the task (`Trajectory.exploits`); None where the environment does not count them."""
    calls: Annotated[tuple[ToolCall, ...], where_any()] = ()
    """Tools that were called, with their results, in order."""


@dataclass(frozen=True, slots=True)
class TaskSamples:
    """The rollouts of one problem under one way of sampling."""

    source: str
    """The file or data set that the problem is from, as it was asked for; empty for the subject's own problems."""
    draw: str
    """Way of sampling: "sample", "greedy", "sample at 0.3"."""
    task: Task
    samples: tuple[Sample, ...]

    @property
    def answers(self) -> tuple[str | None, ...]:
        """Answers in the order of the rollouts."""
        return tuple(sample.answer for sample in self.samples)


def drawn(group: Group, *, source: str = "", draw: str = SAMPLE) -> TaskSamples:
    """Reduce a group of rollouts to its samples."""
    return TaskSamples(source, draw, group.task, tuple(sample_of(trajectory) for trajectory in group.trajectories))


def sample_of(trajectory: Trajectory) -> Sample:
    """Reduce one rollout to a sample."""
    done = [step.completion for step in trajectory.steps if step.completion is not None]
    known = bool(done) and all(completion.num_sampled_tokens or not completion.text for completion in done)
    return Sample(
        text=trajectory.text,
        answer=trajectory.answer,
        logprob=sum(_logprob(completion) for completion in done) if known else None,
        tokens=sum(completion.num_sampled_tokens for completion in done) if known else None,
        truncated=any(completion.finish_reason == "length" for completion in done),
        is_correct=trajectory.success if trajectory.task.ground_truth is None else None,
        error=trajectory.error,
        skills=_skill_counts(trajectory, done),
        score=trajectory.score if trajectory.error is None else None,
        exploits=trajectory.exploits,
        calls=tuple(call for step in trajectory.steps for call in step.calls),
    )


def _logprob(completion: Completion) -> float:
    sampled = completion.completion_mask or (True,) * len(completion.logprobs)
    return sum(value for value, own in zip(completion.logprobs, sampled, strict=True) if own)


def _skill_counts(trajectory: Trajectory, done: list[Completion]) -> dict[str, int] | None:
    ops = trajectory.ops
    if ops is None:
        return None
    return {
        "retrieve_rate": int(ops.has_retrieve),
        "generate_rate": int(ops.has_generate),
        "evolve_rate": int(ops.has_evolve),
        "retrieval_hit_rate": int(bool(trajectory.retrieved)),
        "skill_op_parse_errors": len(ops.errors),
        "retrieved_tokens": sum(completion.num_inserted_tokens for completion in done),
    }
