"""The check of `conftest.py` that every logged metric is registered can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.metrics import MetricsLog


def test_a_metric_that_is_not_registered_fails_the_test_that_logs_it(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", SkillTTRLConfig(name="t")) as folder:
        log = MetricsLog(folder)
        log.log("rl", 0, {"reward": 0.5})
        log.time("rl", 0, {"seconds": 1.0})
        log.track("evaluate", {"accuracy": 0.5}, 1)
        for write in (log.log, log.time):
            with pytest.raises(AssertionError, match=r"skill_ttrl/metrics.toml does not have made_up \(phase rl\)"):
                write("rl", 1, {"reward": 0.5, "made_up": 1.0})
        with pytest.raises(AssertionError, match="made_up"):
            log.track("evaluate", {"made_up": 1.0}, 1)
