"""`--dry-run` ends with what keeps a run from starting, and an environment's own tasks are counted where that is quick."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from typer.testing import CliRunner

from skill_ttrl.cli.main import app
from skill_ttrl.config import load_config
from skill_ttrl.stages.doctor.dry_run import DryRun, PhaseSize, dry_run

HOUSE = """
import gymnasium
from skill_ttrl.envs.text_env import TextEnv
from skill_ttrl.types import Task


class House(TextEnv):
    '''A door.'''

    def __init__(self, slow: bool = False) -> None:
        super().__init__()

    @classmethod
    def prepare(cls, progress, slow: bool = False) -> None:
        if slow:
            progress(1, 9000)
            raise AssertionError("went on")

    def tasks(self, split=None):
        count = {"train": 6, "test": 4}[split or "train"]
        return [Task(f"{split}-{n}", "House-v0", options={"question": f"{split} {n}"}, split=split) for n in range(count)]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "A door.", {"won": False}

    def step(self, action):
        return "Open.", 1.0, True, False, {"won": True}


gymnasium.register("House-v0", entry_point=House)
"""
OWN = ["data.train=null", "data.eval=null", "env.id=preflight_house:House-v0"]


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "preflight_house.py").write_text(HOUSE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    gymnasium.registry.pop("House-v0", None)
    sys.modules.pop("preflight_house", None)


def planned(path: Path, *overrides: str) -> DryRun:
    return dry_run(load_config(path, overrides))


@pytest.mark.usefixtures("house")
def test_tasks_of_an_environment_are_counted_where_that_is_quick(tiny_yaml: Path) -> None:
    found = planned(tiny_yaml, *OWN)
    assert found.exit_code == 0, found.obstacles
    assert (found.train_tasks, found.phases[-1]) == (6, PhaseSize("evaluate", prompts=4, samples=12))
    few = planned(tiny_yaml, *OWN, "rl.prompts_per_step=7")
    assert few.exit_code == 2 and "training tasks is 6" in few.obstacles[0]


@pytest.mark.usefixtures("house")
def test_where_counting_takes_long_that_is_said_and_not_done(tiny_yaml: Path) -> None:
    slow = [*OWN, "env.kwargs.slow=true"]
    found = planned(tiny_yaml, *slow)
    assert found.exit_code == 0 and found.phases[-1] == PhaseSize("evaluate") and found.train_tasks is None
    assert any("9,000" in text for text in found.notes)
    said = planned(tiny_yaml, *slow, "env.train_tasks=5", "env.eval_tasks=3")
    assert not any("not known" in text for text in said.notes)


def test_every_refusal_is_printed_and_no_size(tiny_yaml: Path) -> None:
    asked = ["requires=the moon", "rl.prompts_per_step=7"]
    done = CliRunner().invoke(
        app, ["train", str(tiny_yaml), "--dry-run", *(w for each in asked for w in ("--set", each))]
    )
    shown = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2 and "prompts" not in shown.replace("prompts_per_step", "")
    assert all(f"Cannot start: {part}" in shown for part in ("The config", "rl.prompts_per_step is 7"))


def test_the_sizes_of_each_phase_are_stated() -> None:
    found = dry_run(load_config("quickstart"))
    assert (found.train_tasks, found.evaluated_tasks, found.exit_code) == (256, 128, 0)
    assert found.phases[:2] == [PhaseSize("sft", 500, 64, 32_000), PhaseSize("rl", 20, 32, 20_480)]
    assert "of them trainable" in found.model
