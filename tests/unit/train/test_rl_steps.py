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

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.signals import Interrupted, StopSignal
from skill_ttrl.train.rl import select_training_samples
from skill_ttrl.train.state import step_tasks
from skill_ttrl.types import Group, Task, Trajectory
from skill_ttrl.voting import majority_vote


@given(count=st.integers(1, 8), extra=st.integers(0, 20), seed=st.integers(0, 3))
def test_a_step_has_different_tasks_and_an_epoch_repeats_none(count: int, extra: int, seed: int) -> None:
    tasks = [Task(f"t{number}", "env") for number in range(count + extra)]
    steps = len(tasks) // count
    for epoch in range(2):
        taken = [task.id for step in range(steps) for task in step_tasks(tasks, count, epoch * steps + step, seed)]
        assert len(set(taken)) == len(taken) == steps * count


def test_a_run_of_no_steps_measures_and_ends(tiny_yaml: Path, tmp_path: Path) -> None:
    summary = train.run(load_config(tiny_yaml, ["phases=[rl]", "rl.steps=0"]), tmp_path / "run")
    assert summary.steps == {"rl": 0} and summary.accuracy_before == summary.accuracy_after


def test_a_signal_ends_an_evaluation_where_it_stands() -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM, "outside an evaluation it is remembered"
        with pytest.raises(Interrupted), stop.interruptible("measuring"):
            pytest.fail("a signal that came before must not start it")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with StopSignal() as stop, pytest.raises(Interrupted, match="measuring") as caught, stop.interruptible("measuring"):
        time.sleep(30)
    assert caught.value.exit_code == 128 + signal.SIGINT


def test_tries_that_failed_in_their_environment_vote_for_nothing_and_are_not_learned_from() -> None:
    task = Task("t", "env")
    tries = [Trajectory(task, (), str(number % 2), "terminated", 1.0) for number in range(5)]
    tries[1] = Trajectory(task, (), None, "error", 0.0, error="OSError: gone")
    group, vote = Group(task, tuple(tries)), majority_vote(["0", None, "0", "1", "0"])
    ((kept, held),) = select_training_samples([group], [vote], 5, seed=0)
    assert kept.trajectories == (tries[0], *tries[2:]) and held.matches == (True, True, False, True)

    ((drawn, held),) = select_training_samples([group], [vote], 3, seed=0)
    assert len(drawn.trajectories) == len(held.matches) == 3 and tries[1] not in drawn.trajectories
    assert select_training_samples([group], [vote], 3, seed=0) == [(drawn, held)]
