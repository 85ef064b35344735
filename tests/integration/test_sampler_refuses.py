"""A sampler that does not take the learner's weights ends the run, and the step that led to them is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import WeightSyncError
from skill_ttrl.stages import train

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


@pytest.mark.slow
def test_the_step_before_a_refusal_is_saved_and_gone_on_from(
    tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "refusing_backend", raising=False)
    Path("refusing_backend.py").write_text(REFUSING)
    settings = ["rollout.backend=refusing_backend:Refusing", "rl.steps=4", "rl.save_steps=10"]
    config = load_config(tiny_yaml, [*settings, "rl.eval_steps=2"])
    train.run(config, "whole")
    Path("refuse").touch()
    with pytest.raises(WeightSyncError, match="old weights"):
        train.run(config, "stopped")
    assert (Path("stopped") / "checkpoints" / "rl-000003").is_dir()
    Path("refuse").unlink()
    train.run(config, "stopped", resume="auto")
    for name in ("metrics.jsonl", "votes.jsonl", "trajectories.jsonl", "evaluations.jsonl"):
        assert (Path("stopped") / name).read_bytes() == (Path("whole") / name).read_bytes(), name
