"""Training samples in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skill_ttrl.train.state import in_rounds
from skill_ttrl.types import Group, Task, Trajectory
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
