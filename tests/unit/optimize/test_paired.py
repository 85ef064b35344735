"""The paired rule: its properties for all scores, and its values beside SciPy's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.optimize.paired import PairedRule, certain, decide
from skill_ttrl.statistics import paired_difference, paired_score_p_value, sign_flip_p_value

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
