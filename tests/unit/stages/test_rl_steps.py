"""Which tasks a step takes, how a run is asked to stop, and runs of no steps."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.compat.trainer import SkillTTRLTrainer
from skill_ttrl.config import load_config
from skill_ttrl.envs.math.env import MathEnv
from skill_ttrl.errors import ConfigError, DataError, EnvError
from skill_ttrl.runs.reader import read_run
from skill_ttrl.signals import Interrupted, StopSignal
from skill_ttrl.stages import evaluate, train
from skill_ttrl.stages.training.sampling import select_training_samples, step_tasks
from skill_ttrl.types import Group, Task, Trajectory
from skill_ttrl.voting import majority_vote


@given(count=st.integers(1, 8), extra=st.integers(0, 20), seed=st.integers(0, 3))
def test_a_step_has_different_tasks_and_an_epoch_repeats_none(count: int, extra: int, seed: int) -> None:
    tasks = [Task(f"t{number}", "env") for number in range(count + extra)]
    steps = len(tasks) // count
    for epoch in range(2):
        taken = [task.id for step in range(steps) for task in step_tasks(tasks, count, epoch * steps + step, seed)]
        assert len(set(taken)) == len(taken) == steps * count


def test_more_prompts_than_tasks_are_refused_before_anything_is_trained(tiny_yaml: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prompts_per_step is 7, but there are only 6"):
        train.run(load_config(tiny_yaml, ["rl.prompts_per_step=7"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


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
    with (
        StopSignal() as stop,
        pytest.raises(Interrupted, match="measuring") as caught,
        stop.interruptible("measuring"),
    ):
        time.sleep(30)
    assert caught.value.exit_code == 128 + signal.SIGINT


def test_records_in_memory_are_kept_beside_the_run_and_pinned(tiny_yaml: Path, tmp_path: Path) -> None:
    records = [{"prompt": f"Compute {a}+21.", "answer": str(a + 21)} for a in range(10, 16)]
    trainer = SkillTTRLTrainer(load_config(tiny_yaml, ["sft.steps=4"]), tmp_path / "run")
    trainer.train(records)
    assert len((tmp_path / "run-data" / "train.jsonl").read_text().splitlines()) == 6
    with pytest.raises(DataError, match="has changed since this run started"):
        trainer.train(records[:5], resume="auto")


def test_with_adapters_too_the_reference_is_the_cold_starts_policy(tiny_yaml: Path, tmp_path: Path) -> None:
    train.run(load_config(tiny_yaml, ["phases=[sft]"]), tmp_path / "base")
    adapters = [
        f"model={{path: {tmp_path}/base/checkpoints/sft-000012, lora: {{r: 4}}}}",
        "sft.optimizer=adamw",
        "sft.learning_rate=0.03",
        "rl.kl_coef=0.1",
        "rl.reward=random",
        "rl.learning_rate=0.01",
    ]
    train.run(load_config(tiny_yaml, adapters), tmp_path / "adapted")
    metrics = read_run(tmp_path / "adapted").metrics
    first, second = metrics[metrics["phase"] == "rl"]["kl"].tolist()
    assert abs(first) < 1e-6 < second


def test_an_environment_that_fails_in_every_try_is_no_measurement(tiny_yaml: Path, tmp_path: Path) -> None:
    config = load_config(tiny_yaml, ["phases=[sft]", "env.id=SkillTTRL/Broken-v0", "sft.steps=1"])
    gymnasium.register("SkillTTRL/Broken-v0", entry_point=lambda **kwargs: Broken(**kwargs))
    try:
        with pytest.raises(EnvError, match="All 8 rollouts failed in SkillTTRL/Broken-v0"):
            train.run(config, tmp_path / "run")
    finally:
        del gymnasium.registry["SkillTTRL/Broken-v0"]


class Broken(MathEnv):
    """Stands the look before the run, and fails in the tasks that carry an answer: those of an evaluation."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        if options and options.get("ground_truth"):
            raise OSError("unknown option")
        return super().reset(seed=seed, options=options)


def test_a_reward_that_cannot_be_had_is_refused_before_the_cold_start(tiny_yaml: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot grade without true answers"):
        train.run(load_config(tiny_yaml, ["rl.reward=env"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tries_that_failed_in_their_environment_vote_for_nothing_and_are_not_learned_from() -> None:
    task = Task("t", "env")
    tries = [Trajectory(task, (), str(number % 2), "terminated", 1.0) for number in range(5)]
    tries[1] = Trajectory(task, (), None, "error", 0.0, error="OSError: gone")
    config = load_config({"rollout": {"n_votes_per_prompt": 5, "n_samples_per_prompt": 5}})
    group, vote = Group(task, tuple(tries)), majority_vote(["0", None, "0", "1", "0"])
    ((kept, held),) = select_training_samples([group], [vote], config, step=0)
    assert kept.trajectories == (tries[0], *tries[2:]) and held.matches == (True, True, False, True)

    fewer = load_config({"rollout": {"n_votes_per_prompt": 5, "n_samples_per_prompt": 3}})
    ((drawn, held),) = select_training_samples([group], [vote], fewer, step=0)
    assert len(drawn.trajectories) == len(held.matches) == 3 and tries[1] not in drawn.trajectories
    assert select_training_samples([group], [vote], fewer, step=0) == [(drawn, held)]


def test_an_evaluation_refuses_a_file_that_is_not_the_runs(tiny_yaml: Path, tmp_path: Path) -> None:
    problems = tmp_path / "held.jsonl"
    problems.write_text('{"prompt": "Compute 50+21.", "answer": "71"}\n')
    settings = [f"data.eval={{path: {problems}}}", "sft.steps=2", "phases=[sft]"]
    train.run(load_config(tiny_yaml, settings), tmp_path / "run")
    assert evaluate.run(tmp_path / "run").problems == 1
    problems.write_text('{"prompt": "Compute 50+22.", "answer": "72"}\n')
    with pytest.raises(DataError, match="has changed since this run started"):
        evaluate.run(tmp_path / "run")
