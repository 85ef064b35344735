"""TTRL-Guard's weights, skips and bonus, vote by vote, with the arithmetic beside them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skill_ttrl.types import VoteResult
from skill_ttrl.voting import Ballot, PromptHistory, VoteHistory, batch_vote, vote

SURE = ("1", "1", "1", "2")
"""A majority ratio of 0.75."""
FLIPPED = ("2", "2", "2", "1")
UNSURE = ("2", "2", "1", "1", "3")
"""0.4."""


def course(*votes: tuple[str, ...], options: dict[str, Any] | None = None, seed: int = 0) -> list[VoteResult]:
    """The votes of one prompt, one after the other."""
    history, found = VoteHistory(), []
    for step, answers in enumerate(votes):
        held = vote("guard", Ballot(answers, "p", history=history.of("p"), seed=seed + step), options)
        history.record({"p": held})
        found.append(held)
    return found


def test_a_flip_halves_the_weight_and_a_sure_flip_takes_more() -> None:
    """0.5 for a flip at a ratio of 0.4; 0.5 x 0.7 = 0.35 at 0.75; a first vote and one that stays have 1."""
    first, flipped, stayed = course(SURE, UNSURE, FLIPPED)
    assert (first.weight, flipped.weight, stayed.weight) == (1.0, 0.5, 1.0)
    assert "flip" in flipped.flags and "flip" not in first.flags + stayed.flags
    assert course(SURE, FLIPPED)[1].weight == pytest.approx(0.35)


def test_a_prompt_that_never_flips_weighs_less_for_a_while() -> None:
    """From its fifth vote on, mean ratio 0.75 > 0.6: 0.85, five times, then 1 again."""
    weights = [held.weight for held in course(*[SURE] * 11)]
    assert weights == pytest.approx([1] * 4 + [0.85] * 5 + [1] * 2)
    unsure = [held.weight for held in course(*[UNSURE] * 7)]
    assert unsure == [1.0] * 7


def test_high_risk_is_once_flipped_then_sure() -> None:
    """One flip, five votes, mean ratio 0.75 > 0.7. A prompt that never flipped is not at risk, however sure."""
    risky = course(FLIPPED, *[SURE] * 5, options={"skip_probability": 1})
    assert ["high_risk" in held.flags for held in risky] == [False] * 4 + [True] * 2
    assert [held.skipped for held in risky] == [False] * 4 + [True] * 2
    assert not any(held.skipped for held in course(FLIPPED, *[SURE] * 5, options={"skip_probability": 0}))
    assert not any(held.skipped for held in course(*[SURE] * 8, options={"skip_probability": 1}))
    assert not any("high_risk" in held.flags for held in course(FLIPPED, *[SURE] * 5, options={"risk_ratio": 0.75}))


RISK = PromptHistory(votes=6, winner="number 1", ratios=(0.75,) * 6, returns=5, flips=1, quiet=4)


def test_skips_are_drawn_with_the_probability_and_the_seed() -> None:
    drawn = [vote("guard", Ballot(SURE, "p", history=RISK, seed=seed)).skipped for seed in range(400)]
    assert 0.63 < sum(drawn) / 400 < 0.77
    assert drawn == [vote("guard", Ballot(SURE, "p", history=RISK, seed=seed)).skipped for seed in range(400)]
    other = [vote("guard", Ballot(SURE, "q", history=RISK, seed=seed)).skipped for seed in range(400)]
    assert other != drawn, "each prompt draws its own"


@pytest.mark.parametrize(("prompts", "most"), [(1, 1), (3, 1), (7, 1), (8, 2), (15, 3), (16, 4)])
def test_at_most_a_quarter_of_a_step_is_skipped(prompts: int, most: int) -> None:
    ballots = [Ballot(SURE, f"p{place}", history=RISK, seed=1) for place in range(prompts)]
    found = batch_vote("guard", ballots, {"skip_probability": 1})
    assert [held.skipped for held in found] == [True] * most + [False] * (prompts - most)
    assert all("high_risk" in held.flags for held in found)


def test_minorities_are_raised_where_the_winner_changes() -> None:
    """Of 12 samples a minority has at least 12 // 4 = 3 votes: 1 alone, with all of the bonus. Of 8 at least 2: 1 and 3 have
    two of those four each, 4 has one and gets nothing.
    """
    past = PromptHistory(votes=1, winner="number 1", ratios=(0.5,), quiet=1)
    answers = ("2", "2", "1", "1", "3", "3", "4", "1", "2", "2", None, "")
    found = vote("guard", Ballot(answers, "p", history=past, seed=0))
    assert found.answer == "2" and found.flags == ("flip", "minority")
    assert found.bonus == pytest.approx([0.3 * (answer == "1") for answer in answers])
    fewer = vote("guard", Ballot(("2", "2", "2", "1", "1", "3", "3", "4"), "p", history=past, seed=0))
    assert fewer.bonus == pytest.approx((0, 0, 0, 0.3 / 2, 0.3 / 2, 0.3 / 2, 0.3 / 2, 0))


def test_the_bonus_is_of_the_step_of_the_flip_unless_it_is_held() -> None:
    """As published beta x FR, and FR is 0 in the quiet steps; protected for three votes from the flip on."""
    votes = [SURE, FLIPPED, FLIPPED, FLIPPED, FLIPPED]
    published = course(*votes)
    assert ["minority" in held.flags for held in published] == [False, True, True, True, False]
    assert [bool(held.bonus) for held in published] == [False, True, False, False, False]
    held = course(*votes, options={"hold_bonus": True})
    assert [bool(each.bonus) for each in held] == [False, True, True, True, False]
    longer = course(*votes, options={"hold_bonus": True, "quiet_steps": 4})
    assert [bool(each.bonus) for each in longer] == [False, True, True, True, True]


def test_the_history_goes_on_after_a_round_trip_as_if_never_stopped() -> None:
    votes = [SURE, FLIPPED, UNSURE, SURE, SURE, ("",), SURE, SURE, FLIPPED, SURE, SURE, SURE, SURE, SURE]
    whole, resumed = VoteHistory(), VoteHistory()
    for step, answers in enumerate(votes):
        ballots = [Ballot(answers, "p", history=history.of("p"), seed=step, prompts=4) for history in (whole, resumed)]
        one, other = (vote("guard", ballot) for ballot in ballots)
        assert one == other
        expected = whole.record({"p": one})
        resumed = VoteHistory.from_state(json.loads(json.dumps(resumed.state_dict())))
        assert resumed.record({"p": other}) == expected
    assert resumed == whole and whole.of("p").flips == 4
