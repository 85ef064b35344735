"""Proofs on a scripted world: the best document is found, a killed run goes on exactly, nothing is paid for twice; both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.optimize.record import Optimized
from tests.rule_follower import ScriptedTarget, expected_score, is_optimal
from tests.rule_optimizer import ScriptedOptimizer
from tests.rule_runs import RuleRun

SMALL: dict[str, Any] = {"epochs": 2, "batch_size": 6, "minibatch_size": 3}
SIZES = (12, 10, 4)
SIX_STAGES: dict[str, Any] = {"step_buffer": False, "meta_skill": False, "slow_update": False}
"""The loop without its memory: what this scripted model makes of that is the benchmark's to say."""


@pytest.mark.parametrize("engine", ["skillopt", "gepa"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_document_is_found_from_an_empty_one(engine: str, seed: int) -> None:
    run = RuleRun(engine, seed, sizes=(160, 40, 40))
    found = run(epochs=8, **SIX_STAGES) if engine == "skillopt" else run(epochs=2)
    assert is_optimal(found.state.best), found.state.best
    assert expected_score("", run.task.test) < 0.15


class Killed(BaseException):
    """Ends a run at once."""


def small(
    engine: str, path: Path, limit: int | None, done: tuple[int, int] = (0, 0)
) -> tuple[Optimized | None, RuleRun]:
    """A small run on the journal, killed before its `limit`-th piece of work; its model never answers alike twice."""
    work = [0]

    def count(_: int) -> None:
        if limit is not None and work[0] >= limit:
            raise Killed
        work[0] += 1

    optimizer = ScriptedOptimizer(seed=5, wavering=True, first=done[0], before=count)
    run = RuleRun(engine, 5, SIZES, path, optimizer, ScriptedTarget(seed=5, before=count))
    try:
        return run(**SMALL), run
    except Killed:
        return None, run


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["skillopt", "gepa"])
def test_killed_anywhere_and_resumed_it_makes_the_same_calls(engine: str, tmp_path: Path) -> None:
    """Killed before every request, and before every twelfth rollout."""
    whole, uninterrupted = small(engine, tmp_path / "whole", None)
    assert whole is not None
    lines = (tmp_path / "whole").read_bytes()
    order = _work(lines)
    assert len(order) == uninterrupted.requests + uninterrupted.rollouts
    points = [place for place, is_request in enumerate(order) if is_request or place % 12 == 0]
    assert sum(order) > 4 and len(points) > 12
    for point in points:
        path = tmp_path / f"{point}"
        _, first = small(engine, path, point)
        assert first.requests + first.rollouts == point
        found, second = small(engine, path, None, (first.requests, first.rollouts))
        assert found is not None
        assert path.read_bytes() == lines  # the same calls in the same order with the same answers, none twice
        assert first.optimizer.calls + second.optimizer.calls == uninterrupted.optimizer.calls  # type: ignore[union-attr]
        assert first.target.calls + second.target.calls == uninterrupted.target.calls
        assert (found.state, found.test_first, found.test_best) == (whole.state, whole.test_first, whole.test_best)
        assert _untimed(found) == _untimed(whole)


def _work(lines: bytes) -> list[bool]:
    """Of each line of a journal, in order: is it a request?"""
    return ["id" not in json.loads(line)["result"] for line in lines.splitlines()]


def _untimed(found: Optimized) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "timing"} for row in found.rows]
