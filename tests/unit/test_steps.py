"""Which tasks a step takes, how a run is asked to stop, and runs of no steps."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, DataError
from skill_ttrl.runs.interrupt import Interrupted, StopSignal
from skill_ttrl.stages import train
from skill_ttrl.stages.rl import step_tasks
from skill_ttrl.stages.trainer import SkillTTRLTrainer
from skill_ttrl.types import Task


@given(count=st.integers(1, 8), extra=st.integers(0, 20), seed=st.integers(0, 3))
def test_a_step_has_different_tasks_and_an_epoch_repeats_none(count: int, extra: int, seed: int) -> None:
    tasks = [Task(f"t{number}", "env") for number in range(count + extra)]
    steps = len(tasks) // count
    for epoch in range(2):
        taken = [task.id for step in range(steps) for task in step_tasks(tasks, count, epoch * steps + step, seed)]
        assert len(set(taken)) == len(taken) == steps * count


def test_more_prompts_than_tasks_are_refused_before_anything_is_trained(tiny_yaml: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prompts_per_step is 7, but there are 6 tasks"):
        train.run(load_config(tiny_yaml, ["rl.prompts_per_step=7"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_no_steps_measures_and_ends(tiny_yaml: Path, tmp_path: Path) -> None:
    summary = train.run(load_config(tiny_yaml, ["phases=[rl]", "rl.steps=0"]), tmp_path / "run")
    assert summary.steps == {"rl": 0} and summary.accuracy_before == summary.accuracy_after


def test_a_signal_ends_an_evaluation_where_it_stands() -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM, "outside an evaluation it is remembered"
        with pytest.raises(Interrupted), stop.leaving_at_once("measuring"):
            pytest.fail("a signal that came before must not start it")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with (
        StopSignal() as stop,
        pytest.raises(Interrupted, match="measuring") as caught,
        stop.leaving_at_once("measuring"),
    ):
        time.sleep(30)
    assert caught.value.exit_code == 128 + signal.SIGINT


def test_records_in_memory_are_kept_beside_the_run_and_pinned(tiny_yaml: Path, tmp_path: Path) -> None:
    records = [{"prompt": f"Compute {a}+21.", "answer": str(a + 21)} for a in range(10, 16)]
    trainer = SkillTTRLTrainer(load_config(tiny_yaml, ["sft.steps=4"]), tmp_path / "run")
    trainer.train(records)
    assert len((tmp_path / "run-data" / "train.jsonl").read_text().splitlines()) == 6
    with pytest.raises(DataError, match="is not the file this run was made with"):
        trainer.train(records[:5], resume="auto")
