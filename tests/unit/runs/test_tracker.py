"""Descriptions of metrics in a tracker."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.metrics import MetricsLog
from skill_ttrl.runs.tracker import open_tracker


def test_tensorboard_shows_what_a_metric_means(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    folder = RunFolder.create(tmp_path / "run", SkillTTRLConfig(name="t"))
    tracker = open_tracker("tensorboard", folder, "t", {})
    assert tracker is not None
    log = MetricsLog(folder, tracker)
    for step in range(3):
        log.log("rl", step, {"flip_rate": step / 10, "of_my_own": float(step)})
    tracker.close()
    events = EventAccumulator(str(folder.tracker / "tensorboard"))
    events.Reload()
    for name, values in (("rl/flip_rate", [0.0, 0.1, 0.2]), ("rl/of_my_own", [0.0, 1.0, 2.0])):
        assert [event.value for event in events.Scalars(name)] == pytest.approx(values)
    text = events.SummaryMetadata("rl/flip_rate").summary_description
    assert text.startswith("share of prompts seen before whose winner changed (share, [0, 1]); healthy: [0, 0.2]; ")
