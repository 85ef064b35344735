"""Samples as they are kept to be voted on and measured: each try's answer, its words, and how likely they were.

A line of `samples.jsonl` is one `TaskSamples`: a problem and its rollouts under one way of sampling. Everything that an
evaluation or a vote says is a pure function of such lines. Single tokens are not among them; those of a run are in its
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
    tries: int
    """Samples of each problem."""
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One try at a problem."""

    text: str
    """All that the model wrote, turn by turn."""
    answer: str | None
    """The final answer as the environment took it; None when none was given."""
    logprob: float | None = None
    """Log-probability (nats) of all sampled tokens together, at the sampling temperature; None where it is not known."""
    tokens: int | None = None
    """Sampled tokens; None where they are not known."""
    cut_off: bool = False
    """Whether it reached the longest length that was allowed."""
    right: bool | None = None
    """Success as the environment states it (`env_success`); None where the task has a true answer, which then decides, or nothing was
    said."""
    error: str | None = None
    """What went wrong where the try failed."""
    view: int = 0
    """Which wording of the problem it answered: 0 as given, 1 a paraphrase."""
    skills: Mapping[str, int] | None = None
    """Counts of what it asked of the skill bank and was told; None where there was no bank to ask."""
    score: float | None = None
    """How near it came to a perfect one, in [0, 1] (`env_score`); None where the environment does not say, or it failed."""
    exploits: int | None = None
    """How often it tried a way around the task (`exploit_count`); None where the environment does not count that."""


@dataclass(frozen=True, slots=True)
class TaskSamples:
    """The tries at one problem under one way of sampling."""

    source: str
    """The file or data set that the problem is from, as it was asked for; empty for the subject's own problems."""
    draw: str
    """Way of sampling: "sample", "greedy", "sample at 0.3"."""
    task: Task
    samples: tuple[Sample, ...]

    @property
    def answers(self) -> tuple[str | None, ...]:
        """Answers in the order of the tries."""
        return tuple(sample.answer for sample in self.samples)


def drawn(group: Group, *, source: str = "", draw: str = SAMPLE) -> TaskSamples:
    """What is kept of a group of tries."""
    return TaskSamples(source, draw, group.task, tuple(sample_of(trajectory) for trajectory in group.trajectories))


def sample_of(trajectory: Trajectory) -> Sample:
    """What is kept of one try."""
    done = [step.completion for step in trajectory.steps if step.completion is not None]
    known = bool(done) and all(completion.sampled or not completion.text for completion in done)
    return Sample(
        text=trajectory.text,
        answer=trajectory.answer,
        logprob=sum(_logprob(completion) for completion in done) if known else None,
        tokens=sum(completion.sampled for completion in done) if known else None,
        cut_off=any(completion.finish_reason == "length" for completion in done),
        right=env_success(trajectory) if trajectory.task.reference is None else None,
        error=trajectory.error,
        view=trajectory.view,
        skills=_skill_counts(trajectory, done),
        score=env_score(trajectory) if trajectory.error is None else None,
        exploits=exploit_count(trajectory),
    )


def _logprob(completion: Completion) -> float:
    sampled = completion.mask or (True,) * len(completion.logprobs)
    return sum(value for value, own in zip(completion.logprobs, sampled, strict=True) if own)


def _skill_counts(trajectory: Trajectory, done: list[Completion]) -> dict[str, int] | None:
    ops = trajectory.ops
    if ops is None:
        return None
    return {
        "retrieve_rate": int(ops.has_retrieve),
        "generate_rate": int(ops.has_generate),
        "evolve_rate": int(ops.has_evolve),
        "answered_rate": int(bool(trajectory.retrieved)),
        "ops_errors": len(ops.errors),
        "inserted_tokens": sum(completion.told for completion in done),
    }
