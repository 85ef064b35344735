"""The same inputs through PyPI's skillrl 1.0.0 and through ours: editor, budgets, gate, answers, scores, JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import skillrl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from skillrl.core import editor, gate, scheduler, utils

from skill_ttrl import optimize as ours
from skill_ttrl.errors import DataError
from skill_ttrl.optimize.documents import EditReport

OPS = ("append", "insert_after", "replace", "delete", "Append", "", "move")
PIECES = st.sampled_from(["rule", "rule 1", "\n", "\n\n", " ", "- ", "#", "é", "\r\n", "\t", "", "{x}", "\\1", "\x00"])
TEXTS = st.lists(PIECES, max_size=6).map("".join)
EDITS = st.fixed_dictionaries(
    {"op": st.sampled_from(OPS), "content": TEXTS | st.none(), "target": TEXTS | st.none()},
    optional={
        "support_count": st.none() | st.integers(0, 9),
        "source_type": st.sampled_from([None, "failure", "success"]),
        "merge_level": st.none() | st.integers(1, 3),
    },
)

# --- the editor ---


@given(TEXTS, st.lists(EDITS, max_size=4), st.booleans())
def test_patches_give_the_same_document_and_reports(skill: str, edits: list[dict[str, Any]], typed: bool) -> None:
    patch: dict[str, Any] = {"edits": edits, "reasoning": "because"}
    theirs = editor.apply_patch_with_report(skill, skillrl.Patch.from_dict(patch) if typed else patch)
    mine = ours.apply_patch_with_report(skill, ours.Patch.from_dict(patch) if typed else patch)
    assert mine == theirs
    assert ours.apply_patch(skill, patch) == theirs[0]


def applied(skill: str, edits: object) -> tuple[str, list[EditReport]]:
    return ours.apply_patch_with_report(skill, ours.Patch.from_dict({"edits": edits}))


@pytest.mark.parametrize(
    "edit",
    [
        "append: more",
        7,
        None,
        ["append", "x"],
        {"op": ["append"], "content": "x"},
        {"op": None, "content": "x"},
        {"op": "append", "content": ["x", "y"]},
        {"op": "replace", "target": {"line": 1}, "content": "x"},
    ],
)
def test_what_is_no_edit_is_skipped_and_reported(edit: object) -> None:
    """skillrl writes the Python text of a list into the document, or fails in a later stage on what is no object."""
    document, reports = applied("doc", [edit, {"op": "append", "content": "good"}])
    assert document == "doc\n\ngood\n"
    assert [report["status"] for report in reports] == ["skipped_unknown_op", "applied_append"]
    written = json.dumps(reports).encode()
    assert b"index" in written
    raw = ours.apply_patch_with_report("doc", {"edits": [edit]})
    assert raw[0] == "doc" and raw[1][0]["status"] in {"error", "skipped_unknown_op"}


def test_half_characters_of_a_model_s_json_do_not_reach_the_document() -> None:
    patch = json.loads('{"edits": [{"op": "append", "content": "half \\ud800"}], "reasoning": "\\udfff"}')
    document = ours.apply_patch("doc", ours.Patch.from_dict(patch))
    assert document == "doc\n\nhalf \N{REPLACEMENT CHARACTER}\n"
    assert len(ours.skill_hash(document)) == 16
    with pytest.raises(UnicodeEncodeError):
        utils.skill_hash(editor.apply_patch("doc", skillrl.Patch.from_dict(patch)))


# --- budgets ---


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(-1, 60),
    st.integers(0, 70),
)
@example("cosine", 4, 2, 1, 5)
@example("linear", 4, 2, 0, 3)
def test_budgets_are_the_same(mode: str, top: int, low: int, total: int, start: int) -> None:
    mine, theirs = ours.build_scheduler(mode, top, low, total), scheduler.build_scheduler(mode, top, low, total)
    assert [mine.get_lr(step) for step in range(-1, 75)] == [theirs.get_lr(step) for step in range(-1, 75)]
    mine.load_state_dict({"current_step": start})
    theirs.load_state_dict({"current_step": start})
    assert [mine.step() for _ in range(4)] == [theirs.step() for _ in range(4)]
    assert mine.state_dict() == theirs.state_dict() == {"current_step": start + 4}


# --- the gate ---

SCORES = st.sampled_from([-1.0, 0.0, 0.25, 0.3, 0.5, 0.75, 1.0])


@given(SCORES, SCORES, SCORES, SCORES, st.sampled_from(["hard", "soft", "mixed"]), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_gate_decides_the_same(
    hard: float, soft: float, current: float, best: float, metric: str, weight: float
) -> None:
    state: dict[str, Any] = {
        "candidate_skill": "new", "cand_hard": hard, "cand_soft": soft, "current_skill": "old",
        "current_score": current, "best_skill": "top", "best_score": best, "best_step": 3, "global_step": 5,
        "metric": metric, "mixed_weight": weight,
    }  # fmt: skip
    assert vars(ours.evaluate_gate(**state)) == vars(gate.evaluate_gate(**state))
    assert ours.select_gate_score(hard, soft, metric, weight) == gate.select_gate_score(hard, soft, metric, weight)


# --- answers and scores ---

BITS = st.sampled_from(
    [
        "```json",
        "```",
        "```JSON\n",
        '{"edits": []}',
        '{"a": {"b": 1}}',
        "[1]",
        "{",
        "}",
        '{"a": NaN}',
        "so: ",
        "\n",
        "null",
    ]
)


@given(st.lists(BITS, max_size=6).map("".join))
def test_the_same_json_is_found(text: str) -> None:
    assert repr(ours.extract_json(text)) == repr(utils.extract_json(text))


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1)), max_size=9))
def test_scores_are_the_same_to_the_last_digit(pairs: list[tuple[int, float]]) -> None:
    rows = [{"hard": hard, "soft": soft} for hard, soft in pairs]
    assert ours.compute_score(rows) == utils.compute_score(rows)
    typed = [ours.RolloutResult("1", hard, soft) for hard, soft in pairs]
    assert ours.compute_score(typed) == ours.compute_score(iter(rows))


@given(st.text(max_size=20))
@settings(max_examples=15)
def test_documents_have_the_same_hash(text: str) -> None:
    assert ours.skill_hash(text) == utils.skill_hash(text)


# --- JSON ---


@given(st.lists(EDITS, max_size=3), st.none() | st.just({"selected_indices": [0]}))
def test_patches_round_trip_as_there(edits: list[dict[str, Any]], details: dict[str, Any] | None) -> None:
    raw = {
        "patch": {"edits": edits, "reasoning": None, "ranking_details": details},
        "source_type": "success",
        "batch_size": 8,
    }
    mine, theirs = ours.RawPatch.from_dict(raw), skillrl.RawPatch.from_dict(raw)
    assert mine is not None
    assert mine.to_dict() == theirs.to_dict()
    again = ours.RawPatch.from_dict(theirs.to_dict())
    assert again == mine


@pytest.mark.parametrize("value", ["solved", [1], math.nan, math.inf])
def test_a_score_that_is_no_number_is_named(value: object) -> None:
    with pytest.raises(DataError, match=r"rollout 'q1' has hard = .*1 for solved"):
        ours.RolloutResult.from_dict({"id": "q1", "hard": value})
