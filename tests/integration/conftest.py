"""Every metric that a run of a module here logs is registered; unit tests in the same process log what they like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from skill_ttrl.metrics import find_tracked
from skill_ttrl.runs.metrics import MetricsLog


@pytest.fixture(scope="module", autouse=True)
def _metrics_are_registered() -> Iterator[None]:
    track = MetricsLog.track  # every metric passes here, with a tracker or without

    def checked(log: MetricsLog, phase: str, figures: Mapping[str, float], step: int) -> None:
        missing = [name for name in figures if find_tracked(f"{phase}/{name}") is None]
        assert not missing, f"skill_ttrl/metrics/ does not have {', '.join(missing)} (phase {phase})"
        track(log, phase, figures, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsLog, "track", checked)
        yield
