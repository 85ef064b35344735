"""What holds for every algorithm's advantages, whatever the rollouts. A new algorithm is held to it as soon as it is registered,
and has to say in `LAWS` how its advantages follow the size of the rewards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from skill_ttrl.rl.algorithms import ALGORITHMS, AdvantageEstimate, TrainingSamples, build_algorithm
from skill_ttrl.rl.batch import pack, with_advantages
from skill_ttrl.types import Group, VoteResult
from skill_ttrl.voting import ballot_of, vote
from tests.sampled import one_step, padded, trajectory

EXAMPLES = settings(max_examples=3)


@dataclass(frozen=True)
class Law:
    """How an algorithm's advantages follow its rewards."""

    scale: Literal["invariant", "linear", "none"]
    """Rewards multiplied by c > 0: the same advantages, or c times them. `none`: its rewards are 0 and 1, or a vote's."""
    shift: bool = True
    """A constant added to all rewards of a group changes nothing."""
    equal: bool = True
    """A group whose rewards are all equal has no advantage."""
    alone: bool = False
    """A rollout without companions has its reward."""


LAWS: dict[str, Law] = {
    "grpo": Law("invariant", alone=True),
    "gigpo": Law("linear", alone=True),
    # A success is a rollout whose reward is above 0.
    "graphgpo": Law("invariant", shift=False, alone=True),
    "dapo": Law("invariant", alone=True),
    "gspo": Law("invariant", alone=True),
    "cispo": Law("invariant", alone=True),
    "grpo_nsr": Law("invariant", alone=True),
    # Each sample learns by itself: there is no baseline.
    "psr": Law("none", shift=False, equal=False),
    "nsr": Law("none", shift=False, equal=False),
    "w_reinforce": Law("none", shift=False, equal=False),
    "dr_grpo": Law("linear", alone=True),
    "rloo": Law("linear", alone=True),
    # Both before they are whitened, which `UpdateRule` does.
    "reinforce_plus_plus": Law("linear", shift=False, equal=False, alone=True),
    "reinforce_plus_plus_baseline": Law("linear", alone=True),
    # Without discount and with values of 0, before they are whitened: the returns.
    "gae": Law("linear", shift=False, equal=False, alone=True),
    "ppo": Law("linear", shift=False, equal=False, alone=True),
    # Agreement alone is worth something.
    "ttpo": Law("none", shift=False, equal=False),
}


@dataclass(frozen=True)
class Rollout:
    """One rollout, in numbers."""

    reward: float
    trained: tuple[bool, ...]
    answer: str | None


Rollouts = list[list[Rollout]]


def rollouts(smallest: int = 1) -> st.SearchStrategy[Rollouts]:
    """Up to three groups of up to five rollouts, some of them without a trained token; never all of a group."""

    # From one seed: drawing every number by itself takes far longer than what is tested.
    def make(seed: int) -> Rollouts:
        draw = random.Random(seed)

        def one(first: bool) -> Rollout:
            trained = (first or draw.random() < 0.8, *(draw.random() < 0.8 for _ in range(draw.randint(0, 3))))
            return Rollout(draw.choice([0.0, 1.0, 0.5, -1.0, 2.0]), trained, draw.choice([None, "1", "2", "3"]))

        return [[one(place == 0) for place in range(draw.randint(smallest, 5))] for _ in range(draw.randint(1, 3))]

    return st.integers(0, 2**31).map(make)


def estimate(name: str, drawn: Rollouts, **options: Any) -> list[Tensor]:
    """Advantages of each rollout's tokens; where votes are required they decide the rewards."""
    requires: frozenset[str] = getattr(ALGORITHMS.get(name), "requires", frozenset())
    groups = [_group(number, members) for number, members in enumerate(drawn)]
    votes: list[VoteResult] | None = None
    if "votes" in requires:
        votes = [vote("majority", ballot_of(group)) for group in groups]
        groups = [group.with_rewards([*held.sample_rewards]) for group, held in zip(groups, votes, strict=True)]
    batch = pack(groups)
    if "critic" in requires:
        batch = replace(batch, values_F=torch.zeros(len(batch.tokens_F)))
    samples = TrainingSamples(groups, votes, batch=batch)
    found = build_algorithm({"type": name, **options}).advantages(samples)
    values = found.advantages if isinstance(found, AdvantageEstimate) else found
    if isinstance(found, AdvantageEstimate) and found.trained_F is not None:
        batch = replace(batch, trained_F=batch.trained_F & found.trained_F)
    matrix = padded(batch, with_advantages(batch, groups, values).advantages_F)
    lengths = [len(each.trained) for members in drawn for each in members]
    return [row[:length] for row, length in zip(matrix, lengths, strict=True)]


def _held(number: int, members: Sequence[Rollout]) -> VoteResult:
    return vote("majority", ballot_of(_group(number, members)))


def _group(number: int, members: Sequence[Rollout]) -> Group:
    task = f"t{number}"
    tries = [
        trajectory([one_step(each.trained)], task=task, reward=each.reward, answer=each.answer) for each in members
    ]
    return Group(tries[0].task, tuple(tries))


def changed(drawn: Rollouts, times: float = 1.0, plus: float = 0.0) -> Rollouts:
    """The same rollouts with other rewards."""
    return [[replace(each, reward=each.reward * times + plus) for each in members] for members in drawn]


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    torch.testing.assert_close([*found], [*expected], rtol=rtol, atol=atol)


def holding(law: str, value: Any) -> list[str]:
    """Algorithms whose law has this value."""
    return [name for name, laws in LAWS.items() if getattr(laws, law) == value]


def test_every_algorithm_says_how_its_advantages_follow_the_rewards() -> None:
    assert set(LAWS) == set(ALGORITHMS)


@pytest.mark.parametrize("name", list(LAWS))
@given(drawn=rollouts(), seed=st.integers(0, 99))
@EXAMPLES
def test_rollouts_of_a_group_have_no_order(name: str, drawn: Rollouts, seed: int) -> None:
    if name == "ttpo":  # the answer that came first wins a tie, as in TTRL
        assume(not any(_held(number, members).tie for number, members in enumerate(drawn)))
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(members), generator=generator).tolist() for members in drawn]
    mixed = [[members[place] for place in order] for members, order in zip(drawn, orders, strict=True)]
    before = iter(estimate(name, drawn))
    rows = [[next(before) for _ in members] for members in drawn]
    expected = [row[place] for row, order in zip(rows, orders, strict=True) for place in order]
    assert_same(estimate(name, mixed), expected)


@pytest.mark.parametrize("name", list(LAWS))
@given(drawn=rollouts())
@EXAMPLES
def test_groups_have_no_order(name: str, drawn: Rollouts) -> None:
    found = iter(estimate(name, drawn))
    rows = [[next(found) for _ in members] for members in drawn]
    assert_same(estimate(name, drawn[::-1]), [each for row in rows[::-1] for each in row])


@pytest.mark.parametrize("name", list(LAWS))
@given(drawn=rollouts(), extra=st.integers(1, 3))
@EXAMPLES
def test_tokens_that_are_not_trained_change_nothing_and_have_no_advantage(
    name: str, drawn: Rollouts, extra: int
) -> None:
    longer = [
        [replace(each, trained=each.trained + (False,) * extra * number) for number, each in enumerate(members)]
        for members in drawn
    ]
    found = estimate(name, longer)
    assert_same([row[: len(old)] for row, old in zip(found, estimate(name, drawn), strict=True)], estimate(name, drawn))
    for row, each in zip(found, [each for members in longer for each in members], strict=True):
        assert row.isfinite().all() and not row[~torch.tensor(each.trained)].any()


@pytest.mark.parametrize("name", holding("scale", "invariant"))
@given(drawn=rollouts(smallest=2), times=st.floats(0.1, 100.0))
@EXAMPLES
def test_the_size_of_the_rewards_does_not_matter(name: str, drawn: Rollouts, times: float) -> None:
    # Where a group's deviation is not far above epsilon, epsilon counts; rewards here are 0.5 apart at least.
    assert_same(estimate(name, changed(drawn, times=times)), estimate(name, drawn), 1e-3, 1e-3)


@pytest.mark.parametrize("name", holding("scale", "linear"))
@given(drawn=rollouts(), times=st.floats(0.1, 100.0))
@EXAMPLES
def test_advantages_grow_with_the_rewards(name: str, drawn: Rollouts, times: float) -> None:
    expected = [row * times for row in estimate(name, drawn)]
    assert_same(estimate(name, changed(drawn, times=times)), expected, 1e-3, 1e-3)


@pytest.mark.parametrize("name", holding("shift", True))
@given(drawn=rollouts(smallest=2), plus=st.floats(-5, 5))
@EXAMPLES
def test_what_all_earn_does_not_matter(name: str, drawn: Rollouts, plus: float) -> None:
    assert_same(estimate(name, changed(drawn, plus=plus)), estimate(name, drawn), 1e-3, 1e-3)


@pytest.mark.parametrize("name", holding("equal", True))
@given(drawn=rollouts(smallest=2), reward=st.sampled_from([0.0, 0.1, 1.0, -3.0]))
@EXAMPLES
def test_equal_rewards_teach_nothing(name: str, drawn: Rollouts, reward: float) -> None:
    same = [[replace(each, reward=reward, answer="1") for each in members] for members in drawn]
    assert not torch.cat(estimate(name, same)).any()
    for place, factor in ((0, 1 - 2**-52), (-1, 1 + 2**-52)):  # the same up to rounding
        same[0][place] = replace(same[0][place], reward=reward * factor)
    assert not torch.cat(estimate(name, same)).any()


@pytest.mark.parametrize("name", list(LAWS))
@given(drawn=rollouts(), reward=st.sampled_from([1.0, -2.0, 0.0]))
@EXAMPLES
def test_a_rollout_without_companions(name: str, drawn: Rollouts, reward: float) -> None:
    alone = [[replace(drawn[0][0], reward=reward, trained=(True,) * 3)], *drawn[1:]]
    found = estimate(name, alone)[0]
    assert found.isfinite().all()
    if LAWS[name].alone:
        assert_same([found], [torch.full((3,), reward)])


@pytest.mark.parametrize("name", list(LAWS))
@given(drawn=rollouts(smallest=2))
@EXAMPLES
def test_a_higher_reward_never_has_a_smaller_advantage_in_its_group(name: str, drawn: Rollouts) -> None:
    whole = [[replace(each, trained=(True, True)) for each in members] for members in drawn]
    found = iter(estimate(name, whole))
    for members in whole:
        rows = [(each.reward, float(next(found)[-1])) for each in members]
        if "votes" in getattr(ALGORITHMS.get(name), "requires", frozenset()):
            continue
        for reward, advantage in rows:
            assert all(advantage >= other - 1e-5 for less, other in rows if less < reward)
