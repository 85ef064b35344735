"""Rollouts in other programs' files, read back by these. Run as it is in an environment with inspect-ai (test_environments_of_others)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import export
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import DataError, RunFolderError
from skill_ttrl.runs.folder import RunFolder, SampleRecord, trajectory_lines
from skill_ttrl.types import Completion, Group, Step, Task, ToolCall, Trajectory

HOSTILE = "../../x\0\x1b[31m<script>alert(1)</script>" + "y" * 70_000
BAD = "<content-internal>zzz</content-internal><b>"


def said(text: str) -> Completion:
    return Completion(text, (5, 6), (-0.5, -0.5), "stop")


def group(task: Task, *answers: str) -> Group:
    calls = (ToolCall("add", '{"a": 2}', result="4"), ToolCall("", "{broken", result="no JSON", error="not_json"))
    asked = Step("2+2?", "", 0.0, False, False, (1, 2, 3), said("<think>Add.</think>A tool."), calls=calls)
    tries = []
    for answer in answers:
        last = Step("4\nno JSON", answer, 1.0, True, False, (1,), said(f"{answer} {BAD}"), {"graded": False})
        tries.append(Trajectory(task, (asked, last), answer, "terminated", float(answer == "4"), retrieved=("s1",)))
    return Group(task, tuple(tries))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of two tasks, and an episode as `skillttrl collect` writes it."""
    path, tasks = tmp_path_factory.mktemp("rollouts") / "trajectories.jsonl", (Task("t", "E"), Task(HOSTILE, "E"))
    record = SampleRecord(1.0, 1.0, (0.5, None))
    lines = [
        line
        for step in range(4)
        for task in tasks
        for line in trajectory_lines("../rl", step, group(task, "4", "5"), [record] * 2)
    ]
    failed: dict[str, Any] = {
        "task": {"id": "c", "env_id": "E"},
        "steps": [],
        "answer": None,
        "stop_reason": "error",
        "error": "<i>no",
    }
    path.write_text("\n".join([*lines, json.dumps(failed)]) + "\n")
    return path


def test_inspect_reads_logs_of_a_run_with_its_evaluations(tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="needs the extra inspect")
    task = Task("t", "E")
    with RunFolder.create(tmp_path / "run", SkillTTRLConfig(name="r")) as folder:
        folder.append_jsonl("trajectories.jsonl", trajectory_lines("rl", 0, group(task, "4")))
        lines = trajectory_lines("after", 1, group(task, "5"), [SampleRecord(original_score=0.0)])
        folder.append_jsonl("eval_trajectories.jsonl", lines)
    assert export.export_rollouts(folder.path, tmp_path / "logs", "inspect") == (2, [])
    found = [log.read_eval_log(str(path)) for path in sorted((tmp_path / "logs").iterdir())]
    assert [each.eval.task for each in found] == ["r rl step 0", "r after step 1"]
    (sample,) = found[1].samples
    assert (sample.metadata["phase"], sample.metadata["step"], sample.scores["success"].value) == ("after", 1, 0)


def test_pandas_and_datasets_read_a_table(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    monkeypatch.setattr(export, "_BATCH", 3)
    output = tmp_path / "new" / "rollouts.parquet"
    assert export.export_rollouts(file, output, "parquet") == (17, [])
    table = pandas.read_parquet(output)
    (loaded,) = datasets.load_dataset("parquet", data_files=str(output), cache_dir=str(tmp_path)).values()
    assert loaded.column_names == list(table.columns) and loaded["id"][1] == table.id[1] == "../rl:0:t:1"
    row = loaded[0]
    assert (row["step"], row["sample"], row["task"], row["reward"], row["turns"]) == (0, 0, "t", 1.0, 2)
    assert (row["advantages"], row["original_score"], row["retrieved"]) == ([0.5, None], 1.0, ["s1"])
    assert (row["prompt"], row["prompt_tokens"], row["sampled_tokens"]) == ("2+2?", 4, 4) and BAD in row["text"]
    assert (loaded[16]["id"], loaded[16]["step"], loaded[16]["error"]) == (None, None, "<i>no")


def test_what_is_no_rollout_leaves_nothing_behind(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path, output = tmp_path / "mine.jsonl", tmp_path / "out.parquet"
    first = file.read_text().splitlines()[0]
    for line, why in (
        ('{"a": 1}', "mine.jsonl:2 cannot be read"),
        (first.replace('"step": 0', f'"step": {9**40}'), "fit"),
    ):
        path.write_text(f"{first}\n{line}\n")
        with pytest.raises(DataError, match=why):
            export.export_rollouts(path, output, "parquet")
    path.write_text(first)
    with pytest.raises(DataError, match="no complete line"):
        export.export_rollouts(path, output, "parquet")
    with pytest.raises(RunFolderError, match="no run and no file that ends in"):
        export.export_rollouts(tmp_path / "none", output, "parquet")
    assert {entry.name for entry in tmp_path.iterdir()} == {"mine.jsonl"}


def test_inspect_reads_a_log_for_each_step(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = pytest.importorskip("inspect_ai.log", reason="needs the extra inspect")
    monkeypatch.setattr(export, "LOGS", 3)
    count, notes = export.export_rollouts(file, tmp_path / "logs", "inspect")
    assert count == 9 and notes == [
        "3 of 5 steps, evenly spread, with at most 2,048 rollouts each: 8 of 17 rollouts are left out; --format parquet has all of the training."
    ]
    names = ["001-step-0.eval", "002-step-2.eval", "003-step-0.eval"]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == names
    assert len(log.list_eval_logs(str(tmp_path / "logs"))) == 3
    found = [log.read_eval_log(str(tmp_path / "logs" / name)) for name in names]
    assert [each.eval.task for each in found] == [
        "trajectories ../rl step 0",
        "trajectories ../rl step 2",
        "trajectories",
    ]
    assert {each.name: each.metrics["mean"].value for each in found[0].results.scores} == {
        "reward": 0.5,
        "success": 1.0,
    }
    assert [(each.id[:5], each.epoch) for each in found[0].samples] == [("../..", 1), ("t", 1), ("../..", 2), ("t", 2)]
    sample: Any = found[0].samples[2]
    assert (sample.scores["reward"].value, sample.scores["reward"].answer, sample.metadata["sample"]) == (0, "5", 1)
    asked, called, one, other, last = sample.messages
    assert asked.text == "2+2?" and [part.type for part in called.content] == ["reasoning", "text"]
    assert [(call.function, call.arguments) for call in called.tool_calls] == [("add", {"a": 2}), ("", {"unreadable": "{broken"})]  # fmt: skip
    assert (one.tool_call_id, one.text, other.text, last.text) == (called.tool_calls[0].id, "4", "no JSON", f"5 {BAD}")
    assert found[2].samples[0].error.message == "<i>no"
    monkeypatch.setattr(export, "SAMPLES", 3)
    export.export_rollouts(file, tmp_path / "fewer", "inspect")
    fewer = log.read_eval_log(str(tmp_path / "fewer" / names[0]))
    assert [each.metadata["sample"] for each in fewer.samples] == [0, 0]  # every other one
    command = [sys.executable, "-m", "inspect_ai", "log", "dump", str(tmp_path / "logs" / names[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["eval"]["config"]["epochs"] == 2, done.stderr
