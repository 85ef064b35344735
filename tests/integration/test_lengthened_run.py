"""A run that is lengthened ends with the bytes of one that was that long from the start; where it would not, it says the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.errors import RunFolderError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.stages import train

SETTINGS = ["phases=[rl]", "rl.reward=random", "rl.lr_scheduler=constant", "rl.warmup_steps=1", "rl.eval_steps=2"]


@pytest.mark.slow
def test_more_steps_on_resume_are_the_same_as_from_the_start(tiny_yaml: Path, tmp_path: Path) -> None:
    train.run(load_config(tiny_yaml, SETTINGS), tmp_path / "short")
    longer = load_config(tiny_yaml, [*SETTINGS, "rl.steps=4"])
    train.run(longer, tmp_path / "short", resume="auto")
    train.run(longer, tmp_path / "long")
    for name in ("metrics.jsonl", "trajectories.jsonl", "votes.jsonl", "evaluations.jsonl"):
        assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "long" / name).read_bytes(), name
    models = [tmp_path / name / "checkpoints" / "rl-000004" / "model.safetensors" for name in ("short", "long")]
    assert models[0].read_bytes() == models[1].read_bytes()
    with RunFolder.open(tmp_path / "short") as folder:
        assert folder.config.rl.steps == 4
    with pytest.raises(RunFolderError, match=r"rl\.steps 4 there, 2 here"):
        train.run(load_config(tiny_yaml, SETTINGS), tmp_path / "short", resume="auto")
