"""The live view labels its times, sums them over phases, and shows a config's notice only once something begins."""

from __future__ import annotations

import io

from rich.console import Console

from skill_ttrl.cli.display.tables import reply_view
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.stages.targets.play import Reply
from skill_ttrl.voting import majority_vote


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
    with RunView(_console(plain, terminal=False), "a") as view:
        view.start("grpo", 20, "step")
        view.advance("grpo", 10, {"loss": 1.0})
        view.advance("grpo", 20, {"loss": 1.0})
    first, last = (line for line in plain.getvalue().splitlines() if "done" in line)
    assert " left 0:00:0" in first and "left" not in last


def test_a_reply_without_an_answer_says_so_instead_of_voting() -> None:
    for texts, expected in ((("hello",), "the response"), (("hello", ""), "the 2 responses")):
        out = io.StringIO()
        reply = Reply("q", texts, (None,) * len(texts), majority_vote([None] * len(texts)))
        Console(file=out, width=100).print(reply_view(reply))
        assert f"No answer in {expected}: expected \\boxed{{...}}" in out.getvalue() and "Vote" not in out.getvalue()
