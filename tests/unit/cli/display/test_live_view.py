"""The live view labels its times, sums them over phases, and shows a config's notice only once something begins."""

from __future__ import annotations

import io

from rich.console import Console

from skill_ttrl.cli.display.views import RunView


def _console(out: io.StringIO, terminal: bool) -> Console:
    return Console(file=out, force_terminal=terminal, width=100)


def test_times_are_labelled_and_summed_over_phases() -> None:
    out = io.StringIO()
    with RunView(_console(out, terminal=True), "a [b] → runs/a") as view:
        for phase in ("cold start", "grpo"):
            view.start(phase, 2, "step")
            view.advance(phase, 1, {})
            view.finish(phase)
    last = out.getvalue().rsplit("cold start", 1)[1]
    assert last.count("elapsed") == 3 and last.count("left") == 2 and "2 phases, total elapsed 0:00:00" in last
    plain = io.StringIO()
    with RunView(_console(plain, terminal=False), "a", opening="a is untested.") as view:
        assert "untested" not in plain.getvalue()  # an error now would make it moot
        view.start("grpo", 20, "step")
        assert plain.getvalue().count("Warning: a is untested.") == 1
        view.advance("grpo", 10, {"loss": 1.0})
        view.advance("grpo", 20, {"loss": 1.0})
    first, last = (line for line in plain.getvalue().splitlines() if "done" in line)
    assert " left 0:00:0" in first and "left" not in last
