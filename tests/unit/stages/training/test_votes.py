"""Training samples in rounds and of two wordings, and how a paraphrase is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.stages.training.sampling import select_training_samples
from skill_ttrl.stages.training.votes import in_rounds, reworded
from skill_ttrl.types import Group, Task, Trajectory
from skill_ttrl.voting import Ballot, vote
from skill_ttrl.voting.strategies import SequentialTest


def test_a_decided_prompt_is_not_sampled_further() -> None:
    """`sure` is decided after four samples, `late` after eight, `split` never; all of a task's rounds are of the same episode."""
    says: dict[str, list[str | None]] = {"split": [*"abcd"] * 4, "sure": [*"aaaa"], "late": [*"aabaaaaa"]}
    rounds: list[tuple[int, list[tuple[str, int | None]]]] = []

    def rollout_fn(n: int) -> Any:
        def roll_out(tasks: Sequence[Task], bank: None, seed: int, on_rollout_end: Any) -> list[Group]:
            rounds.append((seed, [(task.id, task.seed) for task in tasks]))
            given = {task.id: [says[task.id].pop(0) for _ in range(n)] for task in tasks}
            tries = {task.id: [Trajectory(task, (), each, "terminated") for each in given[task.id]] for task in tasks}
            return [Group(task, tuple(tries[task.id])) for task in tasks]

        return roll_out

    tasks = [Task("split", "Env-v0"), Task("sure", "Env-v0", seed=7), Task("late", "Env-v0")]
    found = in_rounds(rollout_fn, 16, SequentialTest(first=4))(tasks, None, 3)
    assert [(group.task, len(group.answers)) for group in found] == list(zip(tasks, (16, 4, 8), strict=True))
    assert [[name for name, _ in asked] for _, asked in rounds] == [
        ["split", "sure", "late"],
        ["split", "late"],
        ["split"],
    ]
    assert len({seed for seed, _ in rounds} | {3}) == 4
    assert len({given for _, asked in rounds for given in asked}) == 3 and ("sure", 7) in rounds[0][1]


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
