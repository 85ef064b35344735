"""`skillttrl inspect RUN`: metrics of the latest step that are outside of their healthy ranges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.inspect import inspect
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.metrics import MetricsLog


def run_with(path: Path, *steps: Mapping[str, float]) -> Path:
    with RunFolder.create(path, SkillTTRLConfig(name="t")) as folder:
        log = MetricsLog(folder)
        for step, metrics in enumerate(steps):
            log.log("rl", step, metrics)
    return path


def shown(path: Path, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> str:
    inspect([path], as_json=as_json)
    return capsys.readouterr().out


def test_what_is_outside_in_the_latest_step_is_shown_with_what_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_with(
        tmp_path / "run",
        {"completions/clipped_ratio": 0.9},
        {"completions/clipped_ratio": 0.1, "flip_rate": 0.5, "reward": 0.2},
    )
    found: list[dict[str, Any]] = json.loads(shown(path, capsys, as_json=True))["unhealthy"]
    assert [(each["phase"], each["step"], each["name"], each["value"]) for each in found] == [
        ("rl", 1, "flip_rate", 0.5)
    ]
    assert found[0]["healthy"] == "[0, 0.2]" and "winner changed" in found[0]["meaning"] and found[0]["change"]
    text = " ".join(shown(path, capsys).split())
    assert "rl step 1: flip_rate is 0.5, healthy [0, 0.2]: share of prompts seen before whose winner changed." in text
    assert "Change: stop;" in text and "completions/clipped_ratio" not in text


@pytest.mark.parametrize(
    "steps", [(), ({"completions/clipped_ratio": 0.9}, {"completions/clipped_ratio": 0.1, "grad_norm": float("nan")})]
)
def test_without_a_sign_of_trouble_nothing_is_shown(
    steps: tuple[dict[str, float], ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_with(tmp_path / "run", *steps)
    assert json.loads(shown(path, capsys, as_json=True))["unhealthy"] == [] and "Change:" not in shown(path, capsys)
