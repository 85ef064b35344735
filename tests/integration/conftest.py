"""Every metric that a run of a module here logs is in docs/metrics.md; unit tests in the same process log what they like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from skill_ttrl.runs.metrics import MetricsLog
from tests.metrics_page import undocumented


@pytest.fixture(scope="module", autouse=True)
def _metrics_are_documented() -> Iterator[None]:
    write = MetricsLog._write

    def checked(log: MetricsLog, name: str, phase: str, step: int, figures: Mapping[str, float]) -> str:
        missing = undocumented(figures)
        assert not missing, f"docs/metrics.md does not name {', '.join(missing)} (phase {phase})"
        return write(log, name, phase, step, figures)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsLog, "_write", checked)
        yield
