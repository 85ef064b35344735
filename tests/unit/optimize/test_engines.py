"""GEPA as an engine behind our gate, budget and journal; optimizers of one's own; rules by elimination."""

from __future__ import annotations

import json
import socket
import sys
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.data.families import RULES, OperatorGrammar, question, read_rules
from skill_ttrl.errors import (
    BudgetError,
    ConfigError,
    DataError,
    EndpointError,
    ExtensionError,
    MissingDependencyError,
    SkillTTRLError,
)
from skill_ttrl.optimize.calls import Calls, Reply
from skill_ttrl.optimize.documents import apply_patch
from skill_ttrl.optimize.engines import check_optimizer, make_optimizer
from skill_ttrl.optimize.induction import InductionOptimizer, make_induction
from skill_ttrl.optimize.types import Edit, Patch, RawPatch, RolloutResult, StepView, compute_score
from skill_ttrl.prompts.templates import Templates
from tests.rule_optimizer import ScriptedOptimizer
from tests.rule_runs import RuleRun


def test_the_outcome_of_gepa_is_what_passed_our_gate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a socket listens")

    monkeypatch.setattr(socket.socket, "listen", refused)
    run = RuleRun("gepa", 1, (20, 10, 6))
    found = run(epochs=2)
    assert len(found.rows) == 14 and found.rows[-1]["step"] == 14 and found.rows[7]["epoch"] == 2
    accepted = [row for row in found.rows if str(row["action"]).startswith("accept")]
    assert accepted and all("candidate_hash" in row for row in accepted)
    assert found.state.best_score == max(row["candidate_gate_score"] for row in accepted)
    assert found.state.best_score > compute_score(found.first_evaluation.results)[0]
    assert found.test_best is not None and len(found.test_best) == 6
    assert {*run.calls.counts} == {"rollout", "selection", "gepa_reflect", "test"}
    selections = [each for each in run.target.calls if each[1].startswith("val")]
    assert len(selections) == len(set(selections)) and len(selections) % 10 == 0  # a document is evaluated once
    assert RuleRun("gepa", 1, (20, 10, 6))(epochs=2).state == found.state
    assert capsys.readouterr() == ("", "")


def test_neither_a_spent_budget_nor_a_missing_answer_is_swallowed_by_gepa() -> None:
    def within(done: int) -> None:
        if done >= 2:
            raise BudgetError("spent")

    run = RuleRun("gepa", 2, (9, 8, 3), optimizer=ScriptedOptimizer(2, before=within))
    with pytest.raises(BudgetError):
        run(epochs=3)
    assert run.requests == 2 and len(run.trace.states) == 3  # the first document and two iterations

    class Deaf(ScriptedOptimizer):
        def __call__(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
            super().__call__(system, user, max_tokens=max_tokens, stage=stage)
            raise EndpointError("no answer", "malformed")

    run = RuleRun("gepa", 0, (12, 4, 0), optimizer=Deaf())
    found = run(epochs=1)
    assert [row["action"] for row in found.rows] == ["skip_no_patches"] * 4 and run.requests == 4  # not put twice
    assert run.calls.counts["gepa_reflect"].failed == 4 and found.state.best == ""
    assert [row["fallbacks"] for row in found.rows] == [{"gepa_reflect": 1}] * 4


def test_without_items_or_without_the_package_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="selection"):
        RuleRun("gepa", 0, (6, 0, 0))()
    monkeypatch.setitem(sys.modules, "gepa.api", None)
    with pytest.raises(MissingDependencyError, match=r"\.\[gepa\]"):
        RuleRun("gepa", 0, (6, 4, 0))()


# --- an optimizer of one's own: mistakes name it and what is expected ---


class Mine:
    """Returns, or raises, `answer`."""

    answer: Any = None

    def __init__(self, calls: Any, config: Any, templates: Any) -> None: ...

    def reflect(self, view: StepView, *_: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    merge = select = reflect


class Half:
    """Two methods are missing."""

    def __init__(self, calls: Any, config: Any, templates: Any) -> None: ...
    def reflect(self, view: StepView) -> Any: ...


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    found = types.ModuleType("of_ones_own")
    vars(found).update(Mine=Mine, Half=Half, Boom=object, text="a text")
    monkeypatch.setitem(sys.modules, "of_ones_own", found)


def made(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Any:
    monkeypatch.setattr(Mine, "answer", answer)
    return make_optimizer(Calls(None, lambda *_, **__: []), OptimizeConfig(optimizer="of_ones_own:Mine"))


@pytest.mark.parametrize(("name", "missing"), [("Boom", ""), ("Half", "merge and no select"), ("text", "")])
def test_a_class_that_is_no_optimizer_is_refused_before_anything_is_done(name: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"of_ones_own:{name}.*{missing}"):
        check_optimizer(f"of_ones_own:{name}")


def test_an_optimizer_of_one_s_own_is_named_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    view: Any = StepView(3, 1, "", (), 4, 0)
    of_words: Any = [RawPatch(Patch(["a rule"]))]  # type: ignore[list-item]
    for answer, wanted in ((None, "list of RawPatch"), ([Patch()], "list of RawPatch"), (of_words, "list of Edit")):
        own = made(monkeypatch, answer)
        with pytest.raises(ConfigError, match=f"of_ones_own:Mine.*reflect .*{wanted}"):
            own.reflect(view)
        for method, further in (("merge", ([],)), ("select", (Patch(), 2))):
            with pytest.raises(ConfigError, match=f"of_ones_own:Mine.*{method} .*Patch"):
                getattr(own, method)(view, *further)
    with pytest.raises(ExtensionError, match=r"of_ones_own:Mine.* merge of step 3: KeyError: 'rule'"):
        made(monkeypatch, KeyError("rule")).merge(view, [])
    with pytest.raises(BudgetError, match="spent"):
        made(monkeypatch, BudgetError("spent")).reflect(view)
    patches = [RawPatch(Patch([Edit("append", "- a rule")]))]
    assert made(monkeypatch, patches).reflect(view) == patches


# --- rules by elimination: every proposed line explains every rollout so far ---

GRAMMAR = OperatorGrammar()


def rollout(name: str, x: int, answer: str, *, true: str = "", hard: int = 0) -> RolloutResult:
    asked = question(name, x)
    return RolloutResult(f"{name}-{x}", hard, hard, question=asked, predicted_answer=answer, reference_text=true)


def view(*rollouts: RolloutResult, document: str = "", seed: int = 0) -> StepView:
    return StepView(1, 1, document, rollouts, 8, seed)


def value(line: str, x: int) -> str:
    """Computed without the family's own arithmetic."""
    _, rule = line.split(" ")
    return str(int(eval(f"({x} {rule[0]} {rule[1]}) % 10")))


def test_what_rollouts_show_excludes_lines() -> None:
    """(4 -> 3) is +9, -1, *2 or *7; (5 -> 4) leaves +9 and -1, which are one function."""
    optimizer = InductionOptimizer(GRAMMAR)
    (first,) = optimizer.reflect(view(rollout("bako", 4, "0", true="3")))
    (edit,) = first.patch.edits
    heading, _, line = edit.content.partition("\n\n")
    assert (edit.op, heading, edit.support_count) == ("append", "## bako", 1) and value(line, 4) == "3"
    (second,) = optimizer.reflect(view(rollout("bako", 5, "0", true="4"), document="bako *2"))
    (edit,) = second.patch.edits
    assert (edit.op, edit.target) == ("replace", "bako *2") and edit.content in ("bako +9", "bako -1")
    blind = InductionOptimizer(GRAMMAR)  # without true answers failures and successes exclude lines
    blind.reflect(view(rollout("bako", 4, "3", hard=1), rollout("bako", 5, "9")))
    (found,) = blind.reflect(view(rollout("bako", 5, "0")))
    assert found.patch.edits[0].content[-7:] in ("bako +9", "bako -1"), "neither 9 nor 0 was right at 5"
    again = InductionOptimizer(GRAMMAR)
    again.load_state_dict(json.loads(json.dumps(blind.state_dict())))
    assert again == blind, "a checkpoint keeps the evidence"


@given(
    st.lists(st.tuples(st.sampled_from(["bako", "kida", "vuba"]), st.integers(0, 9)), min_size=1, max_size=30),
    st.lists(st.sampled_from(RULES), min_size=3, max_size=3),
    st.integers(0, 5),
)
def test_what_is_proposed_explains_every_failure_so_far(
    asked: list[tuple[str, int]], rules: list[Any], seed: int
) -> None:
    true = dict(zip(["bako", "kida", "vuba"], rules, strict=True))
    optimizer, document = InductionOptimizer(GRAMMAR), "bako +0\n\nSome advice."
    for place, (name, x) in enumerate(asked):
        failed = rollout(name, x, "-", true=value(true[name].of(name), x))
        for raw in optimizer.reflect(view(failed, document=document, seed=seed + place)):
            document = apply_patch(document, raw.patch)
    lines = {skill.title: skill.text for skill in read_rules(document)}
    for name, x in asked:
        assert value(lines[name], x) == value(true[name].of(name), x)
    assert "Some advice." in document and sum(document.count(f" {sign}") for sign in "+-*") == len(lines)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs a grammar"),
        ({"grammer": "a:b"}, "needs a grammar.*found .*grammer"),
        ({"grammar": "skill_ttrl.data.families:Rule"}, "families:Rule' failed when it was made"),
        ({"grammar": "skill_ttrl.data.families:RULES"}, "without subject and lines and predict"),
    ],
)
def test_options_without_a_usable_grammar_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SkillTTRLError, match=why):
        make_induction(Calls(None, lambda *_, **__: []), OptimizeConfig(optimizer_options=options), Templates())
