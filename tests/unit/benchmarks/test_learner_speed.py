"""The benchmark of the learner's update: a process that dies says how, and a plot has every point."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("learner_cases")


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_each_rank_gives_the_last_line_that_it_writes(cases: ModuleType) -> None:
    code = "import os; print('a notice'); print('{\"rank\": %s}' % os.environ['RANK'])"
    assert cases.run_workers(python(code), 2) == [{"rank": 0}, {"rank": 1}]
    assert cases.run_workers(python("print('{\"seconds\": 1}')"), 1) == [{"seconds": 1}]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.write(2, b'so far'); os.kill(os.getpid(), 9)", ["SIGKILL", "memory runs out", "so far"]),
        ("import sys; sys.exit('no such model')", ["exit code 1", "no such model"]),
    ],
)
def test_a_process_that_dies_says_how(cases: ModuleType, code: str, said: list[str]) -> None:
    with pytest.raises(cases.WorkerDied) as died:
        cases.run_workers(python(code), 1)
    assert all(words in str(died.value) for words in ["Rank 0", "Its peak was", "free now", *said])


def test_where_one_rank_dies_the_others_are_ended(cases: ModuleType, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"""
import os, time
if os.environ["RANK"] == "0":
    with open({str(pid)!r} + "~", "w") as file:
        file.write(str(os.getpid()))
    os.rename({str(pid)!r} + "~", {str(pid)!r})
    time.sleep(60)
while not os.path.exists({str(pid)!r}):
    time.sleep(0.01)
os.kill(os.getpid(), 15)
"""
    with pytest.raises(cases.WorkerDied, match=r"(?s)Rank 1 .* SIGTERM"):
        cases.run_workers(python(code), 2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_plot_has_a_point_for_each_size_kind_and_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    draw = import_module("speed_plot").draw
    series = {kind: [(size, {"a": size * 2.0, "b": 1.0}) for size in (1.0, 2.0, 3.0)] for kind in ("ours", "padded")}
    picture = ElementTree.fromstring(draw("ranks", [("A", "a", 1.0), ("B", "b", 1e-3)], series))
    assert len(picture.findall(".//{*}circle")) == 2 * 2 * 3


@pytest.mark.slow
def test_a_small_case_is_measured(cases: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = import_module("learner_speed").MODELS["toy"]
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS.parent))
    [row] = cases.measured(replace(tiny, steps=2))
    assert row["seconds"] > 0 and row["tokens_per_second"] > 100 and 1e8 < row["peak_bytes"] < 1e10
    first, second = cases.measured(replace(tiny, kind="fsdp", prompts=2, micro_batch=2, steps=2, ranks=2))
    assert first["weight_bytes"] + second["weight_bytes"] == cases.build_model(tiny).num_parameters() * 4
