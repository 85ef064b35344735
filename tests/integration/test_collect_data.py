"""`collect.data`: demonstrations of several catalogues, for a run that learns and is measured on its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.errors import DataError
from skill_ttrl.stages.train import run

TINY = [
    "phases=[collect,sft]", "env.kwargs.data=generated", "collect.data=null", "collect.episodes=6", "sft.steps=2",
    "sft.save_steps=2", "sft.warmup_steps=1",
]  # fmt: skip
TINY += ["env.eval_tasks=2", "eval.controls=[]", "runtime.threads=1"]


@pytest.mark.slow
def test_a_run_imitates_episodes_of_each_of_its_data(tmp_path: Path) -> None:
    run(load_config("webshop_official", [*TINY, "collect.data=[generated,'generated:1500']"]), tmp_path / "run")
    own, further = ([*read_episodes(tmp_path / "run" / f"collected{end}.jsonl")] for end in ("", "-2"))
    assert len(own) == len(further) == 6
    assert {episode.task.split for episode in (*own, *further)} == {"train_both"}
    assert not {episode.task.id for episode in own} & {episode.task.id for episode in further}
    demonstrations = (tmp_path / "run" / "demonstrations.jsonl").read_text().splitlines()
    assert len(demonstrations) == 12
    file = tmp_path / "run" / "collected.jsonl"
    assert [*read_episodes([file, str(file)])] == [*own, *own]
    with pytest.raises(DataError, match=r"absent\.jsonl"):
        list(read_episodes([file, tmp_path / "absent.jsonl"]))
