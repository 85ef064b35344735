"""The data of the report, from small runs that are written here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.cli.inspect import inspect
from skill_ttrl.cli.report import report
from skill_ttrl.commands.optimize_results import OptimizeSummary, Score
from skill_ttrl.commands.reports import page_rollouts
from skill_ttrl.commands.reports.inspect import inspect as inspect_path
from skill_ttrl.commands.reports.inspect import inspect as look
from skill_ttrl.commands.reports.page_charts import Curves, Member, charts
from skill_ttrl.commands.reports.page_data import finish_report, page, write_report
from skill_ttrl.commands.reports.rollouts import task_inspection
from skill_ttrl.config import OptimizeConfig, SkillTTRLConfig
from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.optimize.calls import IDENTITY
from skill_ttrl.progress import NoticeCollector
from skill_ttrl.runs.folder import MetricsLog, RunFolder, SampleRecord, Warned, trajectory_lines, vote_line
from skill_ttrl.runs.summary import Summary
from skill_ttrl.train.metrics import UNREADABLE
from skill_ttrl.train.results import Evaluation, ProblemResult
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory, VoteResult, to_json


def played(task: Task, answer: str, reward: float, said: str) -> Trajectory:
    completion = Completion(said, (1, 2), (0.0, -1.0), "stop", completion_mask=(True, False), inserted_spans=((0, 2),))
    return Trajectory(
        task, (Step("6*7?", said, reward, True, False, completion=completion),), answer, "terminated", reward
    )


def young_run(path: Path, steps: int = 3) -> Path:
    """A run that has not ended, of which each step votes on two tasks of two rollouts."""
    with RunFolder.create(path, SkillTTRLConfig(name="t")) as folder:
        log = MetricsLog(folder)
        for step in range(steps):
            for name in ("a", "b"):
                task = Task(name, "E-v0")
                rollouts = (played(task, str(step), 1.0, f"<b>{step}"), played(task, "1", 0.0, "x"))
                records = [SampleRecord(1.0, 1.0, (0.5,)), SampleRecord(0.0)]
                folder.append_jsonl("trajectories.jsonl", trajectory_lines("rl", step, Group(task, rollouts), records))
                vote = VoteResult(str(step), 0.5, (True, False), ((str(step), 1), ("1", 1)), tie=True)
                folder.append_jsonl("votes.jsonl", [vote_line("rl", step, name, vote, correct=True)])
            same = {"reward": step / 4, "score/mean": step / 4, "entropy": 9.0 - step, "post_entropy": 9.0 - step}
            log.log("rl", step, {**same, "majority_ratio": 0.5, "abstained": 1.0})
    return path


def test_a_run_that_another_process_writes_is_still_running_and_keeps_its_lock(tmp_path: Path) -> None:
    path = young_run(tmp_path / "run")
    (path.parent / "seeds.json").write_text('{"name": "t", "seeds": [0]}')
    (path.parent / "seed-0").symlink_to(path)
    hold = "import sys; from skill_ttrl.runs.folder import RunFolder; f = RunFolder.open(sys.argv[1]); print(); sys.stdin.read()"
    own, again = f"(process {os.getpid()})", "no; continue it with --resume auto"
    with RunFolder.open(path):
        assert look(path).facts["ended"] == f"still running {own}"
        refused = subprocess.run(
            [sys.executable, "-c", hold, path], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert f"Another process {own.replace('process ', '')} is writing" in refused.stderr  # the lock is there still
    with subprocess.Popen([sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline()
        for _ in range(2):
            assert look(path).facts["ended"] == f"still running (process {writer.pid})"
        assert look(path.parent).facts["ended"] == f"none; still running (process {writer.pid})"
        assert page([path])["verdicts"][0]["sentence"].endswith(f" done. It is still running (process {writer.pid}).")
        with pytest.raises(RunFolderError, match=f"Another process .{writer.pid}."):
            RunFolder.open(path)
    assert look(path).facts["ended"] == again
    assert page([path])["verdicts"][0]["sentence"].endswith(" done. Continue it with --resume auto.")


def test_a_run_that_cannot_be_read_hides_no_other_of_its_folder(tmp_path: Path) -> None:
    young_run(tmp_path / "runs" / "whole")
    config = young_run(tmp_path / "runs" / "other") / "config.yaml"
    config.write_text("command: x")
    file, left_out = write_report([tmp_path / "runs"], tmp_path / "page.html")
    assert file.is_file() and left_out[0].startswith(f"{config.parent} is left out: {config} has 1 problem")
    with pytest.raises(RunFolderError, match="nothing to report"):
        page([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match="command: unknown key"):
        page([config.parent])


def test_page_of_a_run_that_has_not_ended(tmp_path: Path) -> None:
    found = page([young_run(tmp_path / "run")])
    (verdict,), (view,) = found["verdicts"], found["runs"]
    assert "has not ended its training: rl step 3 is done" in verdict["sentence"]
    assert any(each["text"].startswith("abstained is 1, healthy [0, 1)") for each in verdict["warnings"])
    items, texts = view["rollouts"]["items"], view["rollouts"]["texts"]
    assert items[0]["id"] == "rl:0:a:0" and items[0]["advantage"] == [0.5]
    turn = items[0]["turns"][0]
    assert texts[turn["said"]] == "<b>0" and list(turn["inserted"][0]) == [0, 2] and texts[turn["obs"]] == "6*7?"
    task = view["votes"]["tasks"][0]
    assert task["prompt"] == "6*7?" and [cell["flip"] for cell in task["cells"]] == [False, True, True]
    assert [items[index]["id"] for index in task["cells"][2]["rollouts"]] == ["rl:2:a:0", "rl:2:a:1"]
    (reward, _) = [each["lines"][0] for each in found["charts"]["main"]]
    assert reward["label"] == "reward" and reward["y"] == [0.0, 0.25, 0.5]
    assert [each["lines"][0]["label"] for each in found["charts"]["rest"]] == ["entropy (= post_entropy)"]
    assert ["rl: abstained", "1", "share of samples without an answer."] in found["charts"]["constant"]


def test_a_damaged_line_of_metrics_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = young_run(tmp_path / "run")
    first, *rest = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([first, "[1]", '{"phase": "rl", "st', '{"step": 1}', *rest]) + "\n")
    (view,), (reward, _) = (found := page([run]))["runs"], found["charts"]["main"]
    assert reward["lines"][0]["y"] == [0.0, 0.25, 0.5]
    said = [text.partition("metrics.jsonl")[2] for text in view["left_out"] if "damaged and was left out" in text]
    assert [text[:3] for text in said] == [":2 ", ":3 ", ":4 "] and said[2].endswith("it lacks its phase.")
    for path, damaged in {run: 3, run / "metrics.jsonl": 2}.items():  # of any other file a line needs no phase
        inspect([path], as_json=True)
        assert sum("damaged" in note for note in json.loads(capsys.readouterr().out)["notes"]) == damaged


@pytest.mark.parametrize("name", ["trajectories", "eval_trajectories", "votes", "evaluations", "warnings"])
def test_a_damaged_line_of_any_file_is_left_out_and_named(tmp_path: Path, name: str) -> None:
    file = young_run(tmp_path / "run") / f"{name}.jsonl"
    before = page([file.parent])["runs"][0]["rollouts"]["items"]
    first, *rest = file.read_text().splitlines() if file.exists() else [""]
    file.write_text("\n".join([first, "[1]", *rest, "{}", '{"torn']))
    (view,) = page([file.parent])["runs"]
    said = [text for text in view["left_out"] if file.name in text]
    places = [f"{file}:2 cannot", f"{file}:{3 + len(rest)} cannot", f"{file}: its last line is incomplete"]
    assert [any(text.startswith(place) for text in said) for place in places] == [True] * 3 and len(said) == 3
    assert view["rollouts"]["items"] == before
    notes = [*task_inspection(file.parent, "a").notes, *inspect_path(file.parent).notes]
    assert name in ("eval_trajectories", "warnings") or any(f"{file.name}:2 cannot be read" in note for note in notes)
    assert not page([tmp_path])["damaged"] and inspect_path(tmp_path).rows[0][3] == "no"  # as one of a folder too


def test_an_imitation_says_what_it_leaves_open_and_shows_what_it_imitated(tmp_path: Path) -> None:
    sft = {"steps": 20, "noise_free_fraction": 0.75, "data": {"path": "synthetic:add", "split": "demos"}}
    run, settings = tmp_path / "run", {"sft": sft, "dagger": {"episodes": 1}}
    about: dict[str, Any] = {"name": "t", "phases": ["collect", "sft"], "model": {"path": "m/n"}, **settings}
    figures: dict[str, Any] = {"accuracy_after": 0.5, "steps": {"sft": 20}, "controls_after": {"first": 0.1}}
    with RunFolder.create(run, SkillTTRLConfig.model_validate(about)) as folder:
        shown, asked = Task("shown", "E-v0", task_type="k"), Task("asked", "E-v0", task_type="k")
        folder.write_text("collected.jsonl", f"{to_json(played(shown, '1', 1.0, 'as the expert'))}\n" * 2)
        folder.append_jsonl("dagger.jsonl", [to_json(played(asked, str(number), 1.0, "at first")) for number in (1, 2)])
        kept = Group(asked, (played(asked, "1", 0.0, "as the model"),))
        folder.append_jsonl("eval_trajectories.jsonl", trajectory_lines("after", 20, kept))
        for step in range(20):
            MetricsLog(folder).log("sft", step, {"loss": 2.0 - step / 10})
        folder.write_json("summary.json", asdict(Summary("t", 0, "env", False, 4, 1, 1.0, **figures)))
    ((verdict,), (view,)) = (found := page([run]))["verdicts"], found["runs"]
    assert verdict["sentence"].endswith("success on 4 held-out problems is 0.500.")
    assert verdict["more"].endswith(f"The model as it was: skillttrl evaluate m/n --config {run}/config.yaml")
    said = "Loss of sft: from 1.95 to 0.15, means of the first and last 2 steps. It jumps at step 15"
    assert any(line.startswith(said) for line in verdict["lines"])
    for never in ({"noise_free_fraction": 1.0}, {"data": None}):  # no step, or no source, with errors
        changed = SkillTTRLConfig.model_validate({**about, "sft": {**sft, **never}})
        (run / "config.yaml").write_text(changed.to_yaml())
        assert "It jumps" not in str(page([run])["verdicts"][0]["lines"])
    assert [row[0] for row in verdict["table"]["rows"]][-1] == "always the first listed action, without a model"
    places = [(each["phase"], each["task"], each["sample"]) for each in view["rollouts"]["items"]]
    assert places == [
        ("collect", "shown", 0),
        ("collect", "shown", 1),
        ("dagger_round", "asked", 0),
        ("after", "asked", 0),
    ]


def ended_run(path: Path, reward: str, correct: int) -> Path:
    """A run that says how many of 4 samples of one task were right after it; 1 was before."""
    config = SkillTTRLConfig.model_validate({"name": "t", "model": {"path": "builtin"}, "rl": {"reward": reward}})
    figures: dict[str, Any] = {"accuracy_before": 0.25, "accuracy_after": correct / 4, "steps": {"rl": 2}}
    intervals = {"accuracy_change": (0.1, 0.9) if correct > 1 else (-0.1, 0.1)}
    summary = Summary("t", 0, reward, False, 1, 4, 1.0, "sums (train)", "sums (test)", intervals=intervals, **figures)
    with RunFolder.create(path, config) as folder:
        for label, right in {"before": 1, "after": correct}.items():
            share, results = right / 4, (ProblemResult("a", right, 4, "1", right / 4, True, None),)
            found = Evaluation(
                label, "test", 1, 4, 1.0, share, (0.0, 1.0), {}, None, None, None, None, {}, share, 0.0, results
            )
            folder.append_jsonl("evaluations.jsonl", [to_json(found)])
        MetricsLog(folder).log("rl", 1, {"reward": 0.5})
        folder.write_json("summary.json", asdict(replace(summary, warnings=["It is short."])))
    return path


def test_verdict_in_words_with_the_controls_that_ran_and_those_that_did_not(tmp_path: Path) -> None:
    voted, random = ended_run(tmp_path / "voted", "majority", 3), ended_run(tmp_path / "random", "random", 1)
    found = page([voted, random])
    first, control = found["verdicts"]
    assert first["sentence"] == (
        "A built-in model learned sums (train) from its own majority votes, without labels: right answers (avg@4) on 1 held-out problem rose "
        "from 0.250 to 0.750 (+0.500 [+0.100, +0.900], clear)."
    )
    assert "a control: right answers (avg@4) on 1 held-out problem stayed at 0.250" in control["sentence"]
    assert "unclear: it may be noise" in control["sentence"] and control["controls"] == []
    ran, left = first["controls"]
    assert (ran["value"], ran["command"]) == ("0.250", None) and "stayed at 0.250" in ran["words"]
    assert left["command"] == f"skillttrl train {voted}/config.yaml --set 'phases=[vote_sft]' -o {voted}-imitation"
    assert {"text": "It is short.", "phase": None, "step": None, "tripwire": False} in first["warnings"]
    assert found["compared"][0]["columns"] == ["metric", "first", "this", "difference", "verdict"]
    points = found["charts"]["main"][0]["lines"][-2]
    assert (points["label"], points["x"], points["y"]) == ("voted: avg@4 of held-out tasks", [0, 2], [0.25, 0.75])
    (again,) = page([voted])["verdicts"]
    assert again["controls"][0]["command"].endswith(f"--set rl.reward=random -o {voted}-random")


def test_seeds_name_their_controls_and_the_problems(tmp_path: Path) -> None:
    for seed, correct in {1: 3, 2: 4}.items():
        run = ended_run(tmp_path / "seeds" / f"seed-{seed}", "majority", correct)
        summary = json.loads((run / "summary.json").read_text())
        played = {"controls_after": {"random": 0.1 * seed}, "accuracy_no_skills": correct / 4 - 0.1}
        (run / "summary.json").write_text(json.dumps(summary | played))
    (tmp_path / "seeds" / "seeds.json").write_text('{"name": "t", "seeds": [1, 2]}')
    (verdict,) = page([tmp_path / "seeds"])["verdicts"]
    assert "right answers (avg@4) on 1 held-out problem went from 0.250 to 0.875" in verdict["sentence"]
    assert verdict["sentence"].endswith("2 of 4 controls not run.")
    assert [each["value"] for each in verdict["controls"]] == [
        "0.775 [0.000, 1.000]",
        "0.150 [0.000, 0.785]",
        None,
        None,
    ]
    assert "With them 0.875: +0.100" in verdict["controls"][0]["words"]
    command = verdict["controls"][2]["command"]
    assert command.endswith(f"--seeds 1,2 --set rl.reward=random -o {tmp_path}/seeds-random")
    (known, _) = page([tmp_path / "seeds", ended_run(tmp_path / "random", "random", 1)])["verdicts"]
    assert known["controls"][2]["value"] == "0.250"


def test_the_worst_warnings_come_first_and_nothing_is_said_twice(tmp_path: Path) -> None:
    run, unread = ended_run(tmp_path / "run", "env", 1), f"{UNREADABLE}: 100%."
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"intervals": {"accuracy_change": [-0.5, -0.1]}, "warnings": ["It is short."]}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "warnings.jsonl").write_text(f"{to_json(Warned('Slow.'))}\n{to_json(Warned(unread, 'rl', 1, True))}\n")
    ill = {"phase": "rl", "step": 2, "tripwire/unreadable": 1.0, "majority_ratio": 0.0, "grad_norm": 0.0}
    (run / "metrics.jsonl").write_text(f"{json.dumps(ill)}\n")
    worse, *others = [each["text"] for each in page([run])["verdicts"][0]["warnings"]]
    assert worse.startswith("Training made the policy worse")
    assert [text.partition(",")[0] for text in others] == [unread, "Slow.", "It is short.", "grad_norm is 0"]


def test_what_exceeds_the_budget_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = young_run(tmp_path / "run", steps=12)
    for name, value in {"READ": 20_000, "ROWS": 16, "WHOLE": 5, "CELLS": 12}.items():
        monkeypatch.setattr(page_rollouts, name, value)
    (view,) = page([run])["runs"]
    items = view["rollouts"]["items"]
    assert {items[0]["step"], items[-1]["step"]} == {0, 11} and len(items) <= 16
    assert sum("turns" in each for each in items) == 5 and len(view["votes"]["tasks"]) == 1
    assert "the first and the last part" in view["left_out"][1] and "1 of 2 prompts" in view["left_out"][0]
    (run / "trajectories.jsonl").rename(run / "collected.jsonl")
    (run / "dagger.jsonl").touch()
    assert page([run])["runs"][0]["left_out"][1].startswith("Of collected.jsonl the first and the last part")


def test_lines_of_seeds_are_averaged_and_a_collapse_is_shaded() -> None:
    rows = [
        {"phase": "rl", "step": step, "majority_ratio": 0.5 + step / 20, "label_accuracy": 0.6 - step / 20}
        for step in range(8)
    ]
    seeds = Curves("s", [Member(rows, seed=3), Member([{**row, "majority_ratio": 0.5} for row in rows], seed=5)])
    (votes,) = charts([seeds])["main"]
    mean, *thin = (line for line in votes["lines"] if line["label"].startswith("majority_ratio"))
    assert mean["y"][4] == 0.6 and mean["low"][4] < 0.6 < mean["high"][4]
    assert max(mean["high"]) == 1.0  # a share
    assert [(line["style"], line["label"]) for line in thin] == [("thin", f"majority_ratio, seed {n}") for n in (3, 5)]
    assert {each["to"] for each in votes["shaded"]} == {7} and votes["range"] == [0.0, 1.0]


def test_an_optimization_shows_its_document_step_by_step(tmp_path: Path) -> None:
    score = Score(0.25, 0.1, 0.4, 0.3, 4)
    about: dict[str, Any] = {
        "policy": "p",
        "environment": "E",
        "engine": "e",
        "optimizer": "o",
        "items": {},
        "actions": {},
    }
    better: dict[str, Any] = {
        "test_first": score,
        "test_best": replace(score, hard=0.5),
        "test_change": (0.25, 0.1, 0.4),
    }
    summary = OptimizeSummary("t", 0, steps=1, best_step=1, best_hash="", best_tokens=1, selection_first=score,
                              selection_best=0.5, **about, **better)  # fmt: skip
    with RunFolder.create(tmp_path / "run", SkillTTRLConfig(name="t", optimize=OptimizeConfig())) as folder:
        folder.write_json(IDENTITY, {"schema_version": 1, "made_with": {}})
        folder.write_json("summary.json", asdict(summary))
        folder.write_json("history.json", [{"step": step, "best_score": step / 2} for step in (1, 2)])
        (folder.path / "skills").mkdir()
        for step, text in enumerate(("", "Say EUR.", "Say EUR.")):
            folder.write_text(f"skills/skill_v{step:04}.md", text)
    found = page([folder.path])
    assert (
        "success on 4 test items rose from 0.250 to 0.500 (+0.250 [+0.100, +0.400], clear)"
        in found["verdicts"][0]["sentence"]
    )
    assert [each["version"] for each in found["runs"][0]["skills"]["versions"]] == [0, 1]
    assert found["charts"]["main"][0]["lines"][0]["y"] == [0.5, 1.0]


def test_a_path_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nothing to report"):
        page([tmp_path])


def test_the_command_replaces_its_own_page_and_no_other_file(tmp_path: Path) -> None:
    run, foreign = young_run(tmp_path / "run"), tmp_path / "mine.html"
    for _ in range(2):
        report([run])
        report([run], tmp_path / "page.html")
    for page_file in (run / "report.html", tmp_path / "page.html"):
        assert "has not ended its training" in page_file.read_text()
    foreign.write_text("mine")
    with pytest.raises(RunFolderError, match="is no report of skillttrl"):
        report([run], foreign)


def test_a_page_that_cannot_be_written_is_a_warning_at_the_end_of_a_run(tmp_path: Path) -> None:
    run, heard = young_run(tmp_path / "run"), NoticeCollector()
    (run / "summary.json").write_text("[]\n")
    finish_report(run, heard)
    ((text, _),) = heard.notices
    assert "summary.json" in text and text.endswith(f"skillttrl report {run}")


def test_a_damaged_summary_is_named(tmp_path: Path) -> None:
    file = ended_run(tmp_path / "run", "majority", 3) / "summary.json"
    file.write_text(file.read_text().replace('"usage": {}', '"usage": {"by": 5}'))
    with pytest.raises(RunFolderError, match=r"summary\.json: usage: AttributeError"):
        page([file.parent])
