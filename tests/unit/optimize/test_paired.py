"""The paired rule: its properties for all scores, and its values beside SciPy's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.optimize.paired import PairedRule, certain, decide
from skill_ttrl.optimize.record import Optimized
from skill_ttrl.statistics import paired_difference, paired_score_p_value, sign_flip_p_value
from tests.rule_follower import ScriptedTarget, expected_score, is_optimal
from tests.rule_optimizer import ScriptedOptimizer
from tests.rule_runs import RuleRun

BETTER, NOT_WORSE = PairedRule(alpha=0.05), PairedRule("not_worse", min_effect=0.1, alpha=0.1)


Pairs = list[tuple[float, float]]

FOURTHS = st.integers(0, 4).map(lambda count: count / 4)

GRADED: st.SearchStrategy[Pairs] = st.lists(st.tuples(FOURTHS, FOURTHS), min_size=1, max_size=24)

BINARY: st.SearchStrategy[Pairs] = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0])] * 2), min_size=1, max_size=24)


def columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [before for before, _ in pairs], [after for _, after in pairs]


@given(BINARY)
def test_of_zeros_and_ones_it_is_the_exact_mcnemar_test(pairs: Pairs) -> None:
    won = sum(after > before for before, after in pairs)
    lost = sum(after < before for before, after in pairs)
    tail = sum(comb(won + lost, count) for count in range(won, won + lost + 1)) / 2 ** (won + lost)
    assert sign_flip_p_value([after - before for before, after in pairs]) == pytest.approx(tail)


@given(st.lists(st.integers(-4, 4).map(lambda count: count / 4), min_size=1, max_size=9))
def test_it_equals_counting_every_flip(differences: list[float]) -> None:
    flips = [
        sum(sign * each for sign, each in zip(signs, differences, strict=True))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    share = np.mean([flip >= sum(differences) - 1e-12 for flip in flips])
    assert sign_flip_p_value(differences) == pytest.approx(share)


@given(GRADED)
def test_better_one_way_is_not_better_the_other_way(pairs: Pairs) -> None:
    before, after = columns(pairs)
    one, other = decide(before, after, BETTER), decide(after, before, BETTER)
    assert not (one.accept and other.accept)
    assert one.difference == pytest.approx(-other.difference)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]), abs=1e-6)
    assert one.p_value + other.p_value >= 1 - 1e-12, "the observed sum counts on both sides"


@given(GRADED, st.data())
def test_a_better_score_never_turns_an_acceptance_into_a_rejection(pairs: Pairs, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(pairs) - 1))
    before, after = columns(pairs)
    raised = [*after]
    raised[place] = data.draw(FOURTHS.filter(lambda score: score >= after[place]))
    found, better = decide(before, after, BETTER), decide(before, raised, BETTER)
    assert better.p_value <= found.p_value + 1e-12
    assert better.accept or not found.accept


@given(BINARY, st.data())
def test_not_worse_is_monotone_in_zeros_and_ones(pairs: Pairs, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(pairs) - 1))
    before, after = columns(pairs)
    raised = [*after[:place], 1.0, *after[place + 1 :]]
    assert decide(before, raised, NOT_WORSE).accept or not decide(before, after, NOT_WORSE).accept


@given(GRADED, st.floats(-0.5, 0.5), st.sampled_from([0.05, 0.2]))
def test_the_score_test_is_the_one_that_the_interval_inverts(pairs: Pairs, assumed: float, level: float) -> None:
    before, after = columns(pairs)
    _, low, _ = paired_difference(before, after, confidence=1 - 2 * level)
    p_value = paired_score_p_value(before, after, assumed)
    if abs(low - assumed) > 1e-6:
        assert (p_value < level) == (low > assumed)


@given(GRADED)
def test_all_ties_are_not_better_and_none_at_all_is_rejected(pairs: Pairs) -> None:
    before, _ = columns(pairs)
    found = decide(before, before, BETTER)
    assert not found.accept and found.p_value == 1.0 and found.difference == 0.0
    for rule in (BETTER, NOT_WORSE):
        assert not decide([], [], rule).accept and decide([], [], rule).n == 0


@given(
    st.one_of(GRADED, BINARY, st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6)),
    st.integers(0, 24),
    st.sampled_from([BETTER, NOT_WORSE, PairedRule(min_effect=0.2, alpha=0.2), PairedRule(alpha=0.05)]),
)
def test_a_certain_decision_is_the_decision(pairs: Pairs, seen: int, rule: PairedRule) -> None:
    before, after = columns(pairs)
    seen = min(seen, len(pairs))
    early = certain(before[:seen], after[:seen], len(pairs) - seen, rule)
    if early is not None:
        assert early.accept == decide(before, after, rule).accept
    assert seen < len(pairs) or early is not None


SMALL: dict[str, Any] = {"epochs": 2, "batch_size": 6, "minibatch_size": 3}

SIZES = (12, 10, 4)


@pytest.mark.parametrize("engine", ["skillopt", "gepa"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_document_is_found_from_an_empty_one(engine: str, seed: int) -> None:
    run = RuleRun(engine, seed, sizes=(160, 40, 40))
    found = run(epochs=8, slow_update=False) if engine == "skillopt" else run(epochs=2)
    assert is_optimal(found.state.best), found.state.best
    assert expected_score("", run.task.test) < 0.15


class Killed(BaseException):
    """Ends a run at once."""


def small(
    engine: str, path: Path, limit: int | None, done: tuple[int, int] = (0, 0)
) -> tuple[Optimized | None, RuleRun]:
    """A small run on the journal, killed before its `limit`-th piece of work; its model never answers alike twice."""
    work = [0]

    def count(_: int) -> None:
        if limit is not None and work[0] >= limit:
            raise Killed
        work[0] += 1

    optimizer = ScriptedOptimizer(seed=5, wavering=True, first=done[0], before=count)
    run = RuleRun(engine, 5, SIZES, path, optimizer, ScriptedTarget(seed=5, before=count))
    try:
        return run(**SMALL), run
    except Killed:
        return None, run


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["skillopt", "gepa"])
def test_killed_anywhere_and_resumed_it_makes_the_same_calls(engine: str, tmp_path: Path) -> None:
    """Killed before every request, and before every twelfth rollout."""
    whole, uninterrupted = small(engine, tmp_path / "whole", None)
    assert whole is not None
    lines = (tmp_path / "whole").read_bytes()
    order = _work(lines)
    assert len(order) == uninterrupted.requests + uninterrupted.rollouts
    points = [place for place, is_request in enumerate(order) if is_request or place % 12 == 0]
    assert sum(order) > 4 and len(points) > 12
    for point in points:
        path = tmp_path / f"{point}"
        _, first = small(engine, path, point)
        assert first.requests + first.rollouts == point
        found, second = small(engine, path, None, (first.requests, first.rollouts))
        assert found is not None
        assert path.read_bytes() == lines  # the same calls in the same order with the same answers, none twice
        assert first.optimizer.calls + second.optimizer.calls == uninterrupted.optimizer.calls  # type: ignore[union-attr]
        assert first.target.calls + second.target.calls == uninterrupted.target.calls
        assert (found.state, found.test_first, found.test_best) == (whole.state, whole.test_first, whole.test_best)
        assert _untimed(found) == _untimed(whole)


def _work(lines: bytes) -> list[bool]:
    """Of each line of a journal, in order: is it a request?"""
    return ["id" not in json.loads(line)["result"] for line in lines.splitlines()]


def _untimed(found: Optimized) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "timing"} for row in found.rows]
