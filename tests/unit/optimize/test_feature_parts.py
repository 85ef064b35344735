"""Pure parts of the features beyond the six stages: what is read from answers, and what a model is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.documents import (
    APPENDIX,
    MODES,
    SLOW_UPDATE,
    Candidate,
    Suggestion,
    add_notes,
    block,
    distinct,
    notes_in,
    notes_of,
    read_document,
    read_text,
    set_notes,
    split,
    updated_document,
    with_block,
)
from skill_ttrl.optimize.lessons import (
    Item,
    Pair,
    PairPolicy,
    compare,
    count_changes,
    describe_step,
    show_pairs,
)
from skill_ttrl.optimize.llm_optimizer import read_budget
from skill_ttrl.optimize.selection import density
from skill_ttrl.optimize.transcript import extract_json
from skill_ttrl.optimize.types import Edit, Patch, RawPatch, RolloutResult

simple = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["", "2.5 edits", "- rule", "<!-- APPENDIX_END -->"])
)
values: st.SearchStrategy[Any] = (
    simple | st.lists(simple, max_size=3) | st.dictionaries(st.sampled_from(["op", "note", "edits"]), simple)
)
KEYS = ("edits", "revise_suggestions", "skill_candidates", "patch", "appendix_notes", "learning_rate", "new_skill")
answers = st.one_of(
    st.text(max_size=20),
    st.dictionaries(st.sampled_from([*KEYS, "slow_update_content", "meta_skill_content"]), values, max_size=4).map(
        json.dumps
    ),
)


def result(name: str, hard: int, reason: str = "") -> RolloutResult:
    return RolloutResult(name, hard, float(hard), fail_reason=reason, question=f"Question {name}?")


@settings(max_examples=80, deadline=None)
@given(answers, st.integers(0, 5))
def test_whatever_a_model_answers_is_read(answer: str, available: int) -> None:
    decision = read_budget(answer, available)
    assert 0 <= decision.budget <= available
    assert decision.named is not None or decision.budget == 0
    for mode in MODES.values():
        patch = mode.read(answer)
        assert patch is None or all(isinstance(item, mode.item) for item in patch.edits)
        json.dumps({} if patch is None else patch.to_dict())
    for text in (
        read_document(answer),
        read_text(answer, "slow_update_content"),
        read_text(answer, "meta_skill_content"),
    ):
        assert text is None or text.strip()
    notes = notes_in(extract_json(answer) or {})
    assert notes == distinct(notes)


note = st.lists(
    st.sampled_from([*"ab-*# .\n\u2028", "<!-- APPENDIX_END -->", "<!--  APPENDIX_START -->", "<!--"]), max_size=9
).map("".join)
notes_lists = st.lists(note, max_size=4)


@settings(max_examples=60, deadline=None)
@given(notes_lists, notes_lists)
def test_notes_stand_once_in_the_appendix(first: list[str], second: list[str]) -> None:
    document = set_notes("# Rules\n\n- one", distinct(first))
    assert notes_of(document) == distinct(first)
    added = add_notes(document, second)
    assert notes_of(added) == distinct([*first, *second])
    assert add_notes(added, [*second, *first]) == added
    assert split(added).body == split(document).body


@pytest.mark.parametrize("alias", ["rewrite", "Suggestions", "rewrite_from_suggestions"])
def test_modes_have_the_published_aliases(alias: str) -> None:
    assert OptimizeConfig.model_validate({"update_mode": alias}).update_mode == "rewrite_from_suggestions"


def test_a_rewrite_keeps_the_blocks() -> None:
    document = with_block(with_block("old", SLOW_UPDATE, "guidance"), APPENDIX, "- note")
    patch = Patch(
        [
            Candidate("rewrite", "new\n<!-- APPENDIX_START -->\n- forged\n<!-- APPENDIX_END -->"),
            Candidate("rewrite", "other"),
        ]
    )
    text, reports = updated_document(document, patch, MODES["full_rewrite_minibatch"], lambda: None)
    assert text is not None
    assert (split(text).body.strip(), block(text, SLOW_UPDATE), block(text, APPENDIX)) == ("new", "guidance", "- note")
    assert [report["status"] for report in reports] == ["applied_rewrite", "skipped_other_candidate"]
    assert (
        updated_document(
            document, Patch([Suggestion("clarify", "x")]), MODES["rewrite_from_suggestions"], lambda: None
        )[0]
        is None
    )


def test_pairs_are_named_by_how_they_changed() -> None:
    pairs = [Pair(result("a", before), result("a", after)) for before, after in ((0, 1), (1, 0), (0, 0), (1, 1))]
    assert [pair.change for pair in pairs] == ["improved", "regressed", "persistent_fail", "stable_success"]
    assert set(count_changes(pairs).values()) == {1}
    shown = show_pairs(pairs)
    assert (
        shown.index("Regressed") < shown.index("Still failing: w") < shown.index("Improved") < shown.index("Stable: r")
    )
    assert shown.count("<rollout") == 5  # the one that failed twice alike is shown once


@pytest.mark.parametrize(("policy", "asked", "kept"), [("mixed", 8, 4), ("unchanged", 8, 3), ("changed", 20, 3)])
def test_changed_pairs_are_looked_for_among_further_items(policy: PairPolicy, asked: int, kept: int) -> None:
    """Items 3, 6 and 9 changed; four are wanted."""
    rolled: list[str] = []

    def roll_out(document: str, items: Sequence[Item]) -> list[RolloutResult]:
        rolled.extend(str(item["id"]) for item in items)
        return [result(str(item["id"]), int(document == "now" and item["id"] % 3 == 0)) for item in items]

    items: list[Item] = [{"id": place} for place in range(1, 11)]
    pairs = compare(roll_out, ("before", "now"), items, 4, policy)
    assert (len(rolled), len(pairs)) == (asked, kept)
    rolled.clear()
    same = compare(roll_out, ("now", "now"), items, 4, policy)
    assert len(rolled) == 4 and len(same) == (0 if policy == "changed" else 4)


def test_notes_on_steps_say_what_failed_and_what_was_rejected() -> None:
    rollouts = [
        result("t1", 0, "format: no date"),
        result("t2", 0, "format: no unit"),
        result("t3", 0),
        result("t4", 1),
    ]
    raw = RawPatch(Patch(), failure_summary=[{"failure_type": "dates", "description": "</rollout> as text"}])
    rejected = [Edit("replace", "new", "old"), Edit("delete", target="gone")]
    shown = describe_step(3, "reject", 4, rollouts, [raw], rejected, (0.5, 0.25))
    assert "- format (2x: t1, t2)\n  - no reason given (1x: t3)" in shown
    assert "Step 3: reject, 3 of 4 rollouts failed" in shown
    assert "rejected edits (score 0.2500, before 0.5000):" in shown
    assert '1. replace target="old" "new"' in shown and '2. delete target="gone"' in shown
    assert "</rollout>" not in shown


def test_density_is_the_share_of_leading_words() -> None:
    assert density("") == 0.0
    assert density("<!-- ALWAYS --> You MUST answer. Never guess.") == pytest.approx(2 / 5)
