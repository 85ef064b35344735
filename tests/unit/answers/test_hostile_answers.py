"""Answers that want to hang, exhaust, trick or enter the grader: every one is decided or given up at once, and nothing happens.

The cases are in tests/data/hostile_answers.json, by family, each under its name. They run in a process and a folder of their own
(`hostile_run.py`), so that its memory, its files and its worker are theirs alone. One in `SHARE` of each family by default, all with `-m slow`.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.answers.equivalence import EquivalenceResult, decide

CASES = Path(__file__).parents[2] / "data" / "hostile_answers.json"
RUN = Path(__file__).with_name("hostile_run.py")
SECONDS = 2.0
"""In which an answer is decided or given up. The promise is one, and `benchmarks/answers.py hostile` measures it; a machine that
runs tests may be busy with others."""
SHARE = 10
MEMORY_MB = 1000.0
"""What grader, worker and its child may take together beyond the Python that they began with."""


@pytest.fixture(scope="module", params=[SHARE, pytest.param(1, marks=pytest.mark.slow)])
def data(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CASES.read_text(encoding="utf-8"))
    found["every"] = request.param
    found["cases"] = {family: dict([*cases.items()][:: request.param]) for family, cases in found["cases"].items()}
    return found


@pytest.fixture(scope="module")
def outcome(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What happened when every case was put to the grader."""
    folder = tmp_path_factory.mktemp("hostile")
    cases = tmp_path_factory.mktemp("cases") / "cases.json"
    cases.write_text(json.dumps(data), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(RUN), str(cases)], cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['family']}: {row['name']}" for row in rows]


def test_there_are_enough_and_all_ran(outcome: dict[str, Any], data: dict[str, Any]) -> None:
    asked = [(family, name) for family, cases in data["cases"].items() for name in cases]
    assert len(asked) == len({name for _, name in asked}) >= 500 // data["every"]
    assert len({json.dumps(parts) for cases in data["cases"].values() for parts in cases.values()}) == len(asked)
    assert data["every"] > 1 or {*data["worth one"], *data["near"]} <= {name for _, name in asked}
    assert [(row["family"], row["name"]) for row in outcome["rows"]] == asked


def test_each_is_decided_or_given_up_in_time(outcome: dict[str, Any]) -> None:
    times = [key for key in outcome["rows"][0] if key.endswith("seconds")]
    assert len(times) == 4
    slow = [row for row in outcome["rows"] if max(row[key] for key in times) > SECONDS]
    assert not slow, [(row["name"], {key: row[key] for key in times}) for row in slow]


def test_a_verdict_is_given_once(outcome: dict[str, Any]) -> None:
    """Asked again, what was given up is not tried again."""
    given_up = [row for row in outcome["rows"] if row["seconds"] > 0.5]
    assert not names([row for row in given_up if row["again_seconds"] > 0.5])


def test_none_is_one_but_those_that_are(outcome: dict[str, Any], data: dict[str, Any]) -> None:
    assert not names([row for row in outcome["rows"] if row["one"] and row["name"] not in data["worth one"]])
    assert not names([row for row in outcome["rows"] if row["one"] != row["one_by_key"]])


def test_each_is_itself_and_not_its_neighbour(outcome: dict[str, Any]) -> None:
    assert not names([row for row in outcome["rows"] if row["itself"] == row["missing"]])
    assert not names([row for row in outcome["rows"] if row["missing"] and row["read"]])
    assert not names([row for row in outcome["rows"] if row["near"]])


def test_nothing_happens_outside(outcome: dict[str, Any]) -> None:
    """No file, no process, no code: the worker was up before, and a comparison starts nothing in this process."""
    assert outcome["files"] == []
    assert outcome["events"] == []


def test_memory_is_bounded(outcome: dict[str, Any]) -> None:
    assert outcome["memory_peak"] - outcome["memory_before"] < MEMORY_MB


def test_the_pool_heals_and_a_counter_says_so(outcome: dict[str, Any], data: dict[str, Any]) -> None:
    assert [grade["match_type"] for grade in outcome["grades"]] == ["symbolic"] * len(outcome["grades"])
    assert [grade["match_type"] for grade in outcome["after"]] == ["symbolic"] * len(outcome["after"])
    assert outcome["children"] <= 2  # the worker and the child that works
    counters = outcome["counters"]
    most = 50 // data["every"]
    assert counters["timeout"] >= 1 and counters["undecided"] >= most and counters["too_long"] >= most


GRAMMAR = [
    r"0.1\overline{6}", r"0.\bar{3}", r".\overline{3}", r"\sqrt[3]{\frac{1}{2}}", r"\log_{2} \left( 8 \right)", r"\sin^{-1} \frac{1}{2}",
    r"\lfloor 2.5 \rfloor + \lceil \pi \rceil", r"\left| -5 \right|", r"\binom{5}{2} \binom52", r"{5 \choose 2}", r"{1 \over 2}", r"1A_{16}",
    r"x \in \{5, 6\} \cup \{7\}", r"f^{-1}(x) = \frac{x - 3}{2}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}", r"\langle 1, 2 \rangle",
    r"(x, y) = (1, 2)", r"-3 \le x_{1} < \infty", r"2^{3^{2}}!\%", r"30^{\circ}", r"3 \text{ million } \text{ dollars}", r"x = 1 \text{ or } x = 2",
    r"1 \pm \sqrt{2} \mp \mathrm{i}", r"\mathbb{R}", "1*----5", "2**3/4/5", "exp(2, 3)", "root(8, 3)", "x⁻¹²", "5 km/h", "10_{2}",
]  # fmt: skip
REAL = [
    r"\left( 3, \frac{\pi}{2} \right)", r"\text{Evelyn}", r"90^\circ", "6 - 5i", "52_8", "4210_{5}", r"\$32,\!348", r"864 \mbox{ inches}^2", "(3,4]",
    r"1\frac{4}{5}", r"x \in [-2,7]", r"\{1\pm\sqrt{5},-2\}", "y = 2x + 3", r"50\%", r"11\sqrt2", r"(0,9) \cup (9,36)", "5x - 7y + 11z + 4 = 0",
]  # fmt: skip
BEGINNINGS = json.loads((Path(__file__).parents[2] / "data" / "hostile_answers.json").read_text())["cases"]
SHORT = [
    parts for family in BEGINNINGS.values() for parts in family.values() if all(isinstance(part, str) for part in parts)
]
HOSTILE = [text for text in map("".join, SHORT) if len(text) < 100]
ALL = [*REAL, *GRAMMAR, *HOSTILE]


def check_decided(text: str) -> None:
    """`decide` itself gives a verdict or a tree, whatever the worker would say."""
    for written in (text, f"  {text} ", f"{{{text}", f"1, {text}", f"x = {text}"):
        found = decide(written)
        assert isinstance(found, EquivalenceResult | tuple)
        assert found == decide(written)


@given(st.sampled_from(ALL), st.sampled_from(ALL), st.integers(0, 100), st.integers(0, 100))
def test_no_two_halves_of_answers_are_an_error(first: str, second: str, begin: int, end: int) -> None:
    check_decided(first[:begin] + second[end:])


@pytest.mark.slow
def test_no_beginning_of_an_answer_is_an_error() -> None:
    for number, whole in enumerate(ALL):  # of each a third of its beginnings
        for end in range(number % 3, len(whole) + 1, 3):
            check_decided(whole[:end])


@pytest.mark.parametrize("text", ["1*" + "-" * 250 + "5", "5" + "!" * 300, "5" + "%" * 300, "1" + "/1" * 190, "1" + r"\pm1" * 190,
                                  r"\sin" * 300 + "x", r"\sqrt" * 300 + "2", r"\frac1" * 300, "x" + "^{2}" * 90, "1" + "/1*1" * 90,
                                  "(" * 19 + "1" + ")" * 19, r"\sqrt{" * 20 + "2" + "}" * 20, "2^{" * 20 + "2" + "}" * 20, r"\frac{1}{" * 39 + "2" + "}" * 39,
                                  r"\{(" * 9 + "1" + r")\}" * 9, r"\sin\left(" * 13 + "x" + ")" * 13, "(" * 20 + "1" + ")^{2}" * 20, "||" * 10 + "5" + "||" * 10])  # fmt: skip
def test_a_key_does_not_depend_on_the_stack_that_is_left(text: str) -> None:
    def below(frames: int) -> Any:
        return decide(text) if not frames else below(frames - 1)

    shallow = decide(text)
    left = sys.getrecursionlimit() - len(inspect.stack(0))
    assert below(left - 450) == shallow
