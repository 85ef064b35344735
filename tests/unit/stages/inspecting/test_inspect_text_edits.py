"""`skillttrl inspect optimize.jsonl`: a row for each edit of the bank's text."""

from __future__ import annotations

import json
from pathlib import Path

from skill_ttrl.stages.inspecting.inspect import inspect

COUNTS = {"edits": 2, "applied": 1, "changed": 1, "rollouts": 16}


def test_each_edit_has_its_step_its_status_and_what_changed(tmp_path: Path) -> None:
    edits = [
        {"op": "append", "target": "", "content_preview": "## star\nstar is plus", "status": "applied_append"},
        {"op": "delete", "target": "gone", "content_preview": "", "status": "skipped_target_not_found"},
    ]
    lines = [
        {
            "phase": "rl",
            "step": 1,
            "failures": 15,
            **COUNTS,
            "report": edits,
            "changes": [{"kind": "add", "id": "sk-1"}],
        },
        {"phase": "rl", "step": 3, "failures": 0, **COUNTS, "report": [], "changes": []},
    ]
    file = tmp_path / "optimize.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = inspect(file)
    assert found.facts == {"lines": 2}
    assert found.columns == ("step", "failed", "edit", "status", "text", "changes of the step")
    assert found.rows == [
        (1, "15 of 16", "append", "applied_append", "## star star is plus", "add sk-1"),
        (1, "15 of 16", "delete", "skipped_target_not_found", "gone", "add sk-1"),
        (3, "0 of 16", None, None, None, "none"),
    ]
