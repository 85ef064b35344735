"""The laboratory's page: one file, no script, and nothing in it that somebody else wrote is markup."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

from rich.console import Console

from skill_ttrl.cli.display.vote_tables import lab_view
from skill_ttrl.cli.vote import strategy_options
from skill_ttrl.rollout.samples import SAMPLE, Sample, TaskSamples
from skill_ttrl.stages.evaluation.vote_comparison import replay
from skill_ttrl.stages.evaluation.vote_figures import Settings
from skill_ttrl.stages.evaluation.vote_lab import VoteLab, describe_samples
from skill_ttrl.stages.reports.vote_page import vote_html
from skill_ttrl.types import Task
from skill_ttrl.voting import UndecidedAnswers

HOSTILE = "</title><script>alert(1)</script>[bold red]\x1b[2J"


def lab(truth: str | None, source: str = "samples.jsonl") -> VoteLab:
    rows = [
        TaskSamples(
            "",
            SAMPLE,
            Task(str(n), "", task_type=HOSTILE, ground_truth=truth),
            tuple(Sample("", str(a)) for a in (1, 1, n)),
        )
        for n in range(4)
    ]
    settings = Settings()
    found, _ = replay([rows], {"soft": {}, "gated": {"threshold": 0.9}, "harmonic": {}}, settings)
    return VoteLab(source, 4, (3, 3), 1, 4 if truth else 0, None, settings, tuple(found))


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_the_page_with_true_answers() -> None:
    page = vote_html(lab("1"))
    charts = svgs(page)
    assert len(charts) == 2 + 3  # dots of two figures, and a curve for each strategy that could be held
    assert "label accuracy, 95% intervals" in page and "flip rate, 95% intervals" in page
    assert page.count("<circle") >= 3 + 3 and "unclear" in page
    assert "harmonic needs views" in page and "http:" not in page and "https:" not in page and "<script" not in page


def test_the_page_without_true_answers() -> None:
    page = vote_html(lab(None))
    assert len(svgs(page)) == 2 and "majority ratio, 95% intervals" in page
    assert "label accuracy" not in page and "Reliability" not in page


def test_answers_that_were_given_up_are_told_where_there_are_some() -> None:
    some = replace(lab("1"), undecided_answers=UndecidedAnswers(2, 40, {"timeout": 2}))
    text = "2 of 40 different answers were given up (timeout 2)"
    assert text in vote_html(some) and text in shown(some)
    assert "given up" not in vote_html(lab("1")) and "given up" not in shown(lab("1"))


def shown(found: VoteLab) -> str:
    written = io.StringIO()
    Console(file=written, width=200).print(lab_view(found, full=True))
    return written.getvalue()


def test_dots_stand_where_their_figures_say() -> None:
    (accuracy, *_) = svgs(vote_html(lab("1")))
    places = [float(circle.attrib["cx"]) for circle in accuracy.iter("circle")]
    # 1.000 for the majority and for soft, and for gated 1/4: it lets only a vote without dissent decide.
    assert places[0] == places[1] and places[2] < places[0]
    left, right = 150, 150 + 640 - 150 - 70
    assert places[0] == right and places[2] == left + (right - left) / 4


def test_hostile_names_stay_text() -> None:
    found = lab("1", HOSTILE)
    assert "<script" not in vote_html(found) and "&lt;script&gt;" in vote_html(found)
    out = io.StringIO()
    Console(file=out, width=80).print(lab_view(found, full=True))
    shown = out.getvalue()
    assert "\x1b" not in shown and "[bold red]" in shown


def test_what_is_said_of_the_samples() -> None:
    found = lab("1")
    assert describe_samples(found) == "4 problems, 3 samples each."
    assert describe_samples(lab(None)) == "4 problems, 3 samples each; none of them with a true answer."


def test_options_of_strategies() -> None:
    words = ["gated.threshold=0.6", "my.votes:own.weights=[1, 2]", "gated.name=a=b"]
    assert strategy_options(words) == {
        "gated": {"threshold": 0.6, "name": "a=b"},
        "my.votes:own": {"weights": [1, 2]},
    }
