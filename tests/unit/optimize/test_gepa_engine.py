"""gepa as an engine: behind our gate, budget and journal; whatever the model answers."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Callable
from typing import Any

import pytest

from skill_ttrl.errors import BudgetError, DataError, EndpointError, MissingDependencyError
from skill_ttrl.optimize.calls import Reply
from skill_ttrl.optimize.types import compute_score
from tests.rule_optimizer import ScriptedOptimizer
from tests.rule_runs import RuleRun

FEW: dict[str, Any] = {"epochs": 1}


def test_the_outcome_is_what_passed_our_gate() -> None:
    run = RuleRun("gepa", 1, (20, 10, 6))
    found = run(epochs=2)
    assert len(found.rows) == 14 and found.rows[-1]["step"] == 14 and found.rows[7]["epoch"] == 2
    accepted = [row for row in found.rows if str(row["action"]).startswith("accept")]
    assert all("candidate_hash" in row for row in accepted)
    assert accepted and found.state.best_score == max(row["candidate_gate_score"] for row in accepted)
    assert found.state.best_score > compute_score(found.first_evaluation.results)[0]
    assert found.test_best is not None and len(found.test_best) == 6
    assert {*run.calls.counts} == {"rollout", "selection", "gepa_reflect", "test"}
    selections = [each for each in run.target.calls if each[1].startswith("val")]
    assert len(selections) == len(set(selections)) and len(selections) % 10 == 0  # a document is evaluated once
    same = RuleRun("gepa", 1, (20, 10, 6))(epochs=2)
    assert same.state == found.state


def test_a_budget_that_ends_with_a_request_is_not_swallowed_by_gepa() -> None:
    run = RuleRun("gepa", 2, (9, 8, 3), optimizer=ScriptedOptimizer(2, before=stop_at(2)))
    with pytest.raises(BudgetError):
        run(epochs=3)
    assert run.requests == 2 and len(run.trace.states) == 3  # the first document and two iterations


def test_requests_without_an_answer_leave_their_iteration_out_and_are_not_put_twice() -> None:
    class Deaf(ScriptedOptimizer):
        def __call__(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
            super().__call__(system, user, max_tokens=max_tokens, stage=stage)
            raise EndpointError("no answer", "malformed")

    run = RuleRun("gepa", 0, (12, 4, 0), optimizer=Deaf())
    found = run(**FEW)
    assert [row["action"] for row in found.rows] == ["skip_no_patches"] * 4 and run.requests == 4
    assert run.calls.counts["gepa_reflect"].failed == 4 and found.state.best == ""
    assert [row["fallbacks"] for row in found.rows] == [{"gepa_reflect": 1}] * 4


def test_without_items_or_without_the_package_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="selection"):
        RuleRun("gepa", 0, (6, 0, 0))()
    real = builtins.__import__

    def without(name: str, *rest: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "gepa":
            raise ImportError(name)
        return real(name, *rest, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"skill-ttrl\[gepa\]"):
        RuleRun("gepa", 0, (6, 4, 0))()


def test_nothing_listens_and_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a socket listens")

    monkeypatch.setattr(socket.socket, "listen", refused)
    RuleRun("gepa", 0, (6, 4, 0))(**FEW)
    assert capsys.readouterr() == ("", "")


def stop_at(limit: int) -> Callable[[int], None]:
    """A budget of `limit` pieces of work."""

    def within(done: int) -> None:
        if done >= limit:
            raise BudgetError("spent")

    return within
