"""Evolution of a run's skills is made from its training tasks and its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from skill_ttrl.config import SkillsConfig, load_config
from skill_ttrl.errors import CheckpointError, ConfigError
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.stages.training.bank_changes import make_evolver
from skill_ttrl.stages.training.run_bank import RunBank
from skill_ttrl.types import Group, Step, Task, Trajectory


def lost(name: str, split: str) -> Group:
    task = Task(name, "env", split=split)
    step = Step("a room", "go", 0.0, False, False, info={"won": False})
    return Group(task, (Trajectory(task, (step,), None, "max_turns"),))


def bench(tasks: Sequence[Task]) -> Any:
    bank = RunBank(SkillsConfig(), SkillBank(index="memory"))
    config = load_config({"skills": {}, "evolve": {}})
    return SimpleNamespace(config=config, bank=bank, train_tasks=tasks)


@pytest.mark.parametrize("damaged", [[], {"counts": 3}, {"failures": {"clean": [[1, {"won": "?"}]]}}, {"retired": 3}])
def test_a_damaged_checkpoint_is_said(damaged: object) -> None:
    with pytest.raises(CheckpointError, match="damaged"):
        make_evolver(bench([Task("train/1", "env")]), {"evolve": damaged})


def test_a_run_learns_from_the_very_tasks_that_it_trains_on() -> None:
    evolver = make_evolver(bench([Task("a/1", "env", split="mine")]), {})
    assert evolver is not None
    evolver.tracker.add([lost("a/1", "mine")], 0)
    for foreign in (lost("a/2", "mine"), lost("a/1", "train")):
        with pytest.raises(ConfigError):
            evolver.tracker.add([foreign], 1)
