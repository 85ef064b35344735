"""Groups of rollouts with given answers, and how they voted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from skill_ttrl.rl.algorithms import TrainingSamples
from skill_ttrl.rl.batch import pack
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory
from skill_ttrl.voting import batch_majority_vote

Samples = Callable[..., TrainingSamples]


@pytest.fixture
def voted() -> Samples:
    """Samples of one prompt that gave these answers (None: none); the first `trained` of them are trained on.

    The tokens of sample i are `tokens[i]`.
    """

    def make(
        answers: Sequence[str | None],
        trained: int | None = None,
        tokens: Sequence[Sequence[int]] | None = None,
    ) -> TrainingSamples:
        task = Task("t", "e")
        written = tokens or [(1, 2, 3)] * len(answers)
        tries = []
        for answer, ids in zip(answers, written, strict=True):
            done = Completion("", tuple(ids), (-1.0,) * len(ids), "stop")
            tries.append(Trajectory(task, (Step("", "", 0.0, True, False, (7,), done),), answer, "terminated"))
        (vote,) = batch_majority_vote([answers])
        voters = Group(task, tuple(tries)).with_rewards(list(vote.sample_rewards))
        places = list(range(len(answers) if trained is None else trained))
        groups = [voters.select(places)]
        return TrainingSamples(groups, [vote.select(places)], 0.0, pack(groups))

    return make
