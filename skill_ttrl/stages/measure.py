"""Measuring a policy: every problem exactly once, in a fixed order, seeded, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from skill_ttrl.answers import equivalent
from skill_ttrl.config import EvalConfig
from skill_ttrl.llm.base import Sampling
from skill_ttrl.rollout import refuse_failure
from skill_ttrl.runs.statistics import avg_at_k, bootstrap_interval, mean_pass_at_k, vote_entropy, wilson_interval
from skill_ttrl.stages.bank import skill_figures
from skill_ttrl.types import Group, Trajectory, derive_seed
from skill_ttrl.voting import majority_vote

Interval = tuple[float, float]
Play = Callable[[int, Sampling, int], list[Group]]
"""(tries, sampling, seed) → every task tried so often; one group a task, in a fixed order."""


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """One problem of an evaluation."""

    task: str
    correct: int | None
    """Right samples; None where nothing says what is right."""
    samples: int
    majority_answer: str | None
    agreement: float
    majority_correct: bool | None
    greedy_correct: bool | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one evaluation. Those that need true answers are None where a problem has none."""

    label: str
    """When it was taken: "before", "after", "step 10"."""
    split: str
    problems: int
    samples: int
    temperature: float
    accuracy: float | None
    """avg@k: mean share of right samples."""
    accuracy_interval: Interval | None
    """Bootstrap over problems."""
    pass_at_k: dict[str, float]
    """Unbiased estimate (Chen et al. 2021, eq. 1) for k = 1, 2, 4, … up to `samples`, keyed by k."""
    majority: float | None
    """maj@k: share of problems whose most frequent answer is right."""
    majority_interval: Interval | None
    """Wilson."""
    greedy: float | None
    greedy_interval: Interval | None
    by_temperature: dict[str, float]
    """avg@k at the extra temperatures, keyed by temperature."""
    agreement: float
    """Mean share of the votes that the most frequent answer has."""
    entropy: float
    """Mean entropy (nats) of the answers' distribution."""
    results: tuple[ProblemResult, ...]
    failed: float = 0.0
    """Share of tries in which the environment failed; they count as wrong."""
    skill_use: dict[str, float] = field(default_factory=dict)
    """Shares of tries that asked the skill bank, were answered, wrote a skill; empty where there was no bank to ask."""


def is_correct(trajectory: Trajectory) -> bool | None:
    """Whether a try is right: by the true answer, else by the environment's return; None where neither is known."""
    if trajectory.task.reference is not None:
        return trajectory.answer is not None and equivalent(trajectory.answer, trajectory.task.reference)
    if trajectory.steps and trajectory.steps[-1].info.get("graded", True):
        return trajectory.env_return > 0
    return None if trajectory.error is None else False


def measure(play: Play, *, label: str, config: EvalConfig, max_new_tokens: int, seed: int) -> Evaluation:
    """Have every task played `config.samples` times, and once greedily, and count what is right.

    Raises:
        EnvError: every try failed in the environment.
    """

    def at(temperature: float) -> list[Group]:
        purpose = "sample" if temperature == config.temperature else f"sample at {temperature:g}"
        sampling = Sampling(temperature=temperature, top_p=config.top_p, max_new_tokens=max_new_tokens)
        return play(config.samples, sampling, derive_seed(seed, "evaluate", purpose))

    groups = at(config.temperature)
    errors = refuse_failure(groups)
    plainly = Sampling(temperature=0.0, max_new_tokens=max_new_tokens)
    greedy = play(1, plainly, derive_seed(seed, "evaluate", "greedy")) if config.greedy else None
    extra = {f"{temperature:g}": at(temperature) for temperature in config.extra_temperatures}

    results = [_result(group, greedy[place] if greedy else None) for place, group in enumerate(groups)]
    graded = bool(results) and all(result.correct is not None for result in results)
    correct_P_K = _correct_matrix(groups) if graded else np.zeros((0, 0), dtype=bool)
    majority = [bool(result.majority_correct) for result in results] if graded else []
    greedily = [bool(result.greedy_correct) for result in results] if graded and greedy else []
    return Evaluation(
        label=label,
        split=groups[0].task.split,
        problems=len(groups),
        samples=config.samples,
        temperature=config.temperature,
        accuracy=avg_at_k(correct_P_K) if graded else None,
        accuracy_interval=_bootstrap(correct_P_K, config, seed) if graded else None,
        pass_at_k={str(k): mean_pass_at_k(correct_P_K, k) for k in _powers_of_two(config.samples)} if graded else {},
        majority=float(np.mean(majority)) if majority else None,
        majority_interval=wilson_interval(sum(majority), len(majority), config.confidence) if majority else None,
        greedy=float(np.mean(greedily)) if greedily else None,
        greedy_interval=wilson_interval(sum(greedily), len(greedily), config.confidence) if greedily else None,
        by_temperature={heat: avg_at_k(_correct_matrix(played)) for heat, played in extra.items()} if graded else {},
        agreement=float(np.mean([result.agreement for result in results])),
        entropy=float(np.mean([_answer_entropy(group) for group in groups])),
        results=tuple(results),
        failed=len(errors) / (len(groups) * config.samples),
        skill_use=skill_figures(groups),
    )


def _result(group: Group, greedy: Group | None) -> ProblemResult:
    vote = majority_vote(group.answers)
    verdicts = [is_correct(trajectory) for trajectory in group.trajectories]
    known = all(verdict is not None for verdict in verdicts)
    winner = vote.matches.index(True) if vote.answer is not None else None
    majority_correct = None
    if known:
        majority_correct = winner is not None and bool(verdicts[winner])
    return ProblemResult(
        task=group.task.id,
        correct=sum(bool(verdict) for verdict in verdicts) if known else None,
        samples=len(verdicts),
        majority_answer=vote.answer,
        agreement=vote.agreement,
        majority_correct=majority_correct,
        greedy_correct=is_correct(greedy.trajectories[0]) if greedy else None,
    )


def _correct_matrix(groups: Sequence[Group]) -> np.ndarray:
    return np.array([[bool(is_correct(trajectory)) for trajectory in group.trajectories] for group in groups])


def _bootstrap(correct_P_K: np.ndarray, config: EvalConfig, seed: int) -> Interval:
    return bootstrap_interval(
        correct_P_K.mean(axis=1), confidence=config.confidence, samples=config.bootstrap_samples, seed=seed
    )


def _answer_entropy(group: Group) -> float:
    vote = majority_vote(group.answers)
    silent = [1] * vote.abstained  # every sample without an answer is its own class: silence is no agreement
    return vote_entropy([*(votes for _, votes in vote.classes), *silent])


def _powers_of_two(largest: int) -> list[int]:
    ks = [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    return ks if ks[-1] == largest else [*ks, largest]
