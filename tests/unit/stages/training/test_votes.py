"""Training samples of two wordings, and how a paraphrase is read."""

from __future__ import annotations

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.stages.training.paraphrase import reworded
from skill_ttrl.stages.training.sampling import select_training_samples
from skill_ttrl.types import Group, Task, Trajectory
from skill_ttrl.voting import Ballot, vote


@pytest.mark.parametrize(("samples", "of_each"), [(4, [2, 2]), (3, [1, 2]), (8, [4, 3])])
def test_of_two_wordings_half_are_learned_from_each(samples: int, of_each: list[int]) -> None:
    """Five tries at the question, three at its paraphrase; what one wording lacks the other does not make up for."""
    task = Task("t", "Env-v0")
    tries = tuple(Trajectory(task, (), str(place), "terminated", 1.0, prompt_variant=place // 5) for place in range(8))
    config = load_config({"rollout": {"n_votes_per_prompt": 8, "n_samples_per_prompt": samples}})
    held = vote("majority", Ballot(tuple(str(place) for place in range(8))))
    ((kept, cast),) = select_training_samples([Group(task, tries)], [held], config, step=0)
    views = [trajectory.prompt_variant for trajectory in kept.trajectories]
    assert [views.count(0), views.count(1)] == of_each
    assert list(cast.matches) == [answer == held.answer for answer in kept.answers]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("<question> Find 1+1. </question>", "Find 1+1."),
        ("Sure! <question>a</question> or <question>b</question> bye", "b"),
        ("  Find 1+1.\n", "Find 1+1."),
        ("<question>never closed", "<question>never closed"),
        ("<question> </question>", ""),
        ("", ""),
    ],
)
def test_the_question_in_a_paraphrase(text: str, question: str) -> None:
    assert reworded(text) == question
