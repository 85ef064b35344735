"""A run that ends itself by a label-free rule: at a checkpoint, told to the user, and the same after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.storage.jsonl import read_jsonl

RULE = ["rl.stop_rule=collapse", "rl.stop_options.agreement=0.9", "rl.save_steps=100"]


class Listener(SilentProgress):
    """Keeps what the user would read."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str, *, warning: bool = False) -> None:
        self.notices.append(text)


@pytest.fixture
def settings(answering: Path) -> list[str]:
    """Six steps from a base on which no answer has 30 % of the votes: the rule fires after three."""
    return ["phases=[rl]", f"model.path={answering}", "rl.steps=6", "rl.learning_rate=1e-4"]


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    return read_jsonl(run / name)


@pytest.mark.slow
def test_a_rule_ends_the_run_at_a_checkpoint_and_says_so(settings: list[str], tiny_yaml: Path, tmp_path: Path) -> None:
    heard = Listener()
    summary = train.run(load_config(tiny_yaml, [*settings, *RULE]), tmp_path / "ended", progress=heard)
    told = "The stopping rule collapse ended RL after 3 of 6 steps. The weights of before RL are given back."
    assert summary.steps == {"rl": 3} and summary.stopped == told and told in heard.notices
    assert told in (tmp_path / "ended" / "report.html").read_text()
    assert [path.name for path in (tmp_path / "ended" / "checkpoints").iterdir()] == ["rl-000003"]

    whole = train.run(load_config(tiny_yaml, [*settings, "rl.eval_steps=3"]), tmp_path / "whole")
    assert whole.steps == {"rl": 6} and whole.stopped is None
    assert rows(tmp_path / "whole", "metrics.jsonl")[:3] == rows(tmp_path / "ended", "metrics.jsonl")
    before, after = rows(tmp_path / "ended", "evaluations.jsonl")
    assert (before.pop("label"), after.pop("label")) == ("before", "after") and before == after
    assert rows(tmp_path / "whole", "evaluations.jsonl")[1]["results"] != before["results"], (
        "three steps had changed something"
    )
