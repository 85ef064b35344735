"""Rules by elimination: every proposed line explains every rollout so far, and the whole loop finds what is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.data.families import RULES, OperatorGrammar, question, read_rules
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.documents import apply_patch
from skill_ttrl.optimize.induction import InductionOptimizer, make_induction
from skill_ttrl.optimize.types import RolloutResult, StepView
from skill_ttrl.prompts.templates import Templates

GRAMMAR = OperatorGrammar()


def rollout(name: str, x: int, answer: str, *, true: str = "", hard: int = 0) -> RolloutResult:
    return RolloutResult(
        f"{name}-{x}", hard, hard, question=question(name, x), predicted_answer=answer, reference_text=true
    )


def view(*rollouts: RolloutResult, document: str = "", seed: int = 0) -> StepView:
    return StepView(1, 1, document, rollouts, 8, seed)


def value(line: str, x: int) -> str:
    """Computed without the family's own arithmetic."""
    _, rule = line.split(" ")
    return str(int(eval(f"({x} {rule[0]} {rule[1]}) % 10")))


def test_true_answers_of_failures_leave_the_lines_that_give_them() -> None:
    """(4 -> 3) is +9, -1, *2 or *7; (5 -> 4) leaves +9 and -1, which are one function."""
    optimizer = InductionOptimizer(GRAMMAR)
    (first,) = optimizer.reflect(view(rollout("bako", 4, "0", true="3")))
    (edit,) = first.patch.edits
    heading, _, line = edit.content.partition("\n\n")
    assert (edit.op, heading, edit.support_count) == ("append", "## bako", 1) and value(line, 4) == "3"
    (second,) = optimizer.reflect(view(rollout("bako", 5, "0", true="4"), document="bako *2"))
    (edit,) = second.patch.edits
    assert (edit.op, edit.target) == ("replace", "bako *2") and edit.content in ("bako +9", "bako -1")


def test_without_true_answers_failures_and_successes_exclude_lines() -> None:
    optimizer = InductionOptimizer(GRAMMAR)
    optimizer.reflect(view(rollout("bako", 4, "3", hard=1), rollout("bako", 5, "9")))
    assert not optimizer.evidence["bako"].excludes("bako +9", GRAMMAR)
    assert optimizer.evidence["bako"].excludes("bako +1", GRAMMAR), "4 + 1 is not 3"
    (found,) = optimizer.reflect(view(rollout("bako", 5, "0")))
    assert found.patch.edits[0].content[-7:] in ("bako +9", "bako -1"), "neither 9 nor 0 was right at 5"
    again = InductionOptimizer(GRAMMAR)
    again.load_state_dict(json.loads(json.dumps(optimizer.state_dict())))
    assert again == optimizer, "a checkpoint keeps the evidence"


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
    assert "Some advice." in document and document.count(" +") + document.count(" -") + document.count(" *") == len(
        lines
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs a grammar"),
        ({"grammer": "a:b"}, "needs a grammar.*found .*grammer"),
        ({"grammar": "skill_ttrl.data.families:Rule"}, "families:Rule' failed when it was made"),
        ({"grammar": "skill_ttrl.data.families:RULES"}, "no method subject, lines, predict"),
        ({"grammar": "skill_ttrl.data.families:Operatorgrammar"}, "Did you mean"),
    ],
)
def test_options_without_a_usable_grammar_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SkillTTRLError, match=why):
        make_induction(Calls(None, lambda *_, **__: []), OptimizeConfig(optimizer_options=options), Templates())
