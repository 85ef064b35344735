"""Runs whose rollouts are sampled by a real Ray cluster of three nodes: the same bytes as one process, whoever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import ScaleConfig, SkillTTRLConfig, load_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.signals import Interrupted
from tests.integration.test_async_run import REPEATABLE
from tests.integration.test_dagger_run import RUN as DAGGER
from tests.integration.test_episode_run import CONFIG as EPISODES

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

ALONE = ["rollout.prompts_per_batch=1", "rl.steps=2"]


class Heard(SilentProgress):
    """Remembers warnings, and acts when so many steps are done."""

    def __init__(self, act: Callable[[], object] = lambda: None, at: int = 1) -> None:
        self.notices: list[str] = []
        self._act, self._at = act, at

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        if phase == "grpo" and done == self._at:
            self._act()

    def notice(self, text: str, *, warning: bool = False) -> None:
        if warning:
            self.notices.append(text)


def on(scale: ScaleConfig) -> list[str]:
    return [f"scale.address={scale.address}"]


def content(run: Path) -> dict[str, bytes]:
    """Everything that a run wrote of its rollouts, votes, bank, measurements and weights."""
    names = ("metrics", "trajectories", "votes", "evaluations", "gate", "dagger", "bank/log")
    files = [run / f"{name}.jsonl" for name in names] + sorted(run.glob("checkpoints/*/model.safetensors"))
    return {str(path.relative_to(run)): path.read_bytes() for path in files if path.exists()}


def both(tmp_path: Path, config: Any, settings: Sequence[str], scale: ScaleConfig) -> tuple[Path, Heard]:
    """Run it here and on the cluster, and see that there is no difference."""
    train.run(load_config(config, settings), tmp_path / "here")
    heard = Heard()
    train.run(load_config(config, [*settings, *on(scale)]), tmp_path / "there", progress=heard)
    here, there = content(tmp_path / "here"), content(tmp_path / "there")
    assert here.keys() == there.keys()
    assert [name for name in here if here[name] != there[name]] == []
    return tmp_path / "there", heard


@pytest.mark.parametrize(
    "settings",
    [["rl.algorithm={type: remax}"], ["rl.dynamic_sampling=2"], [*REPEATABLE, "rl.save_steps=2"]],
    ids=["greedy", "rounds", "ahead"],
)
def test_a_run_on_answers_has_the_same_bytes(
    tmp_path: Path, tiny_yaml: Path, scale: ScaleConfig, settings: list[str]
) -> None:
    both(tmp_path, tiny_yaml, [*ALONE, *settings], scale)


@pytest.mark.parametrize(
    "settings",
    [
        ["skills.retrieval=hybrid"],
        ["skills.gate={data: {path: 'synthetic:operators', split: train}, tasks: 2, rollouts_per_task: 1}"],
    ],
    ids=["bank", "gate"],
)
def test_a_run_with_a_bank_has_the_same_bytes(
    tmp_path: Path, tiny_skills_yaml: Path, scale: ScaleConfig, settings: list[str]
) -> None:
    run, _ = both(tmp_path, tiny_skills_yaml, [*ALONE, *settings], scale)
    assert (run / "bank").is_dir()


@pytest.mark.parametrize("config", [EPISODES, DAGGER], ids=["episodes", "dagger"])
def test_a_run_in_an_environment_has_the_same_bytes(tmp_path: Path, scale: ScaleConfig, config: Any) -> None:
    both(tmp_path, config, ["rollout.prompts_per_batch=2"], scale)


def test_a_node_that_dies_in_a_step_changes_nothing(tmp_path: Path, cluster: Any, scale: ScaleConfig) -> None:
    settings = ["rollout.prompts_per_batch=1", "rl.steps=14", "env.kwargs={pause: 0.1}"]
    train.run(load_config(EPISODES, settings), tmp_path / "here")
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    heard = Heard(lambda: cluster.remove_node(doomed, allow_graceful=False), at=10)
    train.run(load_config(EPISODES, [*settings, *on(scale)]), tmp_path / "there", progress=heard)
    assert content(tmp_path / "here") == content(tmp_path / "there")
    assert any(" died: " in text for text in heard.notices), heard.notices


@pytest.mark.parametrize("resumed_there", [True, False])
def test_a_run_that_was_stopped_goes_on_anywhere(
    tmp_path: Path, tiny_yaml: Path, scale: ScaleConfig, resumed_there: bool
) -> None:
    """Stopped on the cluster after a step; gone on with there, or in one process."""
    settings = [*ALONE, "rl.steps=4"]
    train.run(load_config(tiny_yaml, settings), tmp_path / "here")
    shared = load_config(tiny_yaml, [*settings, *on(scale)])
    with pytest.raises(Interrupted):
        train.run(shared, tmp_path / "there", progress=Heard(lambda: os.kill(os.getpid(), signal.SIGTERM)))
    rest: SkillTTRLConfig = shared if resumed_there else load_config(tiny_yaml, settings)
    train.run(rest, tmp_path / "there", resume="auto")
    assert content(tmp_path / "here") == content(tmp_path / "there")
