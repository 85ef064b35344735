"""Learning curves: each evaluation stands at its updates and at the seconds that they took, and the figure has a line a run."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.runs.summary import Summary
from skill_ttrl.stages.evaluation.results import Evaluation
from skill_ttrl.types import to_json


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    return import_module("learning_curves")


def evaluation(label: str, greedy: float) -> str:
    none: dict[str, Any] = dict.fromkeys(
        (
            "accuracy",
            "accuracy_interval",
            "majority",
            "majority_interval",
            "greedy_interval",
            "majority_ratio",
            "entropy",
        )
    )
    return to_json(
        Evaluation(label, "test", 1, 1, 1.0, greedy=greedy, pass_at_k={}, by_temperature={}, results=(), **none)
    )


def finished_run(folder: Path, *greedy: float, cpu: bool = True) -> Path:
    """Two updates of imitation of 5 s and four of GRPO of 1 s; evaluated before these, between them and after."""
    folder.mkdir()
    summary = Summary("run", 0, "env", False, 1, 1, 1.0, steps={"sft": 2, "rl": 4})
    (folder / "summary.json").write_text(to_json(summary))
    seconds = [
        ("collect", 0, 99.0),
        *(("sft", step, 5.0) for step in range(2)),
        *(("rl", step, 1.0) for step in range(4)),
    ]
    rows = [
        {"phase": phase, "step": step, "seconds": 3 * spent, "cpu_seconds": spent} for phase, step, spent in seconds
    ]
    if not cpu:
        rows = [{key: value for key, value in row.items() if key != "cpu_seconds"} for row in rows]
    (folder / "timings.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lines = [evaluation(*each) for each in zip(("before", "step 2", "after"), greedy, strict=True)]
    (folder / "evaluations.jsonl").write_text("\n".join(lines))
    (folder.parent / f"{folder.name}-curve").mkdir()
    (folder.parent / f"{folder.name}-curve" / "sft-000001.json").write_text(evaluation("sft-000001", 0.1))
    (folder / "checkpoints" / "sft-000001").mkdir(parents=True)
    return folder


def test_points_stand_at_their_updates_and_seconds(curves: Any, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", 0.5, 0.6, 0.75)
    points = curves.read_points(run, "greedy", "cpu_seconds", 1)
    assert [(each.phase, each.step, each.seconds, each.value) for each in points] == [
        ("sft", 1, 5.0, 0.1),
        ("rl", 0, 10.0, 0.5),
        ("rl", 2, 12.0, 0.6),
        ("rl", 4, 14.0, 0.75),
    ]
    assert len(curves.read_points(run, "greedy", "cpu_seconds", 0)) == 3


def test_the_figure_has_the_runs_and_their_mean(
    curves: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [finished_run(tmp_path / "a", 0.5, 0.6, 0.75), finished_run(tmp_path / "b", 0.3, 0.4, 0.65, cpu=False)]
    svg = tmp_path / "curves.svg"
    monkeypatch.setattr("sys.argv", ["curves", f"true & good={runs[0]},{runs[1]}", "--svg", str(svg)])
    assert curves.main() == 0
    assert "| true & good | rl | 4 | 42 | 0.750 0.650 | 0.700 |" in capsys.readouterr().out
    drawn = svg.read_text()
    assert "wall seconds of learning" in drawn and "true &amp; good" in drawn  # one of the runs has no CPU seconds
    assert drawn.count("<polyline") == 2 * 3
    monkeypatch.setattr("sys.argv", ["curves", f"x={runs[0]}", "--figure", "score"])
    assert curves.main() == 3 and "no score" in capsys.readouterr().err
