"""Compare voting strategies on the same samples.

Pure functions of stored samples and a seed. A *visit* is a list of problems that are voted on together: samples drawn once
are one visit, the steps of a run are several, in which problems come round again. Figures are means over problems, so the
intervals are over problems, and strategies are compared problem by problem.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from skill_ttrl.answers import bare_key, canonical, canonicals, correct
from skill_ttrl.rollout.samples import TaskSamples
from skill_ttrl.stages.evaluation.vote_figures import (
    Bin,
    Difference,
    Figure,
    Held,
    Problem,
    Settings,
    differences_from,
    figures_by_type,
    figures_of,
    reliability_curve,
    values_by_problem,
)
from skill_ttrl.types import VoteResult, derive_seed
from skill_ttrl.voting import Ballot, VoteHistory, batch_vote, majority_vote, requires, vote
from skill_ttrl.voting.strategies import INPUT_SOURCES

Visits = Sequence[Sequence[TaskSamples]]
BASELINE = "majority"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One strategy on all samples."""

    strategy: str
    options: Mapping[str, Any]
    requires: str | None = None
    """Missing inputs; then it has no figures."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """Values of `FIGURES` where available; without true answers none of `LABELLED`."""
    differences: Mapping[str, Difference] = field(default_factory=dict)
    """From the majority, by figure; empty for the majority itself."""
    by_type: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    """The figures of each type of problem."""
    reliability: tuple[Bin, ...] = ()
    """Accuracy of the winners by their share of the samples."""


def replay(
    visits: Visits, strategies: Mapping[str, Mapping[str, Any]], settings: Settings
) -> tuple[list[Replayed], dict[str, list[Held]]]:
    """Hold the votes of every strategy on the same samples.

    Args:
        visits: the samples.
        strategies: options by strategy; the majority is added, first, where it is not among them.
        settings: how they are judged.

    Returns:
        One `Replayed` for each strategy, and the votes of those that could be held.

    Raises:
        ConfigError: an option of a strategy is out of its range.
    """
    canonicals([answer for visit in visits for row in visit for answer in (*row.answers, row.task.ground_truth)])
    ballots = ballots_of(visits, settings.seed)
    asked = {BASELINE: strategies.get(BASELINE, {}), **strategies}
    found: list[Replayed] = []
    votes: dict[str, list[Held]] = {}
    values: dict[str, dict[str, dict[Problem, float]]] = {}
    for name, options in asked.items():
        lacking = _lacking(name, options, ballots)
        if lacking is not None:
            found.append(Replayed(name, options, requires=lacking))
            continue
        votes[name] = hold(visits, ballots, name, options)
        flips = (
            visit_flips(votes[name]) if len(visits) > 1 else half_flips(ballots[0], visits[0], name, options, settings)
        )
        values[name] = values_by_problem(votes[name], settings.false_consensus_threshold) | {"flip_rate": flips}
        replayed = _replayed(name, options, votes[name], values[name], settings)
        compared = name != BASELINE
        differences = differences_from(values[BASELINE], values[name], settings) if compared else {}
        found.append(replace(replayed, differences=differences))
    return found, votes


def _replayed(
    name: str,
    options: Mapping[str, Any],
    votes: Sequence[Held],
    values: Mapping[str, Mapping[Problem, float]],
    settings: Settings,
) -> Replayed:
    types = {held.problem: held.task_type for held in votes}
    return Replayed(
        name,
        options,
        figures=figures_of(values, settings),
        by_type=figures_by_type(values, types, settings),
        reliability=reliability_curve(votes, settings.confidence),
    )


def ballots_of(visits: Visits, seed: int) -> list[list[Ballot]]:
    """The ballots of each visit, with all that the samples say.

    The share that a majority had before training (`base_majority_ratio`) is that of a problem's first visit: samples of one policy
    are what its training would begin with. Earlier votes differ from strategy to strategy; `hold` adds them.
    """
    shares: dict[Problem, float] = {}
    found = []
    for step, visit in enumerate(visits):
        ballots = []
        for row in visit:
            keys = tuple(canonicals(row.answers))
            share = shares.setdefault(_problem(row), majority_vote(row.answers).majority_ratio)
            ballots.append(
                Ballot(
                    answers=row.answers,
                    prompt="/".join(_problem(row)),
                    logprobs=_whole([sample.logprob for sample in row.samples]),
                    lengths=_whole([sample.tokens for sample in row.samples]),
                    views=tuple(sample.prompt_variant for sample in row.samples)
                    if any(s.prompt_variant for s in row.samples)
                    else None,
                    base_majority_ratio=share,
                    seed=derive_seed(seed, "ballot", step),
                    keys=keys,
                )
            )
        found.append(ballots)
    return found


def hold(visits: Visits, ballots: Sequence[Sequence[Ballot]], name: str, options: Mapping[str, Any]) -> list[Held]:
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


def half_flips(
    ballots: Sequence[Ballot], rows: Sequence[TaskSamples], name: str, options: Mapping[str, Any], settings: Settings
) -> dict[Problem, float]:
    """Share of random halvings of a problem's samples whose halves have different winners, by problem.

    The halves are the same for every strategy. A halving counts where both halves have a winner; a problem without any such
    halving has no value. With an odd number of samples one is left out; answers to a paraphrase are halved for themselves.
    """
    flips: dict[Problem, list[bool]] = defaultdict(list)
    pairs = [(row, ballot) for row, ballot in zip(rows, ballots, strict=True) if _halves(ballot, 0)[0]]
    rows, ballots = [row for row, _ in pairs], [ballot for _, ballot in pairs]
    for split in range(settings.num_resamples):
        halves = [_halves(ballot, derive_seed(settings.seed, "halves", ballot.prompt, split)) for ballot in ballots]
        one, other = (
            [vote(name, _part(ballot, places[side]), options) for ballot, places in zip(ballots, halves, strict=True)]
            for side in (0, 1)
        )
        for row, first, second in zip(rows, one, other, strict=True):
            if first.answer is not None and second.answer is not None:
                flips[_problem(row)].append(bare_key(canonical(first.answer)) != bare_key(canonical(second.answer)))
    return {problem: sum(changed) / len(changed) for problem, changed in flips.items()}


def visit_flips(votes: Sequence[Held]) -> dict[Problem, float]:
    """Share of a problem's visits whose winner differs from the visit before, by problem; visits without a winner do not count."""
    winners: dict[Problem, list[str]] = defaultdict(list)
    for held in votes:
        if held.winner is not None:
            winners[held.problem].append(held.winner)
    returned = {problem: keys for problem, keys in winners.items() if len(keys) > 1}
    return {
        problem: sum(one != other for one, other in pairwise(keys)) / (len(keys) - 1)
        for problem, keys in returned.items()
    }


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


def _judged(row: TaskSamples, step: int, vote: VoteResult) -> Held:
    won, reward_accuracy = None, None
    if row.task.ground_truth is not None:
        won, *right = correct([(answer, row.task.ground_truth) for answer in (vote.answer, *row.answers)])
        reward_accuracy = float(np.mean([one == other for one, other in zip(vote.matches, right, strict=True)]))
    return Held(_problem(row), row.task.task_type, step, vote, won, reward_accuracy, bare_key(canonical(vote.answer)))


def _halves(ballot: Ballot, seed: int) -> tuple[list[int], list[int]]:
    rng = np.random.default_rng(seed)
    views = ballot.views or (0,) * len(ballot.answers)
    one: list[int] = []
    other: list[int] = []
    for view in sorted(set(views)):
        places = rng.permutation([place for place, each in enumerate(views) if each == view]).tolist()
        half = len(places) // 2
        one += places[:half]
        other += places[half : 2 * half]
    return sorted(one), sorted(other)


def _part(ballot: Ballot, places: Sequence[int]) -> Ballot:
    fields = ("answers", "logprobs", "lengths", "views", "keys")
    cut: dict[str, Any] = {
        name: tuple(whole[place] for place in places) for name in fields if (whole := getattr(ballot, name)) is not None
    }
    return replace(ballot, **cut)
