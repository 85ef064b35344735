"""Every metric that a run of a module here logs is registered; and a cluster of Ray, for the modules that ask for one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import ScaleConfig, load_config
from skill_ttrl.metrics import find
from skill_ttrl.runs.folder import MetricsLog
from tests.mortal import MARKS


@pytest.fixture(scope="module", autouse=True)
def _metrics_are_registered() -> Iterator[None]:
    track = MetricsLog.track  # every metric passes here, with a tracker or without

    def checked(log: MetricsLog, phase: str, figures: Mapping[str, float], step: int) -> None:
        missing = [
            name
            for name in figures
            if find(name) is None and not (phase.startswith("evaluate") and find(f"evaluate/{name}"))
        ]
        assert not missing, f"skill_ttrl/metrics.toml does not have {', '.join(missing)} (phase {phase})"
        track(log, phase, figures, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsLog, "track", checked)
        yield


@pytest.fixture(scope="session")
def answering(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cold-started model that answers, if seldom rightly: enough to vote on. One for all modules; none changes it."""
    folder = tmp_path_factory.mktemp("answering") / "run"
    settings = ["phases=[sft]", "eval.samples=1", "sft.steps=60", "sft.learning_rate=1e-2", "sft.save_steps=60"]
    train.run(load_config(tiny_yaml, settings), folder)
    return folder / "checkpoints" / "sft-000060"


EAGER = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
"""A node that is gone is missed after a second, and not after twenty."""


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where processes that die once leave a mark; the nodes inherit its name."""
    folder = tmp_path_factory.mktemp("marks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARKS, str(folder))
        yield folder


@pytest.fixture(scope="module")
def cluster(marks: Path) -> Iterator[Any]:
    """A head and two more nodes, one CPU each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    found = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": EAGER})
    for _ in range(2):
        found.add_node(num_cpus=1)
    yield found
    found.shutdown()


@pytest.fixture
def scale(cluster: Any) -> ScaleConfig:
    return ScaleConfig(address=cluster.address)
