"""Tasks of environments: how one is found by its id."""

from __future__ import annotations

import pytest

from skill_ttrl.envs.tasks import find_task
from skill_ttrl.errors import EnvError
from skill_ttrl.types import Task
from tests.doors import DOORS, Doors


class Streets(Doors):
    splits = ("train", "test")

    def tasks(self, split: str | None = None) -> list[Task]:
        return [Task(f"door-{end}", DOORS) for end in (("1", "2") if split == "test" else ("10", "11"))]


def test_a_whole_id_in_any_split_is_found_before_a_part_of_others() -> None:
    for name, found in (("door-1", "door-1"), ("door-11", "door-11"), ("-2", "door-2")):
        assert find_task(Streets(), DOORS, name=name).id == found
    with pytest.raises(EnvError, match="4 tasks have 'door' in the id"):
        find_task(Streets(), DOORS, name="door")
