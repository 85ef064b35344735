"""Samples that are there already, from every kind of file, and what is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands.resolve import is_stored
from skill_ttrl.commands.vote import SampleSet, read_stored
from skill_ttrl.errors import DataError
from skill_ttrl.rollout.outcome import GREEDY, SAMPLE, Sample, TaskSamples
from skill_ttrl.runs.folder import trajectory_lines
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory, to_json


def records(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_records_of_one_s_own(tmp_path: Path) -> None:
    full = {
        "id": "a", "problem": "6 times 7?", "answer": 42, "task_type": "times",
        "responses": [r"\boxed{42}", "no idea"], "logprobs": [-1.5, -2], "lengths": [5, 2],
    }  # fmt: skip
    path = records(tmp_path, full, {"problem": "open", "answer": None, "responses": ["<answer>1</answer>"]})
    (visit,) = read_stored(path).visits
    first, second = visit
    assert (first.task.id, first.task.ground_truth, first.task.task_type) == ("a", "42", "times")
    assert first.samples == (Sample(r"\boxed{42}", "42", -1.5, 5), Sample("no idea", None, -2, 2))
    assert second.task.ground_truth is None and second.samples == (Sample("<answer>1</answer>", "1"),)
    as_list = tmp_path / "samples.json"
    as_list.write_text(json.dumps([full]))
    assert read_stored(as_list).visits == ((first,),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"responses": []}, "'responses' must be a list of at least one text"),
        ({"logprobs": [-1]}, "'logprobs' must be a list of 2 numbers"),
        ({"logprobs": [-1, "x"]}, "log-probability"),
        ({"logprobs": [-1, float("nan")]}, "log-probability"),
        ({"logprobs": [-1, float("-inf")]}, "log-probability"),
        ({"lengths": [1.5, 2]}, "tokens"),
        ({"problem": None}, "'problem' must be a text, found null"),
        ({"answer": [1]}, "'answer' must be a text or a whole number"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = {"problem": "a", "answer": "1", "responses": ["1", "2"]}
    path = records(tmp_path, good, {**good, "problem": "b", **change})
    with pytest.raises(DataError, match=rf"samples\.jsonl:2.*{message}"):
        read_stored(path)


def test_no_samples_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"contains no samples: .*it has: 'prompt', 'answer'.*give --policy and --data"):
        read_stored(records(tmp_path, {"prompt": "a", "answer": "1"}))
    with pytest.raises(DataError, match="No file"):
        read_stored(tmp_path / "none.jsonl")
    assert is_stored(tmp_path / "none.jsonl") and not is_stored(tmp_path) and not is_stored("owner/name")


def test_samples_of_an_evaluation(tmp_path: Path) -> None:
    task = Task("t", "E-v0", ground_truth="1")
    main, greedy = (TaskSamples("f", draw, task, (Sample("", "1", -1.0, 2),)) for draw in (SAMPLE, GREEDY))
    path = tmp_path / "samples.jsonl"
    path.write_text(f"{to_json(main)}\n{to_json(greedy)}\n{to_json(main)[:40]}")
    found = read_stored(path)
    assert found.visits == ((main,),)  # the likeliest words alone are no vote
    assert len(found.notes) == 1 and "last line is incomplete" in found.notes[0]
    path.write_text(f"{to_json(greedy)}\n")
    with pytest.raises(DataError, match="no samples at a temperature, only greedy"):
        read_stored(path)
    path.write_text(f'{to_json(main)}\n{{"draw": 1}}\n')
    with pytest.raises(DataError, match=r"samples\.jsonl:2 cannot be read: source: Field required"):
        read_stored(path)


def test_a_run_s_steps_are_visits(tmp_path: Path) -> None:
    def tries(name: str, *answers: str) -> Group:
        task = Task(name, "E-v0", {"question": name})
        done = Completion("x", (1,), (-0.5,), "stop")
        return Group(task, tuple(Trajectory(task, (Step(name, "x", 0.0, True, False, (), done),), a, "terminated") for a in answers))  # fmt: skip

    path = tmp_path / "trajectories.jsonl"
    steps = [[tries("a", "1", "2"), tries("b", "1", "1")], [tries("a", "2", "2")]]
    lines = [
        line for step, groups in enumerate(steps) for group in groups for line in trajectory_lines("rl", step, group)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    found: SampleSet = read_stored(path)
    assert [[row.task.id for row in visit] for visit in found.visits] == [["a", "b"], ["a"]]
    assert [sample.answer for sample in found.visits[1][0].samples] == ["2", "2"]
    assert found.visits[0][0].samples[0].logprob == -0.5
    path.write_text(lines[0].replace('"stop_reason":"terminated"', '"stop_reason":"bored"') + "\n")
    with pytest.raises(DataError, match=r"trajectories\.jsonl:1 cannot be read: stop_reason: "):
        read_stored(path)
