"""A program as the policy of whole commands: measured, optimized for, and stopped where it hangs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.stages.optimize import optimize_run, prepare

AGENT = Path(__file__).parents[2] / "examples" / "command_agent.py"
OPTIMIZER = '''
from skill_ttrl.data.formats import CONVENTIONS
from skill_ttrl.optimize.types import Edit, Patch, RawPatch


class Knows:
    """Appends the rule of every kind of question that failed."""

    def __init__(self, calls, config, templates):
        pass

    def reflect(self, view):
        failed = {each.task_type for each in view.rollouts if not each.hard}
        rules = [each.rule for each in CONVENTIONS if each.name in failed and each.rule not in view.document]
        return [RawPatch(patch=Patch(edits=[Edit(op="append", content=f"- {rule}") for rule in rules]), source_type="failure")]

    def merge(self, view, patches):
        return Patch(edits=[edit for patch in patches for edit in patch.patch.edits])

    def select(self, view, patch, max_edits):
        return Patch(edits=patch.edits[:max_edits])
'''
HANGS = """
import pathlib, runpy, sys, time
text = sys.stdin.read()
if pathlib.Path(sys.argv[1]).exists() and "bridge" in text:
    time.sleep(60)
print(runpy.run_path(sys.argv[2])["answer"](text))
"""


def config(argv: list[str], **command: Any) -> dict[str, Any]:
    return {
        "env": {"id": "qa", "train_tasks": 16, "eval_tasks": 8},
        "rollout": {"backend": "command", "max_new_tokens": 40},
        "command": {"argv": argv, **command},
        "eval": {"samples": 1, "greedy": False, "controls": []},
        "optimize": {
            "optimizer": "knowing:Knows",
            "epochs": 1,
            "batch_size": 4,
            "selection": {"tasks": 8},
            "slow_update": False,
            "meta_skill": False,
        },
    }


@pytest.mark.slow
def test_a_document_is_found_for_a_program_and_one_that_hangs_is_a_failed_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "knowing.py").write_text(OPTIMIZER, encoding="utf-8")
    (tmp_path / "agent.py").write_text(HANGS, encoding="utf-8")
    (tmp_path / "hang").mkdir()  # a folder: a file among the arguments would be part of what the policy is
    argv = [sys.executable, "agent.py", str(tmp_path / "hang"), str(AGENT)]
    found = optimize_run(prepare(config(argv, timeout=3)), output=tmp_path / "run")
    journal = (tmp_path / "run" / "journal.jsonl").read_text(encoding="utf-8")
    assert "did not end within 3 s (command.timeout) and was stopped" in journal
    assert found.selection_best > 0
    (tmp_path / "hang").rmdir()
    usage = (tmp_path / "run" / "usage.jsonl").read_text(encoding="utf-8")
    again = optimize_run(prepare(config(argv, timeout=3)), output=tmp_path / "run")
    assert again.selection_best == found.selection_best
    assert (tmp_path / "run" / "usage.jsonl").read_text(encoding="utf-8") == usage, "what is done is not done again"
