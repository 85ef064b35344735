"""Compare voting strategies on the same samples.

Pure functions of stored samples and a seed. A *visit* is a list of problems that are voted on together: samples drawn once
are one visit, the steps of a run are several, in which problems come round again. Metrics are means over problems, so the
intervals are over problems, and strategies are compared problem by problem.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from skill_ttrl.answers import bare_key, canonical, canonicals, correct
from skill_ttrl.rollout.samples import TaskSamples
from skill_ttrl.statistics import Interval, Verdict, mean_interval, paired_difference, verdict
from skill_ttrl.types import VoteResult, derive_seed
from skill_ttrl.voting import Ballot, UndecidedAnswers, VoteHistory, batch_vote, majority_vote, requires
from skill_ttrl.voting.strategies import INPUT_SOURCES

Visits = Sequence[Sequence[TaskSamples]]
Problem = tuple[str, str]
"""(source, task id)"""
Values = Mapping[str, Mapping[Problem, float]]
"""Values of each metric by problem."""
BASELINE = "majority"
FALSE_CONSENSUS = 0.5
"""A wrong winner with at least this share of the samples is a false consensus."""
TITLES: Mapping[str, str] = {
    "label_accuracy": "label accuracy",
    "decided_accuracy": "accuracy where decided",
    "reward_accuracy": "reward accuracy",
    "false_consensus": "false consensus",
    "majority_ratio": "majority ratio",
    "abstained": "abstained",
    "flip_rate": "flip rate",
}
"""The metrics, the main one first, and their titles. The first four need true answers, the last one several visits."""


@dataclass(frozen=True, slots=True)
class JudgedVote:
    """One vote, compared with the true answer."""

    problem: Problem
    task_type: str
    step: int
    """Place of its visit."""
    vote: VoteResult
    correct: bool | None
    """True if the winner is the true answer; False without a winner, None without a true answer."""
    reward_accuracy: float | None
    """Share of samples that belong to the winner's class exactly if they are true."""
    winner: str | None
    """The winner's class (`answers.canonical`)."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A mean over problems."""

    value: float
    interval: Interval
    problems: int
    """Number of problems that have a value."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A strategy less the majority, paired over problems."""

    value: float
    interval: Interval
    verdict: Verdict
    """"better" here means higher."""
    problems: int
    """Number of problems for which both have a value."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One strategy on all samples."""

    strategy: str
    options: Mapping[str, Any]
    requires: str | None = None
    """Missing inputs; then it has no metrics."""
    figures: Mapping[str, Metric] = field(default_factory=dict)
    """Values of `TITLES` where available."""
    differences: Mapping[str, Difference] = field(default_factory=dict)
    """From the majority, by metric; empty for the majority itself."""


@dataclass(frozen=True, slots=True)
class VoteLab:
    """Result of comparing strategies on one set of samples."""

    source: str
    problems: int
    samples: tuple[int, int]
    """Fewest and most samples of a problem at one visit."""
    visits: int
    """1 for samples drawn once; more for the steps of a run, in which problems come round again."""
    labelled: int
    """Problems whose true answer is known."""
    trained_on: int | None
    """Problems that the policy was trained on; None where that is not known."""
    confidence: float
    strategies: tuple[Replayed, ...]
    """The majority first; the others as they were asked for."""
    notes: tuple[str, ...] = ()
    """Notes on omitted or missing samples."""
    undecided_answers: UndecidedAnswers = field(default_factory=UndecidedAnswers)
    """Of the different answers of all samples, those that are compared as texts only, and why."""

    def describe_samples(self) -> str:
        """The samples that were voted on, in one sentence."""
        few, many = self.samples
        text = f"{self.problems} problems, {few if few == many else f'{few} to {many}'} samples each"
        text += f", {self.visits} visits" if self.visits > 1 else ""
        if self.trained_on is not None:
            known = {0: "held-out", self.problems: "transductive"}
            text += f", {known.get(self.trained_on, f'{self.trained_on} of them transductive')}"
        if self.labelled < self.problems:
            text += f"; {self.labelled or 'none'} of them with a true answer"
        return f"{text}."


def replay(
    visits: Visits, strategies: Mapping[str, Mapping[str, Any]], *, seed: int = 0, confidence: float = 0.95
) -> tuple[list[Replayed], dict[str, list[JudgedVote]]]:
    """Hold the votes of every strategy on the same samples.

    Args:
        visits: the samples.
        strategies: options by strategy; the majority is added, first, where it is not among them.
        seed: of the random choices of strategies.
        confidence: of the intervals.

    Returns:
        One `Replayed` for each strategy, and the votes of those that could be held.

    Raises:
        ConfigError: an option of a strategy is out of its range.
    """
    canonicals([answer for visit in visits for row in visit for answer in (*row.answers, row.task.ground_truth)])
    ballots = ballots_of(visits, seed)
    found: list[Replayed] = []
    votes: dict[str, list[JudgedVote]] = {}
    base: Values = {}
    for name, options in {BASELINE: strategies.get(BASELINE, {}), **strategies}.items():
        if lacking := _lacking(name, options, ballots):
            found.append(Replayed(name, options, requires=lacking))
            continue
        votes[name] = hold(visits, ballots, name, options)
        values = values_by_problem(votes[name])
        base = base or values
        figures = {key: _metric(list(of.values()), confidence) for key, of in values.items() if of}
        differences = {} if name == BASELINE else _differences(base, values, confidence)
        found.append(Replayed(name, options, figures=figures, differences=differences))
    return found, votes


def ballots_of(visits: Visits, seed: int) -> list[list[Ballot]]:
    """The ballots of each visit, with all that the samples say.

    The share that a majority had before training (`base_majority_ratio`) is that of a problem's first visit: samples of one policy
    are what its training would begin with. Earlier votes differ from strategy to strategy; `hold` adds them.
    """
    shares: dict[Problem, float] = {}

    def ballot(row: TaskSamples, step: int) -> Ballot:
        views = tuple(sample.prompt_variant for sample in row.samples)
        return Ballot(
            answers=row.answers,
            prompt="/".join(_problem(row)),
            logprobs=_whole([sample.logprob for sample in row.samples]),
            lengths=_whole([sample.tokens for sample in row.samples]),
            views=views if any(views) else None,
            base_majority_ratio=shares.setdefault(_problem(row), majority_vote(row.answers).majority_ratio),
            seed=derive_seed(seed, "ballot", step),
            keys=tuple(canonicals(row.answers)),
        )

    return [[ballot(row, step) for row in visit] for step, visit in enumerate(visits)]


def hold(
    visits: Visits, ballots: Sequence[Sequence[Ballot]], name: str, options: Mapping[str, Any]
) -> list[JudgedVote]:
    """All votes of one strategy, visit by visit; where there are several, each knows the prompt's earlier ones.

    Raises:
        ConfigError: an option is out of its range, or a ballot lacks what the strategy needs.
    """
    history = VoteHistory() if len(visits) > 1 else None
    found = []
    for step, (visit, given) in enumerate(zip(visits, ballots, strict=True)):
        if history is not None:
            given = [replace(ballot, history=history.of(ballot.prompt)) for ballot in given]
        held = batch_vote(name, given, options)
        if history is not None:
            history.record({ballot.prompt: vote for ballot, vote in zip(given, held, strict=True)})
        found += [_judged(row, step, vote) for row, vote in zip(visit, held, strict=True)]
    return found


def values_by_problem(votes: Sequence[JudgedVote]) -> Values:
    """Each metric by problem, as a mean over its visits; a problem without true answer, or without a winner where one is
    needed, has no value.
    """
    found: dict[str, dict[Problem, list[float]]] = {name: defaultdict(list) for name in TITLES}
    winners: dict[Problem, list[str]] = defaultdict(list)
    for held in votes:
        vote, problem = held.vote, held.problem
        found["majority_ratio"][problem].append(vote.majority_ratio)
        found["abstained"][problem].append(float(vote.answer is None or vote.skipped))
        if held.winner is not None:
            winners[problem].append(held.winner)
        if held.correct is None or held.reward_accuracy is None:
            continue
        found["label_accuracy"][problem].append(float(held.correct))
        found["reward_accuracy"][problem].append(held.reward_accuracy)
        wrong = vote.answer is not None and not held.correct
        found["false_consensus"][problem].append(float(wrong and vote.majority_ratio >= FALSE_CONSENSUS))
        if vote.answer is not None:
            found["decided_accuracy"][problem].append(float(held.correct))
    # Visits without a winner do not count: a flip is from the winner before to another one.
    found["flip_rate"] = {
        problem: [float(one != other) for one, other in pairwise(keys)]
        for problem, keys in winners.items()
        if len(keys) > 1
    }
    return {
        name: {problem: sum(values) / len(values) for problem, values in by_problem.items()}
        for name, by_problem in found.items()
    }


def _metric(values: Sequence[float], confidence: float) -> Metric:
    return Metric(math.fsum(values) / len(values), mean_interval(values, confidence=confidence), len(values))


def _differences(base: Values, other: Values, confidence: float) -> dict[str, Difference]:
    """Differences of one strategy's metrics from another's, paired over problems."""
    found = {}
    for name in TITLES:
        if both := [problem for problem in base[name] if problem in other[name]]:
            before, after = ([values[name][problem] for problem in both] for values in (base, other))
            value, low, high = paired_difference(before, after, confidence=confidence)
            found[name] = Difference(value, (low, high), verdict((low, high)), len(both))
    return found


def _problem(row: TaskSamples) -> Problem:
    return row.source, row.task.id


def _whole(values: Sequence[Any]) -> tuple[Any, ...] | None:
    return None if any(value is None for value in values) else tuple(values)


def _lacking(name: str, options: Mapping[str, Any], ballots: Sequence[Sequence[Ballot]]) -> str | None:
    """Name the inputs that a strategy requires and the samples lack; None where it has all."""
    given = {"history": len(ballots) > 1}
    missing = [
        wanted
        for wanted in requires(name, options)
        if not given.get(wanted, all(getattr(ballot, wanted) is not None for visit in ballots for ballot in visit))
    ]
    return "; ".join(f"{wanted}: {INPUT_SOURCES.get(wanted, wanted)}" for wanted in missing) or None


def _judged(row: TaskSamples, step: int, vote: VoteResult) -> JudgedVote:
    won, reward_accuracy = None, None
    if row.task.ground_truth is not None:
        won, *right = correct([(answer, row.task.ground_truth) for answer in (vote.answer, *row.answers)])
        reward_accuracy = float(np.mean([one == other for one, other in zip(vote.matches, right, strict=True)]))
    winner = bare_key(canonical(vote.answer))
    return JudgedVote(_problem(row), row.task.task_type, step, vote, won, reward_accuracy, winner)
