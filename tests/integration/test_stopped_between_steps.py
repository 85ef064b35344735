"""Runs that end between two steps: what was done is saved, and the resumed run has the bytes of one that was never stopped."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.errors import RunFolderError, WeightSyncError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.signals import Interrupted

pytestmark = pytest.mark.slow

REFUSING = '''
from pathlib import Path

from skill_ttrl.errors import WeightSyncError
from skill_ttrl.llm.hf import HFBackend


class Refusing(HFBackend):
    """Takes every version but the third, as long as the file `refuse` is there."""

    def __init__(self, context):
        super().__init__(context.loaded.model, context.loaded.tokenizer)

    def update_weights(self, policy_version):
        if policy_version == 3 and Path("refuse").exists():
            raise WeightSyncError("old weights")
        super().update_weights(policy_version)
'''


class StopIn(SilentProgress):
    """Sends the process a signal when a phase begins."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        if phase == self.phase:
            os.kill(os.getpid(), signal.SIGTERM)


def check_same(one: Path, other: Path) -> None:
    for name in ("metrics.jsonl", "votes.jsonl", "trajectories.jsonl", "evaluations.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_a_signal_in_an_evaluation(tiny_yaml: Path, tmp_path: Path) -> None:
    settings = ["phases=[rl]", "rl.steps=3", "rl.save_steps=3", "rl.eval_steps=2", "rl.reward=random"]
    config = load_config(tiny_yaml, settings)
    train.run(config, tmp_path / "whole")
    with pytest.raises(Interrupted, match="after rl step 2; saved in"):
        train.run(config, tmp_path / "stopped", progress=StopIn("evaluate step 2"))
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir()] == ["rl-000002"]
    train.run(config, tmp_path / "stopped", resume="auto")
    check_same(tmp_path / "stopped", tmp_path / "whole")


def test_a_sampler_that_does_not_take_the_weights(
    tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "refusing_backend", raising=False)
    Path("refusing_backend.py").write_text(REFUSING)
    settings = ["rollout.backend=refusing_backend:Refusing", "rl.steps=4", "rl.save_steps=10", "rl.eval_steps=2"]
    config = load_config(tiny_yaml, settings)
    train.run(config, "whole")
    Path("refuse").touch()
    with pytest.raises(WeightSyncError, match="old weights"):
        train.run(config, "stopped")
    assert (Path("stopped") / "checkpoints" / "rl-000003").is_dir()
    Path("refuse").unlink()
    train.run(config, "stopped", resume="auto")
    check_same(Path("stopped"), Path("whole"))


def test_more_steps_on_resume(tiny_yaml: Path, tmp_path: Path) -> None:
    settings = ["phases=[rl]", "rl.reward=random", "rl.lr_scheduler=constant", "rl.warmup_steps=1", "rl.eval_steps=2"]
    train.run(load_config(tiny_yaml, settings), tmp_path / "short")
    longer = load_config(tiny_yaml, [*settings, "rl.steps=4"])
    train.run(longer, tmp_path / "short", resume="auto")
    train.run(longer, tmp_path / "long")
    check_same(tmp_path / "short", tmp_path / "long")
    models = [tmp_path / name / "checkpoints" / "rl-000004" / "model.safetensors" for name in ("short", "long")]
    assert models[0].read_bytes() == models[1].read_bytes()
    with RunFolder.open(tmp_path / "short") as folder:
        assert folder.config.rl.steps == 4
    with pytest.raises(RunFolderError, match=r"rl\.steps 4 there, 2 here"):
        train.run(load_config(tiny_yaml, settings), tmp_path / "short", resume="auto")
