"""Stored samples for voting and evaluation: the answer, the text and the log-probability of each rollout.

A line of `samples.jsonl` is one `TaskSamples`: a problem and its rollouts under one way of sampling. Every result
of an evaluation or a vote is a pure function of these lines. They hold no single tokens; those of a run are in its
`trajectories.jsonl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skill_ttrl.llm.backend import Sampling
from skill_ttrl.rollout.outcome import env_score, env_success, exploit_count
from skill_ttrl.types import Completion, Group, Task, Trajectory

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
    environment reports it (`env_success`). None: neither is known."""
    error: str | None = None
    """Error of a failed rollout."""
    skills: Mapping[str, int] | None = None
    """Counts of its skill operations and of what it retrieved from the bank; None without a bank."""
    score: float | None = None
    """Score in [0, 1], 1 for a perfect rollout (`env_score`); None where the environment gives none, or the rollout failed."""
    exploits: int | None = None
    """Attempts to get around the task (`exploit_count`); None where the environment does not count them."""


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
        is_correct=env_success(trajectory) if trajectory.task.ground_truth is None else None,
        error=trajectory.error,
        skills=_skill_counts(trajectory, done),
        score=env_score(trajectory) if trajectory.error is None else None,
        exploits=exploit_count(trajectory),
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
