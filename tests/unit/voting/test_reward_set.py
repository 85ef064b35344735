"""Several rewards at once, and the vote as it bears on a rollout that did not take part."""

from __future__ import annotations

import pytest

from skill_ttrl.types import Group, Task, Trajectory, VoteResult
from skill_ttrl.voting import Ballot, vote
from skill_ttrl.voting.rewards import RewardSet, format_reward, late_vote, majority_reward

ANSWERS = ["1/2", "0.5", None, "3"]


def group(*answers: str | None) -> Group:
    task = Task("t", "e")
    return Group(task, tuple(Trajectory(task, (), answer, "terminated") for answer in answers))


def test_several_are_added_up_by_weight_and_stay_side_by_side() -> None:
    found = vote("majority", Ballot(tuple(ANSWERS)))
    rewards = RewardSet({"majority": majority_reward, "format": format_reward}, {"format": 0.5})
    rewarded = rewards(group(*ANSWERS), found, 0).trajectories
    assert [each.reward for each in rewarded] == [1.5, 1.5, 0.0, 0.5]
    assert rewarded[0].rewards == {"majority": 1.0, "format": 1.0} and rewarded[3].rewards == {
        "majority": 0.0,
        "format": 1.0,
    }


@pytest.mark.parametrize(("late", "match"), [("0.50", True), ("3", False), ("7", False), (None, False)])
def test_a_late_answer_is_rewarded_as_the_samples_that_gave_the_same(late: str | None, match: bool) -> None:
    found = late_vote(vote("majority", Ballot(tuple(ANSWERS))), ANSWERS, late)
    assert isinstance(found, VoteResult) and found.matches == (match,) and found.sample_rewards == (float(match),)
    assert found.answer == "1/2"


def test_a_late_answer_has_the_soft_reward_of_its_class() -> None:
    held = vote("soft", Ballot(tuple(ANSWERS)))
    assert late_vote(held, ANSWERS, "3").sample_rewards == held.sample_rewards[3:]
    assert 0 < late_vote(held, ANSWERS, "3").sample_rewards[0] < late_vote(held, ANSWERS, "1/2").sample_rewards[0]
    assert late_vote(held, ANSWERS, "7").sample_rewards == (0.0,)
