"""Pure parts of the features beyond the six stages: what is read from answers, and what a model is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.optimize.documents import (
    MODES,
    add_notes,
    distinct,
    notes_in,
    notes_of,
    read_document,
    read_text,
    set_notes,
    split,
)
from skill_ttrl.optimize.lessons import Item, PairPolicy, compare
from skill_ttrl.optimize.llm_optimizer import read_budget
from skill_ttrl.optimize.transcript import extract_json
from skill_ttrl.optimize.types import RolloutResult

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
