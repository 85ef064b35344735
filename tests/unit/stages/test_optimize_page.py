"""The page of an optimization: it tells the folder's history, parses as HTML, and what models wrote stays text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import BudgetError, RunFolderError
from skill_ttrl.optimize.folder import write_results
from skill_ttrl.stages.reports.document_diff import diff_documents
from skill_ttrl.stages.reports.optimize_history import read_history
from skill_ttrl.stages.reports.optimize_page import optimize_html, score_chart, write_optimize_html
from tests.unit.optimize.test_loop import CONFIG, RULES, World, run

HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}{% raw %}\u202e\x00 ]]> <!-- &lt;b&gt;"
VOID = {"meta", "path", "circle", "polyline"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; raises where a tag is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID or (tag in ("path", "circle") and not self.get_starttag_text().endswith("/>")):  # type: ignore[union-attr]
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_tells_the_history_and_its_numbers_are_those_of_the_folder(tmp_path: Path) -> None:
    found, _ = run(World(), tmp_path)
    for name, results in (("baseline", found.test_first), ("best", found.test_best)):
        write_results(tmp_path / f"test_eval_{name}", results or ())
    page = Page(write_optimize_html(tmp_path).read_text())
    history = read_history(tmp_path)
    assert [step.number for step in history.steps] == [1, 2, 3, 4] and history.best == found.state.best
    for before, after in zip(history.steps, history.steps[1:], strict=False):
        assert before.after == after.before
    assert history.steps[-1].after == found.state.current
    for said in ("accepted, new best", "0.000 [0.000, 0.390]", "1.000 [0.610, 1.000]", "paired over 6 items", *RULES):
        assert said in page.text, said
    assert "skipped: no edits" in page.text and "analyst_error" not in page.tags
    chart = score_chart(history)
    assert chart["marks"][0]["kind"] == "accepted" and len(chart["current"].split()) == 9  # stairs over 5 scores


class Hostile(World):
    def answer(self, user: str, stage: str) -> str:
        edits = [{"op": "append", "content": HOSTILE}, {"op": "replace", "target": HOSTILE, "content": "x"}]
        return json.dumps({"reasoning": HOSTILE, "edits": edits, "selected_indices": [0, 1]})


def test_what_models_wrote_stays_text(tmp_path: Path) -> None:
    run(Hostile(), tmp_path, CONFIG.model_copy(update={"gate": CONFIG.gate.model_copy(update={"enabled": False})}))
    (tmp_path / "summary.json").write_text(
        json.dumps({"name": HOSTILE, "policy": HOSTILE, "work": {HOSTILE: {"asked": 1}}})
    )
    text = write_optimize_html(tmp_path).read_text()
    page = Page(text)
    assert not page.tags & {"script", "img", "iframe", "link", "a", "form", "object"}
    assert not any(name.startswith("on") or name in ("src", "href") for name in page.attributes)
    assert "<script>alert(1)</script>" in page.text and "{{ 7 * 7 }}" in page.text
    assert not {"\u202e", "\x00"} & set(text) and "default-src 'none'" in text


def test_a_run_that_goes_on_has_a_page_and_another_folder_has_none(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no folder of an optimization"):
        write_optimize_html(tmp_path)
    with pytest.raises(BudgetError):
        run(World(die_after=24), tmp_path, OptimizeConfig(epochs=2, batch_size=6, minibatch_size=2, workers=1))
    text = optimize_html(read_history(tmp_path))
    assert "has not ended" in text and "analyst_error" in text and "rollouts" in text
    (tmp_path / "history.json").write_text("[{")
    with pytest.raises(RunFolderError, match=r"history\.json cannot be read"):
        read_history(tmp_path)


DOCUMENT = st.lists(st.sampled_from(["- a rule", "- another rule", "", "<b>", "- a rule of 3 words"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(DOCUMENT, DOCUMENT)
def test_a_difference_has_every_line_that_came_and_went(old: list[str], new: list[str]) -> None:
    diff = diff_documents("\n".join(old), "\n".join(new))
    lines = {
        kind: ["".join(text for text, _ in each.segments) for each in diff.lines if each.kind == kind]
        for kind in ("added", "removed")
    }
    before, after = "\n".join(old).splitlines(), "\n".join(new).splitlines()
    assert (len(lines["added"]), len(lines["removed"])) == (diff.added, diff.removed)
    assert len(before) - diff.removed == len(after) - diff.added
    assert bool(diff) == (before != after)
    for line in {*before, *after}:
        assert after.count(line) - before.count(line) == lines["added"].count(line) - lines["removed"].count(line)


def test_the_words_that_changed_are_marked() -> None:
    diff = diff_documents("# Rules\n- write 2 decimals\n", "# Rules\n- write 3 decimals\n")
    assert [line.segments for line in diff.lines if line.kind == "added"] == [
        (("- write ", False), ("3", True), (" decimals", False))
    ]
