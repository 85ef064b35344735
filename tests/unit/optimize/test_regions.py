"""The protected block: no document and no patch can change, open or close it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.optimize.documents import (
    END,
    START,
    apply_patch_outside,
    apply_patch_with_report,
    split,
    strip_markers,
    with_body,
    with_guidance,
)
from skill_ttrl.optimize.types import Edit, Patch

PIECES = [START, END, "<!-- SLOW_UPDATE_", "START -->", "<!-- ", "rule", "\n", "\n\n", " ", "- note"]

texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
plain = st.lists(st.sampled_from(["rule a", "rule b", "\n", "\n\n\n", "  ", "- x"]), max_size=6).map("".join)


@st.composite
def edits(draw: st.DrawFn, document: str) -> Edit:
    start = draw(st.integers(0, len(document)))
    target = draw(st.one_of(texts, st.just(document[start : start + draw(st.integers(0, 40))])))
    return Edit(draw(st.sampled_from(["append", "insert_after", "replace", "delete", "?"])), draw(texts), target)


def block_of(document: str) -> str | None:
    assert document.count(START) == document.count(END) <= 1
    return document[document.index(START) : document.index(END) + len(END)] if START in document else None


@given(texts, texts, st.data())
def test_no_patch_changes_the_block(body: str, guidance: str, data: st.DataObject) -> None:
    document = with_guidance(body, guidance)
    before = block_of(document)
    assert before is not None
    patch = Patch(data.draw(st.lists(edits(document), max_size=4)))
    after, reports = apply_patch_outside(document, patch)
    assert block_of(after) == before
    assert len(reports) == len(patch.edits)
    assert not any(report["status"] in ("applied_append", "error") for report in reports)
    assert block_of(with_body(after, data.draw(texts))) == before


@given(texts)
def test_a_document_has_at_most_one_block_once_normal(document: str) -> None:
    normal = split(document).text()
    block_of(normal)
    assert split(normal).text() == normal
    assert split(normal).guidance == split(document).guidance
    assert strip_markers("".join(document.split())) == strip_markers(strip_markers("".join(document.split())))


@given(plain, st.data())
def test_without_markers_the_edits_are_those_of_the_editor(document: str, data: st.DataObject) -> None:
    cleaned = [  # each with something new: what the document says already is skipped here alone
        Edit(edit.op, f"said {place} {strip_markers(edit.content)}", edit.target)
        for place, edit in enumerate(data.draw(st.lists(edits(document), max_size=4)))
    ]
    assert apply_patch_outside(document, Patch(cleaned)) == apply_patch_with_report(document, Patch(cleaned))
    assert split(document).text() == document


STATED = "# Rules\n\n- Check the units.\n- Answer with a number\n"


@pytest.mark.parametrize(
    ("op", "target", "content", "status"),
    [
        ("append", "", "- Check the units.", "skipped_already_stated"),
        ("append", "", "\n* check  the units\n\n2. Answer with a number.\n", "skipped_already_stated"),
        ("append", "", "  \n", "skipped_already_stated"),
        ("insert_after", "# Rules", "Check the units.", "skipped_already_stated"),
        ("append", "", "- Check the units twice.", "applied_append"),
        ("append", "", "- Check the units.\n- Name them.", "applied_append"),
        ("replace", "a number", "one number", "applied_replace"),
    ],
)
def test_an_edit_that_adds_only_what_is_there_is_skipped(op: str, target: str, content: str, status: str) -> None:
    after, (report,) = apply_patch_outside(STATED, Patch([Edit(op, content, target)]))
    assert report["status"] == status and (after == STATED) == status.startswith("skipped")
