"""`inspect` of a step, a task, an episode and a line of a file, on a small run with hostile texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.inspect import inspect
from skill_ttrl.commands.reports.inspect import records_inspection
from skill_ttrl.commands.reports.rollouts import step_inspection
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.runs.folder import MetricsLog, RunFolder, SampleRecord, trajectory_lines, vote_line
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.types import Change, Completion, Group, Skill, Step, Task, ToolCall, Trajectory
from skill_ttrl.voting import batch_majority_vote

HOSTILE = "\x1b[2J[bold]"


def rollout(task: str, answer: str) -> Trajectory:
    calls = (ToolCall("calculator", '{"expression": "6*7"}', result="42 \x07"),)
    asked = Completion("<think>hidden</think>\n\nI ask.", (1,), (0.0,), "stop")
    said = Completion(answer, (1,), (0.0,), "length")
    steps = (
        Step(HOSTILE + "x" * 1500, "…", 0.0, False, False, completion=asked, calls=calls),
        Step("42", answer, 1.0, True, False, completion=said, action_status="invalid", parse_error="no such action"),
    )
    return Trajectory(
        Task(task, "E-v0"), steps, answer, "terminated", 1.0, goal="six times seven", skills_in_prompt=("s1",)
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two steps of two tasks; the winner of `a` flips in the second."""
    monkeypatch.setenv("COLUMNS", "80")
    with RunFolder.create(tmp_path / "run", SkillTTRLConfig(name="t")) as folder:
        log = MetricsLog(folder, None)
        for step, answers in enumerate((("1", "1", "2"), ("2", "2", HOSTILE))):
            for task in ("a", "b"):
                said = answers if task == "a" else ("7", "7", "7")
                group = Group(Task(task, "E-v0"), tuple(rollout(task, answer) for answer in said))
                vote = batch_majority_vote([group.answers])[0]
                records = [SampleRecord(1.0, float(answer == "1"), [None, 0.5]) for answer in said]
                folder.append_jsonl("trajectories.jsonl", trajectory_lines("rl", step, group, records))
                folder.append_jsonl("votes.jsonl", [vote_line("rl", step, task, vote, correct=said[0] != "2")])
            log.log("rl", step, {"reward": 0.5, "majority_ratio": 0.75, "label_accuracy": 1.0, "kl": 1e-5})
        with SkillBank(folder.path / "bank") as bank:
            bank.apply([Change("add", None, Skill("s1", "Times", "Multiply."))], reason="init")
    return tmp_path / "run"


def said(capsys: pytest.CaptureFixture[str], *paths: Path, **options: Any) -> str:
    inspect(list(paths), **options)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and max(map(len, out.splitlines())) <= 80
    return out


def test_a_step_shows_figures_votes_and_ids_of_its_rollouts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, run, step=1, rows=4)
    assert "majority ratio: 0.750, label accuracy 1.000" in out and "kl: 1e-05" in out
    assert out.index("│ a ") < out.index("│ b ")  # the wrong one first, though both were given
    inspect([run], step=1, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0] == ["a", "2", "0.667", "2 ×2, ␛[2J[bold] ×1", "yes", "no"]
    assert [row[0] for row in found["parts"][0]["rows"]] == [f"rl:1:{task}:{n}" for task in "ab" for n in range(3)]


def test_a_long_id_is_whole_and_its_hint_is_safe_to_paste(run: Path) -> None:
    (run / "votes.jsonl").unlink()
    log = run / "trajectories.jsonl"
    log.write_text(log.read_text().replace('"id":"a"', f'"id":"{"; touch x" * 20}"'))
    parts = step_inspection(run, 1).parts
    name = f"rl:1:{'; touch x' * 20}:0"
    assert parts[0].rows[0][0] == name and parts[0].notes[-1] == f"One to read: --episode '{name}'"
    assert [row[0] for row in records_inspection(log, 4).rows[::3]] == [name.replace("rl:1", "rl:0"), "rl:0:b:0"]


def test_a_task_shows_how_its_vote_changed_and_its_last_attempts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, run, task="a")
    assert out.index("rl:0 ") < out.index("rl:1 ") < out.index("rl:1:a:0") and "rl:0:a" not in out


def test_a_rollout_reads_turn_by_turn_by_its_id_and_by_its_row(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, run, episode="rl:1:a:2")
    lines = ["six times seven", "turn 1 of 2", "510 more characters", "6 characters: --full", "I ask.", "calculator(", "42 ␇",
             "turn 2 of 2", "as said [invalid: no such action]", "length", "answer ", "s1 (Times)"]  # fmt: skip
    places = [out.index(line) for line in lines]
    assert places == sorted(places) and "hidden" not in out and out.count("␛[2J[bold]") == 3
    full = said(capsys, run, episode="rl:1:a:2", full=True)
    assert "hidden" in full and "more characters" not in full
    by_row = said(capsys, run / "trajectories.jsonl", row=-4)
    assert by_row.splitlines()[1:] == out.splitlines()[1:]
    inspect([run / "trajectories.jsonl"], row=9, as_json=True)
    assert json.loads(capsys.readouterr().out)["advantages"] == [None, 0.5]
    assert '["2", 2]' in said(capsys, run / "votes.jsonl", row=3)


@pytest.mark.parametrize(
    ("file", "options", "why"),
    [
        ("", {"step": 7}, "no step 7 of rl. Steps: rl 0 to 1"),
        ("", {"task": "aa"}, "no task 'aa'.*Known: a, b"),
        ("", {"episode": "rl:1:a:9"}, "Did you mean 'rl:1:a:2'"),
        ("", {"episode": "rl:9:a:0"}, "the steps are rl:0 to rl:1"),
        ("trajectories.jsonl", {"row": 13}, "It has 12: 1 to 12, or from the end -1 to -12"),
        ("", {"row": 1}, "--row shows a line of a .jsonl file"),
        ("votes.jsonl", {"step": 1}, "no run of training"),
        ("", {"step": 1, "task": "a"}, "--step looks at one path, and alone"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(run: Path, file: str, options: Any, why: str) -> None:
    with pytest.raises(SkillTTRLError, match=why):
        inspect([run / file], **options)
