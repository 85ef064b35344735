"""Figures of votes: means over problems with their intervals, differences between strategies, and the reliability curve."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skill_ttrl.statistics import Verdict, mean_interval, paired_difference, verdict, wilson_interval
from skill_ttrl.types import VoteResult

Problem = tuple[str, str]
"""(source, task id)"""
BINS = 10
"""Of the reliability curve, equally wide over [0, 1]."""

LABELLED = ("label_accuracy", "decided_accuracy", "reward_accuracy", "false_consensus")
"""Figures that need true answers."""
FIGURES = (*LABELLED, "majority_ratio", "abstained", "flip_rate")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the comparison."""

    false_consensus_threshold: float = 0.5
    """A wrong winner with at least this share of the samples is a false consensus."""
    num_resamples: int = 10
    """Random halvings of a problem's samples behind its flip rate, where it was visited once."""
    seed: int = 0
    confidence: float = 0.95


@dataclass(frozen=True, slots=True)
class Held:
    """One vote, and what it was worth."""

    problem: Problem
    task_type: str
    step: int
    """Place of its visit."""
    vote: VoteResult
    correct: bool | None
    """True if the winner is the true answer; False where nobody won, None without a true answer."""
    reward_accuracy: float | None
    """Share of samples that belong to the winner's class exactly if they are true."""
    winner: str | None
    """The winner's class (`answers.canonical`)."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over problems."""

    value: float
    interval: tuple[float, float]
    problems: int
    """Number of problems that have a value."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A strategy less the majority, paired over problems."""

    value: float
    interval: tuple[float, float]
    verdict: Verdict
    """"better" here means higher."""
    problems: int
    """Number of problems for which both have a value."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Votes whose winners had about the same share of the samples."""

    agreement: float
    """Mean share."""
    accuracy: float
    """Share of them won by the true answer."""
    interval: tuple[float, float]
    votes: int


def values_by_problem(votes: Sequence[Held], threshold: float) -> dict[str, dict[Problem, float]]:
    """Each figure by problem, as a mean over its visits; a problem without true answer, or without a winner where one is
    needed, has no value.
    """
    found: dict[str, dict[Problem, list[float]]] = {name: defaultdict(list) for name in FIGURES if name != "flip_rate"}
    for held in votes:
        vote, problem = held.vote, held.problem
        found["majority_ratio"][problem].append(vote.majority_ratio)
        found["abstained"][problem].append(float(vote.answer is None or vote.skipped))
        if held.correct is None or held.reward_accuracy is None:
            continue
        found["label_accuracy"][problem].append(float(held.correct))
        found["reward_accuracy"][problem].append(held.reward_accuracy)
        wrong = vote.answer is not None and not held.correct
        found["false_consensus"][problem].append(float(wrong and vote.majority_ratio >= threshold))
        if vote.answer is not None:
            found["decided_accuracy"][problem].append(float(held.correct))
    return {
        name: {problem: sum(values) / len(values) for problem, values in by_problem.items()}
        for name, by_problem in found.items()
    }


def figures_of(values: Mapping[str, Mapping[Problem, float]], settings: Settings) -> dict[str, Figure]:
    """Means over problems, of those figures that any problem has."""
    return {name: _figure(list(values[name].values()), settings) for name in FIGURES if values[name]}


def _figure(values: Sequence[float], settings: Settings) -> Figure:
    return Figure(math.fsum(values) / len(values), mean_interval(values, confidence=settings.confidence), len(values))


def differences_from(
    base: Mapping[str, Mapping[Problem, float]], other: Mapping[str, Mapping[Problem, float]], settings: Settings
) -> dict[str, Difference]:
    """Differences of one strategy's figures from another's, paired over problems."""
    found = {}
    for name in FIGURES:
        both = [problem for problem in base[name] if problem in other[name]]
        if not both:
            continue
        value, low, high = paired_difference(
            [base[name][problem] for problem in both],
            [other[name][problem] for problem in both],
            confidence=settings.confidence,
        )
        found[name] = Difference(value, (low, high), verdict((low, high)), len(both))
    return found


def figures_by_type(
    values: Mapping[str, Mapping[Problem, float]], types: Mapping[Problem, str], settings: Settings
) -> dict[str, dict[str, Figure]]:
    """The figures of each type of problem."""
    found = {}
    for kind in sorted(set(types.values())):
        own = {
            name: {problem: value for problem, value in each.items() if types[problem] == kind}
            for name, each in values.items()
        }
        found[kind] = figures_of(own, settings)
    return found


def reliability_curve(votes: Sequence[Held], confidence: float) -> tuple[Bin, ...]:
    """Accuracy of the winners by their share of the samples."""
    bins: dict[int, list[Held]] = defaultdict(list)
    for held in votes:
        if held.correct is not None and held.vote.answer is not None:
            bins[min(BINS - 1, int(held.vote.majority_ratio * BINS))].append(held)
    return tuple(
        Bin(
            agreement=math.fsum(held.vote.majority_ratio for held in inside) / len(inside),
            accuracy=(right := sum(bool(held.correct) for held in inside)) / len(inside),
            interval=wilson_interval(right, len(inside), confidence),
            votes=len(inside),
        )
        for _, inside in sorted(bins.items())
    )
