"""What commands show: results with the rows that matter first, tables at 80 columns, the live view, and JSON that acts on no terminal."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from skill_ttrl.cli.display import RunView, evaluation_view, print_json, show, text_table
from skill_ttrl.commands.reports.summary_text import closing_lines
from skill_ttrl.commands.reports.summary_text import summary_table as table_of
from skill_ttrl.runs.summary import Summary
from skill_ttrl.train.results import Evaluation, TypeResult

SUMMARY = Summary(
    "a", 0, "majority", False, 128, 8, 1.0,
    accuracy_before=0.5, accuracy_after=0.75, majority_before=0.9, majority_after=0.8,
    greedy_before=0.5, greedy_after=0.51, pass_at_k_before={"1": 0.5, "2": 0.6, "8": 0.9},
    pass_at_k_after={"1": 0.75, "2": 0.8, "8": 0.95}, entropy_before=1.0, entropy_after=0.5,
    intervals={
        "accuracy_before": (0.45, 0.55), "accuracy_after": (0.7, 0.8), "accuracy_change": (0.2, 0.3),
        "majority_change": (-0.15, -0.05), "greedy_change": (-0.1, 0.12),
    },
)  # fmt: skip


def shown(view: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(view)
    assert max(map(len, out.getvalue().splitlines())) <= width
    return out.getvalue()


def summary_table(summary: Summary, *, full: bool = False) -> RenderableType:
    columns, rows, _ = table_of(summary, full=full)
    return text_table("", columns, rows)


def cells(text: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {name: rest for name, *rest in lines}


def test_a_run_shows_its_headline_metrics_with_the_paired_change_and_a_verdict() -> None:
    rows = cells(shown(summary_table(SUMMARY)))
    assert rows == {
        "avg@8": ["0.500", "0.750", "+0.250 [+0.200, +0.300]", "better"],
        "maj@8": ["0.900", "0.800", "-0.100 [-0.150, -0.050]", "worse"],
        "greedy": ["0.500", "0.510", "+0.010 [-0.100, +0.120]", "unclear"],
        "pass@8": ["0.900", "0.950", "-", "-"],
    }
    assert any("maj@8 fell" in line for line in closing_lines(SUMMARY))


def test_all_rows_of_a_run_have_intervals_and_none_repeats_another() -> None:
    wide = cells(shown(summary_table(SUMMARY, full=True), width=160))
    assert wide["avg@8"][:2] == ["0.500 [0.450, 0.550]", "0.750 [0.700, 0.800]"]
    assert "pass@2" in wide and "pass@1" not in wide, "pass@1 is avg@8"
    assert "…" not in shown(summary_table(SUMMARY, full=True))


def test_an_evaluation_shows_what_matters_and_how_many_rows_more_there_are() -> None:
    kind = TypeResult(2, 0.5, (0.1, 0.9))
    found = Evaluation(
        "after", "test", 4, 4, 1.0, 0.5, (0.3, 0.7), {"1": 0.5, "2": 0.6, "4": 0.8}, 0.6, (0.4, 0.8), 0.55, (0.3, 0.8),
        {}, 0.7, 1.2, (), transductive=False, by_type={"a": kind, "b": kind},
    )  # fmt: skip
    text = shown(evaluation_view(found))
    assert list(cells(text)) == ["avg@4, T = 1", "maj@4", "greedy", "pass@4"] and "5 more rows: --full" in text
    full = shown(evaluation_view(found, full=True))
    assert {"pass@2", "avg@4 of a (2)", "majority ratio"} <= {*cells(full)} and "more rows" not in full
    assert "pass@1" not in cells(full)
    one = replace(found, samples=1, pass_at_k={"1": 0.5})
    assert list(cells(shown(evaluation_view(one)))) == ["avg@1, T = 1", "greedy"], "maj@1 and pass@1 are avg@1"


IDS = ["pick_and_place_simple-Mug-None-Desk-308/trial_T20190908_125200_737896", "webshop-goal-000000017"]


def fitted(width: int, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    terminal = Console(file=out, width=width, force_terminal=True, color_system=None)
    terminal.print(text_table(title, columns, rows), crop=False)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 60, 200])
def test_the_first_column_holds_whole_ids_and_no_other_is_broken_into_lines(width: int) -> None:
    words = "several words that can wrap wherever there is a space between two of them"
    out = fitted(width, "", ("task", "outcome", "text", "again"), [(name, "won", words, name) for name in IDS])
    assert max(map(len, out.splitlines())) <= width
    cells = [[cell.strip() for cell in line.split("│")] for line in out.splitlines() if line.startswith("│")]
    assert "".join(first for _, first, *_ in cells) == "".join(IDS)
    starts = [(first[:4], again[:4]) for _, first, outcome, _, again, _ in cells if outcome == "won"]
    assert starts == [("pick", "pick"), ("webs", "webs")] and sum(bool(row[4]) for row in cells) == 2


def test_a_pipe_gets_each_row_whole_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show([], as_json=False, view=lambda _: text_table("", ("task", "again"), [(name, name * 3) for name in IDS]))
    assert [line.split()[1::2] for line in capsys.readouterr().out.splitlines()[3:5]] == [[n, n * 3] for n in IDS]


def test_what_fits_is_as_it_is() -> None:
    assert IDS[0] in fitted(200, "title", ("task",), [(IDS[0],)])
    assert "[bold]" in fitted(80, "[bold]", ("a",), [("[red]x[/red]",)])


def _console(out: io.StringIO, terminal: bool) -> Console:
    return Console(file=out, force_terminal=terminal, width=100)


def test_times_are_labelled_and_summed_over_phases(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    with RunView(_console(out, terminal=True), "a [b] → runs/a") as view:
        for phase in ("cold start", "grpo"):
            view.start(phase, 2, "step")
            view.advance(phase, 1, {})
            view.finish(phase)
    last = out.getvalue().rsplit("cold start", 1)[1]
    assert last.count("elapsed") == 3 and "left" not in last and "2 phases, total elapsed 0:00:00" in last
    plain = io.StringIO()
    with RunView(Console(stderr=True), "a"):
        print("a tool's own words")
    assert capsys.readouterr() == ("", "a tool's own words\n")
    with RunView(_console(plain, terminal=False), "a", opening="a is untested.") as view:
        assert "untested" not in plain.getvalue()  # an error now would make it moot
        view.start("grpo", 20, "step")
        assert plain.getvalue().count("Warning: a is untested.") == 1
        view.advance("grpo", 10, {"loss": 1.0})
        view.advance("grpo", 20, {"loss": 1.0})
    first, last = (line for line in plain.getvalue().splitlines() if "done" in line)
    assert " left 0:00:0" in first and "left" not in last


def test_the_time_left_is_of_all_phases_and_unknown_until_each_has_a_speed() -> None:
    now = [0.0]
    view = RunView(Console(file=io.StringIO(), width=100, get_time=lambda: now[0]), "a")

    def work(phase: str, seconds: float, done: int) -> str:
        now[0] += seconds
        view.advance(phase, done, {})
        shown = io.StringIO()
        Console(file=shown, width=100).print(view)
        return shown.getvalue()

    view.plan({"cold start": 2, "evaluate before": 10, "grpo": 4, "evaluate after": 10})
    view.start("cold start", 2, "step")
    first = work("cold start", 5.0, 1)
    assert "left 0:00:05" in first and "of all phases" not in first
    work("cold start", 5.0, 2)
    view.start("evaluate before", 10, "rollout")
    assert "left" not in work("evaluate before", 20.0, 9)  # a whole batch may be nearly ready, or not have begun
    assert "left" not in work("evaluate before", 0.0, 10)
    view.start("grpo", 4, "step")
    # three steps, and as long as before for the evaluation
    assert "left 0:00:21" in (shown := work("grpo", 7.0, 1)) and "of all phases left about 0:00:41" in shown
    work("grpo", 21.0, 4)
    view.start("evaluate after", 10, "rollout")
    assert "of all phases left about 0:00:15" in work("evaluate after", 5.0, 1)
    view.plan({f"DAgger round {number}: {part}": 10 for number in (1, 2) for part in ("play", "learn")})
    view.start("DAgger round 1: play", 10, "episode")
    assert "of all phases" not in work("DAgger round 1: play", 3.0, 10)
    view.start("DAgger round 1: learn", 10, "step")
    assert "of all phases left about 0:00:08" in work("DAgger round 1: learn", 5.0, 10)


def test_the_six_figures_stand_in_pairs_with_their_latest_steps_and_a_pipe_gets_whole_lines() -> None:
    figures = {"reward": 0.5, "majority_ratio": 0.7, "label_accuracy": 0.9, "approx_kl": 1e-4, "kl": 0.2, "grad_norm": float("inf"),
               "success": 0.5, "success/heat": 0.25, "loss": 1.0}  # fmt: skip
    out, plain = io.StringIO(), io.StringIO()
    for console in (Console(file=out, force_terminal=True, width=80), Console(file=plain, width=80)):
        with RunView(console, "a") as view:
            view.measured({"accuracy": 0.25})
            view.start("grpo", 2, "step")
            view.advance("grpo", 1, figures)
            view.advance("grpo", 2, figures | {"reward": 0.75, "grad_norm": 3.0})
            shown = io.StringIO()
            Console(file=shown, width=80).print(view)
    rows = [" ".join(line.strip("│ ").split()) for line in shown.getvalue().splitlines()]
    assert "reward 0.750 ▁█ eval accuracy 0.250 ▄" in rows and "majority ratio 0.700 ▄▄ label accuracy 0.900 ▄▄" in rows
    assert "kl 0.200 ▄▄ grad norm 3.000 ▄" in rows and "success 0.500 ▄▄ heat 0.250 ▄▄" in rows and "loss 1.000" in rows
    lines = [line for line in plain.getvalue().splitlines() if "done" in line]
    assert len(lines) == 2 and len(lines[0]) > 80 and "label_accuracy 0.900" in lines[0]


ON_A_TERMINAL = """
import fcntl, sys, termios, time
from rich.console import Console
from skill_ttrl.cli.display import RunView
from skill_ttrl.types import Completion, Step, Task, Trajectory

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
completion = Completion("\x1b[31mred", (1,), (0.0,), "stop")
played = Trajectory(Task("a", "E-v0"), (Step("?", "x", 1.0, True, False, completion=completion),), "x", "terminated", 1.0)
try:
    with RunView(Console(), "t") as view:
        view.start("grpo", 2, "step")
        view.rollout("rl:0:a:3", played)
        while True:
            time.sleep(0.05)
except KeyboardInterrupt:
    mode = termios.tcgetattr(0)[3]
    print("given back:", bool(mode & termios.ICANON and mode & termios.ECHO), flush=True)
time.sleep(60)
"""


def test_a_key_shows_the_newest_rollout_and_the_terminal_is_given_back() -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", ON_A_TERMINAL]
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a suite in the background ignores it, and so would its child
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    signal.signal(signal.SIGINT, before)
    seen = ""

    def until(text: str) -> None:
        nonlocal seen
        while text not in seen:
            assert select.select([ours], [], [], 60)[0], seen[-2000:]
            seen += os.read(ours, 4096).decode(errors="replace")

    try:
        until("r: show the newest")
        while termios.tcgetattr(ours)[3] & termios.ICANON:
            until("grpo")
        os.write(ours, b"xr")
        until("rl:0:a:3 (r: hide)")
        until("␛[31mred")
        mode = termios.tcgetattr(ours)
        mode[3] |= termios.ICANON | termios.ECHO  # as a shell leaves it between Ctrl-Z and fg
        termios.tcsetattr(ours, termios.TCSANOW, mode)
        seen = ""
        while termios.tcgetattr(ours)[3] & termios.ICANON:
            until("grpo")
            seen = ""
        os.write(ours, b"r")
        until("r: show the newest")
        os.write(ours, b"\x03")
        until("given back: True")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


HOSTILE = "\x1b[2J \x7f \x9b31m \x85 \u2028 \u202e \U000e0041 \ud800 ∑ 中"


@pytest.mark.parametrize("value", [HOSTILE, {HOSTILE: [HOSTILE, 1.5, None]}])
def test_json_holds_no_character_that_acts(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert all(character.isprintable() for character in printed.replace("\n", ""))
    assert "∑ 中" in printed


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    from skill_ttrl.sanitize import escape_json

    assert json.loads(escape_json(json.dumps([text], ensure_ascii=False, indent=1))) == [text]


def test_names_are_cut_last_and_no_table_is_wider_than_the_terminal() -> None:
    rows = [("pick_clean_then_place_in_recep", "4", "1.000 [0.510, 1.000]", "6.2", "a few words on it", "0")] * 2
    out = fitted(80, "", ("task type", "episodes", "success", "steps", "why", "failed"), rows)
    assert max(map(len, out.splitlines())) <= 80 and out.count("pick_clean_then_place_in_recep") == 2
