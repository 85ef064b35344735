"""A part of the tasks that stands for all: every type is among them, in their order, always the same ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import load_config
from skill_ttrl.envs import env_tasks
from skill_ttrl.envs.lookup import spread
from skill_ttrl.train.tasks import ConfigTasks
from skill_ttrl.types import Task
from tests.doors import DOORS

KINDS = st.lists(st.sampled_from(["clean", "heat", "pick", ""]), min_size=1, max_size=40)


def of_types(kinds: list[str]) -> list[Task]:
    return [Task(str(number), DOORS, task_type=kind) for number, kind in enumerate(kinds)]


@given(KINDS, st.integers(1, 50))
def test_every_type_is_among_them_wherever_there_is_room_and_none_has_more_than_its_share(
    kinds: list[str], count: int
) -> None:
    tasks = of_types(kinds)
    found = spread(tasks, count)
    assert len(found) == min(count, len(tasks)) == len({task.id for task in found})
    assert found == [task for task in tasks if task in found], "their order"
    all_of, taken = Counter(kinds), Counter(task.task_type for task in found)
    assert len(taken) == min(count, len(all_of))
    for kind, many in all_of.items():
        assert taken[kind] <= many * count / len(tasks) + 1 or taken[kind] == 1


def test_tasks_of_one_type_are_taken_at_even_distances() -> None:
    assert [task.id for task in spread(of_types(["pick"] * 100), 4)] == ["0", "25", "50", "75"]


def test_types_that_take_turns_are_not_passed_over() -> None:
    """Every second task would be of one type only."""
    assert Counter(task.task_type for task in spread(of_types(["heat", "cool"] * 15), 10)) == {"heat": 5, "cool": 5}


def test_a_limit_of_an_environments_tasks_is_spread() -> None:
    assert [task.id for task in env_tasks(DOORS, {}, "train", 4)] == ["train/0", "train/1", "train/14", "train/15"]


def test_a_run_trains_on_so_many_tasks_and_is_measured_on_so_many(tmp_path: Path) -> None:
    own = {"env": {"id": DOORS, "train_split": "train", "eval_split": "test", "train_tasks": 6, "eval_tasks": 2}}
    config = load_config(own)
    tasks = ConfigTasks(config).training()
    assert len(tasks) == 6 and Counter(task.task_type for task in tasks) == {"left": 3, "right": 3}
    assert len(ConfigTasks(config).evaluated()) == 2


ADD, OWN = {"path": "synthetic:add"}, {"path": "own.jsonl"}


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"train": OWN, "eval": ADD}, ("own.jsonl", "synthetic:add (test)")),
        (
            {"train": ADD, "eval": {"path": "synthetic:multiply"}},
            ("synthetic:add (train)", "synthetic:multiply (test)"),
        ),
        ({"train": ADD, "eval": ADD}, ("synthetic:add (train)", "synthetic:add (test)")),
        ({"train": OWN, "eval": {"path": "test.jsonl"}}, ("own.jsonl", "test.jsonl")),
        ({"train": OWN}, ("own.jsonl", "own.jsonl")),
        ({}, ("math (train)", "math (test)")),
    ],
)
def test_what_is_trained_on_and_measured_on_has_a_name(data: dict[str, Any], names: tuple[str, str]) -> None:
    config = load_config({"env": {"id": "math"}, "data": data})
    assert ConfigTasks(config).names == names
