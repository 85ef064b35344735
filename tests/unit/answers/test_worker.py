"""The process that compares expressions: it can be killed, it heals, and what it once said stays said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from skill_ttrl.answers import canonical, canonicals, equivalence, equivalent, persist_cache, verdict
from skill_ttrl.answers.equivalence import EquivalenceCache, EquivalenceResult, Judged, Pool, judged, take_over
from skill_ttrl.answers.extract import clean
from skill_ttrl.answers.grammar import Tree, parse
from skill_ttrl.errors import WorkerError

SLOW = " + ".join(rf"\sin({n}x)\cos({n + 1}x)\tan({n}y)" for n in range(1, 12))
"""Well formed, small, and many seconds of work for SymPy."""
EASY = parse(clean(r"\sqrt{8}"))
ROOT = "value 2.8284271247461900976033774484193961571393437507539"


@pytest.fixture
def hasty() -> Pool:
    return Pool(time_limit=0.3)


def test_a_comparison_that_takes_too_long_is_killed_and_the_next_one_goes_on(hasty: Pool) -> None:
    slow = parse(clean(SLOW))
    verdicts = hasty.judge([EASY, slow, EASY, slow, EASY])
    assert [found.get("gave_up") for found in verdicts] == [None, "timeout", None, "timeout", None]
    assert verdicts[0] == verdicts[4] == {"key": ROOT}
    hasty.close()


@pytest.mark.slow
def test_an_interrupted_comparison_leaves_no_reply_behind() -> None:
    assert canonical(r"\sqrt{8}") == ROOT
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            canonical(SLOW.replace("x", "z"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert equivalent(r"\sqrt{28}", r"2\sqrt{7}") and not equivalent(r"\sqrt{99}", r"\sqrt{98}")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_child_does_not_outlive_its_worker(hasty: Pool) -> None:
    hasty.judge([EASY])
    assert hasty._worker is not None
    worker = psutil.Process(hasty._worker.pid)
    (child,) = worker.children()
    asking = threading.Thread(target=hasty.judge, args=([parse(clean(SLOW))],))
    asking.start()
    time.sleep(0.1)
    worker.kill()
    _, alive = psutil.wait_procs([child], timeout=5)
    assert not alive
    asking.join()
    hasty.close()


def test_a_folder_called_sympy_is_not_sympy(tmp_path: Path) -> None:
    (tmp_path / "sympy").mkdir()
    (tmp_path / "sympy" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "mine.py").write_text("from skill_ttrl.answers import equivalent; print(equivalent('x+1', '1+x'))")
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_a_worker_that_cannot_start_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = Pool()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    for _ in range(3):
        with pytest.raises(WorkerError, match="did not start"):
            pool.judge([EASY])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerError, match="Cannot start"):
        Pool().judge([EASY])


@pytest.mark.slow
def test_a_forked_process_has_a_worker_of_its_own() -> None:
    assert equivalent(r"\sqrt{12}", r"2\sqrt{3}")
    child = os.fork()
    if child == 0:
        os._exit(0 if equivalent(r"\sqrt{27}", r"3\sqrt{3}") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert equivalent(r"\sqrt{75}", r"5\sqrt{3}")


@pytest.mark.slow
def test_a_verdict_once_given_is_not_given_again(tmp_path: Path) -> None:
    path = tmp_path / "equivalence_cache.jsonl"
    first = EquivalenceCache(Pool(time_limit=0.3), path)
    assert first.of([SLOW, r"\sqrt{8}", "7", "cat"])[SLOW].gave_up == "timeout"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["answer"]: row["gave_up"] for row in rows} == {SLOW: "timeout", r"\sqrt{8}": None}, "only the worker's"

    class Never(Pool):
        def judge(self, trees: object) -> list[dict[str, str]]:
            raise AssertionError(f"asked again: {trees!r}")

    again = EquivalenceCache(Never(), path)
    assert again.of([SLOW, r"\sqrt{8}"]) == first.of([SLOW, r"\sqrt{8}"])
    assert again.of([r"\sqrt{8}"])[r"\sqrt{8}"].key == ROOT


def test_a_journal_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "equivalence_cache.jsonl"
    with persist_cache(path):
        before = verdict(r"\sqrt{8}")
    path.write_bytes(path.read_bytes() + b'{"answer": "x+1", "ke')
    with persist_cache(path):
        assert verdict(r"\sqrt{8}") == before
        assert equivalent("x+1", "1+x")
    assert [json.loads(line)["answer"] for line in path.read_text().splitlines()] == [r"\sqrt{8}", "1+x", "x+1"]


@pytest.mark.slow
def test_what_one_process_has_judged_another_one_takes_over_and_does_not_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [r"\sqrt{8}", "7", None, "x + x", "", "seven", "4" * 2000]
    there, keys = judged(answers), canonicals(answers)
    assert set(there) == {r"\sqrt{8}", "x + x"}, "what is decided without SymPy need not travel"

    class Nobody(Pool):
        def judge(self, trees: Sequence[Tree]) -> list[Judged]:
            raise AssertionError("it was asked")

    here = EquivalenceCache(Nobody(), tmp_path / "cache.jsonl")
    monkeypatch.setattr(equivalence, "_current", here)
    take_over(there)
    lines = (tmp_path / "cache.jsonl").read_text()
    take_over({"x + x": EquivalenceResult("another", "symbolic")})
    assert canonicals(answers)[:4] == keys[:4]
    assert (tmp_path / "cache.jsonl").read_text() == lines and lines.count("\n") == 2
    assert here.counts["symbolic"] == 2
