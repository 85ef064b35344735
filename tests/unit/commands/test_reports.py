"""Comparing policies task by task; metrics of the latest step that are outside of their healthy ranges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.inspect import inspect
from skill_ttrl.commands.reports.compare import Measured, compare, compare_two
from skill_ttrl.commands.reports.page_data import page
from skill_ttrl.commands.reports.summary_text import difference_in_words
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, DataError, RunFolderError
from skill_ttrl.runs.folder import MetricsLog, RunFolder
from skill_ttrl.statistics import paired_difference
from skill_ttrl.train.results import Evaluation, ProblemResult
from skill_ttrl.types import Completion, Step, Task, ToolCall, Trajectory, to_json


def of(path: str, shares: dict[str, float], where: str | None = "here") -> Measured:
    return Measured(path, "after", where, 4, {"accuracy": shares})


ONE = of("one", {"a": 0.25, "b": 0.5, "c": 1.0})


def test_shared_tasks_are_paired_and_the_others_left_out() -> None:
    found = compare_two(ONE, of("other", {"c": 1.0, "b": 0.75, "d": 0.0}))
    change = found.figures["accuracy"]
    assert change.tasks == 2 and "2 tasks that both have, of 3 and 3" in found.notes[0]
    assert (change.difference, *change.interval) == paired_difference([0.5, 1.0], [0.75, 1.0])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (of("other", {"x": 0.5, "y": 1.0}), "share no task"),
        (of("other", {"a": 0.5, "b": 1.0}, where="elsewhere"), "here and elsewhere"),
    ],
)
def test_what_shares_no_task_is_not_compared(other: Measured, why: str) -> None:
    with pytest.raises(DataError, match=why):
        compare_two(ONE, other)


@pytest.mark.parametrize(
    ("difference", "bounds", "said"),
    [
        (0.058, (0.034, 0.087), "B is better by 0.058 [0.034, 0.087] over 256 tasks: unlikely to be chance"),
        (-0.058, (-0.087, -0.034), "B is worse by 0.058 [0.034, 0.087] over"),
        (
            0.02,
            (0.0, 0.05),
            "within noise. To see one of this size in 80% of comparisons takes about 2 times as many tasks",
        ),
        (-0.001, (-0.05, 0.05), "more than 100 times as many tasks"),
        (0.0, (-0.05, 0.05), "the difference of +0.000 [-0.050, +0.050] over 256 tasks is within noise."),
    ],
)
def test_a_difference_is_said_in_words(difference: float, bounds: tuple[float, float], said: str) -> None:
    found = difference_in_words("avg@16", "B", difference, bounds, 256)
    assert said in found and (difference or found.endswith(said))


def test_thought_calls_and_results_of_turns_are_shown_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = (
        ToolCall("calculator", '{"expression": "6*7"}', result="42"),
        ToolCall("", "{oops", result="Error: <b>\x1b[1m", error="not_json"),
    )
    said = Completion("<think>hidden</think>\n\nI ask.", (1,), (0.0,), "stop")
    steps = (
        Step("6*7?", "…", 0.0, False, False, completion=said, calls=calls),
        Step("42", "It is 42", 1.0, True, False, completion=Completion("It is 42", (1,), (0.0,), "stop")),
    )
    with RunFolder.create(tmp_path / "run", SkillTTRLConfig(name="t")) as folder:
        folder.append_jsonl("trajectories.jsonl", [to_json(Trajectory(Task("one", "E-v0"), steps, "42", "terminated"))])
    (view,) = page([folder.path])["runs"]
    first, last = view["rollouts"]["items"][0]["turns"]
    (name, arguments, result, error), (_, written, *_) = first["calls"]
    texts = view["rollouts"]["texts"]
    assert [name, texts[arguments], texts[result], error] == ["calculator", '{"expression": "6*7"}', "42", ""]
    assert [texts[first["thought"]], texts[first["said"]], texts[written]] == ["hidden", "I ask.", "{oops"]
    assert texts[last["said"]] == "It is 42" and "calls" not in last
    inspect([folder.path / "trajectories.jsonl"])
    shown = capsys.readouterr().out
    assert "It is 42" in shown and "hidden" not in shown and "\x1b" not in shown


def run_with(path: Path, **accuracy: float) -> Path:
    """A run folder with these evaluations of one task, by label."""
    with RunFolder.create(path, SkillTTRLConfig(name="t")) as folder:
        for label, share in accuracy.items():
            results = (ProblemResult("a", int(4 * share), 4, "1", share, share == 1, None),)
            found = Evaluation(
                label, "test", 1, 4, 1.0, share, None, {}, share, None, None, None, {}, share, 0.0, results
            )
            folder.append_jsonl("evaluations.jsonl", [to_json(found)])
    return path


def test_a_run_that_has_not_ended_is_left_out_or_named(tmp_path: Path) -> None:
    run_with(tmp_path / "seeds" / "seed-0", before=0.0, after=1.0)
    young = run_with(tmp_path / "seeds" / "seed-1", before=0.0)
    ended = run_with(tmp_path / "ended", before=0.5, after=0.5)
    (found,) = compare([ended, tmp_path / "seeds"])
    assert found.figures["accuracy"].other == 1.0 and f"has not ended: {young}" in found.notes[0]
    (found,) = compare([ended, young])
    assert found.figures["accuracy"].other == 0.0 and f"The training of {young} has not ended" in found.notes[0]
    (note,) = compare([ended, ended])[0].notes
    assert "another seed of training" in note


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least two"):
        compare([tmp_path])
    with pytest.raises(RunFolderError, match="is not a run, a folder of runs"):
        compare([tmp_path, tmp_path])
    (tmp_path / "evaluation.json").write_text("{}")
    with pytest.raises(DataError, match="cannot be read"):
        compare([tmp_path, tmp_path])
    with pytest.raises(DataError, match="true answers"):
        compare_two(ONE, Measured("other", "after", None, 4, {}))


def run_of_steps(path: Path, *steps: Mapping[str, float]) -> Path:
    with RunFolder.create(path, SkillTTRLConfig(name="t")) as folder:
        log = MetricsLog(folder)
        for step, metrics in enumerate(steps):
            log.log("rl", step, metrics)
    return path


def shown(path: Path, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> str:
    inspect([path], as_json=as_json)
    return capsys.readouterr().out


def test_unhealthy_metrics_of_the_latest_step_and_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_of_steps(
        tmp_path / "run",
        {"completions/clipped_ratio": 0.9},
        {"completions/clipped_ratio": 0.1, "flip_rate": 0.5, "reward": 0.2},
    )
    found: list[dict[str, Any]] = json.loads(shown(path, capsys, as_json=True))["unhealthy"]
    assert [(each["phase"], each["step"], each["name"], each["value"]) for each in found] == [
        ("rl", 1, "flip_rate", 0.5)
    ]
    assert found[0]["healthy"] == "[0, 0.2]" and "winner changed" in found[0]["meaning"] and found[0]["change"]
    text = " ".join(shown(path, capsys).split())
    assert "rl step 1: flip_rate is 0.5, healthy [0, 0.2]: share of prompts seen before whose winner changed." in text
    assert "Change: stop;" in text and "completions/clipped_ratio" not in text


@pytest.mark.parametrize(
    "steps", [(), ({"completions/clipped_ratio": 0.9}, {"completions/clipped_ratio": 0.1, "grad_norm": float("nan")})]
)
def test_without_a_sign_of_trouble_nothing_is_shown(
    steps: tuple[dict[str, float], ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_of_steps(tmp_path / "run", *steps)
    assert json.loads(shown(path, capsys, as_json=True))["unhealthy"] == [] and "Change:" not in shown(path, capsys)
