"""Answers that want to hang, exhaust, trick or enter the grader: every one is decided or given up at once, and nothing happens.

The cases are in tests/data/hostile_answers.json, by family, each under its name. They run in a process and a folder of their own
(`hostile_run.py`), so that its memory, its files and its worker are theirs alone. One in `SHARE` of each family by default, all with `-m slow`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
