"""Optimization killed for real, at any moment: resumed, it has the document and the calls of a run that was never killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = """
import sys, time
from pathlib import Path
from tests.rule_follower import ScriptedTarget
from tests.rule_optimizer import ScriptedOptimizer
from tests.rule_runs import RuleRun

slow = lambda _: time.sleep(0.002)
models = ScriptedOptimizer(3, before=slow), ScriptedTarget(3, before=slow)
run = RuleRun(sys.argv[1], 3, (24, 10, 6), Path(sys.argv[2]), *models, workers=4)
found = run(epochs=2, batch_size=8, minibatch_size=3, engine_options={"iterations": 20} if sys.argv[1] == "gepa" else {})
Path(sys.argv[3]).write_text(found.state.best, encoding="utf-8")
print(run.requests + run.rollouts)
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["skillopt", "gepa"])
def test_killed_again_and_again_it_ends_as_one_that_was_not(engine: str, tmp_path: Path) -> None:
    whole, paid = _run(engine, tmp_path / "whole", hash_seed="1")
    draws = random.Random(7)
    path, kills = tmp_path / "killed", 0
    while kills < 12:
        process = _start(engine, path, hash_seed=str(kills))
        size = path.stat().st_size if path.exists() else 0
        while process.poll() is None and (not path.exists() or path.stat().st_size <= size):
            time.sleep(0.001)  # it is past its start
        time.sleep(draws.uniform(0, 0.15))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 3
    found, _ = _run(engine, path, hash_seed="99")
    assert found == whole
    assert len(path.read_bytes().splitlines()) == paid  # each piece of work once, however often it was killed


def _start(engine: str, path: Path, hash_seed: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", RUN, engine, str(path), f"{path}.md"]
    return subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def _run(engine: str, path: Path, hash_seed: str) -> tuple[str, int]:
    process = _start(engine, path, hash_seed)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return Path(f"{path}.md").read_text("utf-8"), int(printed)
