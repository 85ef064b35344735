"""Tasks and rollouts of which nothing tells success are neither successes nor failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.errors import DataError, EnvError
from skill_ttrl.optimize.calls import Calls, Item, Journal
from skill_ttrl.optimize.types import RolloutResult, graded
from skill_ttrl.progress import SilentProgress
from skill_ttrl.stages.optimize import prepare

ITEMS: list[dict[str, Any]] = [{"id": name} for name in "abcd"]


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def notice(self, text: str, *, warning: bool = False) -> None:
        self.lines.append(text)


def calls(marks: dict[str, dict[str, Any]], journal: Path, notes: Notes) -> Calls:
    def roll_out(
        document: str, items: Sequence[Item], *, seed: int, on_result: Callable[[int, RolloutResult], None]
    ) -> list[RolloutResult]:
        return [RolloutResult(item["id"], extras=marks.get(item["id"], {})) for item in items]

    return Calls(None, roll_out, Journal(journal), progress=notes)


def test_a_run_that_nothing_grades_ends_with_its_first_rollouts_and_begins_anew(tmp_path: Path) -> None:
    marks = {item["id"]: {"ungraded": True} for item in ITEMS} | {"a": {"stop_reason": "error"}}
    with pytest.raises(EnvError, match=r"ungraded \(first 'b'\)"):
        calls(marks, tmp_path / "journal.jsonl", Notes()).roll_out("selection", "", ITEMS)
    again = calls({}, tmp_path / "journal.jsonl", notes := Notes())
    assert again.journal.replayed == 0
    assert not any(result.ungraded for result in again.roll_out("selection", "", ITEMS)) and not notes.lines


def test_some_that_nothing_grades_are_counted_and_said_once(tmp_path: Path) -> None:
    found = calls({"a": {"ungraded": True}, "b": {"rewarded": True}}, tmp_path / "journal.jsonl", notes := Notes())
    for document in ("", "one"):
        results = found.roll_out("rollout", document, ITEMS)
    assert [result.id for result in graded(results)] == ["b", "c", "d"]
    assert found.counts["rollout"].ungraded == 2
    assert [line.split(" rollouts")[0] for line in notes.lines] == ["1 of 4", "1 of 4"]
    assert "ungraded" in notes.lines[0] and "info['won']" in notes.lines[1]
    found.roll_out("rollout", "two", ITEMS[:1])  # something was graded before: one ungraded batch ends nothing


@pytest.mark.parametrize("env", ["qa", "math"])
def test_tasks_without_a_true_answer_are_refused_where_nothing_else_tells(env: str, tmp_path: Path) -> None:
    def written(name: str, answers: Sequence[str | None], **more: Any) -> dict[str, str]:
        rows = [{"id": f"{name}{n}", "question": f"{name} {n}?", "answer": text} for n, text in enumerate(answers)]
        (tmp_path / name).write_text("".join(json.dumps({**row, **more}) + "\n" for row in rows))
        return {"path": str(tmp_path / name)}

    data = {"train": written("t.jsonl", ["1", None, "3", None]), "eval": written("e.jsonl", [None, None])}
    own = {"data": written("s.jsonl", ["1", "2"])["path"]}
    config = {"env": {"id": env}, "rollout": {"backend": "openai"}, "data": data, "optimize": {"selection": own}}
    endpoints = {"model": "m", "roles": {"optimizer": {}}}
    with pytest.raises(DataError) as caught:
        prepare({**config, "endpoints": endpoints}, policy="openai:m")
    text = str(caught.value)
    assert text.startswith(
        "2 of 4 training tasks (first 't.jsonl1' ('t.jsonl 1?')) and 2 of 2 test tasks (first 'e.jsonl0'"
    )
    assert "no true answer" in text and "optimize.test_tasks=0" in text
