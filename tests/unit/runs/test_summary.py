"""What is written about a run, and reading it back."""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from skill_ttrl.config import LoraConfig, SkillTTRLConfig
from skill_ttrl.errors import ConfigError, MissingDependencyError, RunFolderError
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.metrics import MetricsLog
from skill_ttrl.runs.checkpoint import model_card
from skill_ttrl.runs.reader import read_run
from skill_ttrl.runs.metrics import trajectory_lines, vote_line
from skill_ttrl.runs.summary import Summary, read_summary
from skill_ttrl.runs.metrics import open_tracker
from skill_ttrl.stages.reports.summarize import write_report_html
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory, VoteResult, from_json

SUMMARY = Summary(
    name="quick|start", seed=1, reward="majority", transductive=False, problems=64, samples=32, temperature=1.0,
    accuracy_before=0.61, accuracy_after=0.95, pass_at_k_before={"8": 0.9}, pass_at_k_after={"8": 0.97},
    intervals={"accuracy_change": (0.3, 0.38)}, seconds={"sft": 20.0, "rl": 30.5},
    warnings=["agreement rose while <entropy> fell to 0"],
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", SkillTTRLConfig(name="t"))


def group() -> Group:
    task = Task(id="p1", env_id="SkillTTRL/Math-v0", options={"problem": "1+1"})
    completion = Completion("2", (5, 0), (-0.1, -0.30000000000000004), "stop", 3)
    step = Step("1+1", "2", 0.0, True, False, (1, 2), completion)
    return Group(task, tuple(Trajectory(task, (step,), answer, "terminated", reward=1.0) for answer in ("2", None)))


def test_metrics_are_deterministic_lines_and_reach_the_tracker(folder: RunFolder) -> None:
    seen: list[tuple[dict[str, float], int]] = []
    log = MetricsLog(folder, lambda figures, step: seen.append((figures, step)))
    log.log("rl", 3, {"loss": 0.1, "a": 2, "kl": math.nan, "x": math.inf})
    log.time("rl", 3, {"seconds": 1.5})
    assert (folder.path / "metrics.jsonl").read_text() == (
        '{"a": 2, "kl": null, "loss": 0.1, "phase": "rl", "step": 3, "x": null}\n'
    )
    assert (folder.path / "timings.jsonl").read_text() == '{"phase": "rl", "seconds": 1.5, "step": 3}\n'
    assert seen == [({"rl/loss": 0.1, "rl/a": 2.0}, 3), ({"rl/seconds": 1.5}, 3)]


def test_a_whole_run_reads_back(folder: RunFolder) -> None:
    log = MetricsLog(folder)
    log.log("rl", 1, {"majority_ratio": 0.5})
    log.log("rl", 2, {"majority_ratio": 0.75})
    folder.append_jsonl("trajectories.jsonl", trajectory_lines("rl", 1, group()))
    vote = VoteResult("2", 0.5, (True, False), (("2", 1),), abstained=1)
    folder.append_jsonl("votes.jsonl", [vote_line("rl", 1, "p1", vote, correct=True)])
    folder.append_jsonl("evaluations.jsonl", ['{"label": "before", "accuracy": 0.5}'])
    folder.write_json("summary.json", asdict(SUMMARY))

    run = read_run(folder.path)
    assert run.config == SkillTTRLConfig(name="t") and run.summary == SUMMARY == read_summary(folder.path)
    assert list(run.metrics["majority_ratio"]) == [0.5, 0.75] and list(run.metrics["phase"]) == ["rl", "rl"]
    assert list(run.trajectories["sample"]) == [0, 1]
    assert run.votes.loc[0, "majority_ratio"] == 0.5 and run.votes.loc[0, "matches"] == [True, False]
    assert run.evaluations.loc[0, "accuracy"] == 0.5
    assert run.timings.empty and run.notes == ["timings.jsonl is missing: no step has ended yet."]
    text = (folder.path / "trajectories.jsonl").read_text().splitlines()[0]
    assert from_json(Trajectory, text) == group().trajectories[0], "ids and log-probs survive exactly"


def test_reading_while_it_is_written_or_damaged(folder: RunFolder) -> None:
    path = folder.path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    run = read_run(folder.path)
    assert len(run.metrics) == 2 and run.summary is None
    assert run.notes == [
        f"{path}: its last line is incomplete (a run is writing it, or was killed) and was ignored.",
        "summary.json is missing: the run has not ended.",
    ]
    for text, message in (
        ('{"step": 1}\n{nonsense\n', "metrics.jsonl:2 is not JSON"),
        ("{}\n{}\n[1]\n", "metrics.jsonl:3: expected an object"),
    ):
        path.write_text(text)
        with pytest.raises(RunFolderError, match=message):
            _ = read_run(folder.path).metrics
    with pytest.raises(RunFolderError, match="not a run folder"):
        read_run(folder.path.parent)


def test_html_report_is_well_formed_and_escapes_text(folder: RunFolder) -> None:
    log = MetricsLog(folder)
    for step, value in ((1, 0.25), (2, 0.5), (3, math.nan), (4, 1.0)):
        log.log("rl", step, {"majority_ratio": value, "constant": 1, "<b>": value + 1})
    log.log("rl", 5, {"once": 1.0})
    folder.write_json("summary.json", asdict(SUMMARY))
    task = Task("<p>", "E")
    steps = [Step("?", "", 0.0, True, False, completion=Completion(text, (), (), "stop")) for text in ("<think>a<i>\0</think>b<u>", "<think>c")]  # fmt: skip
    lines = trajectory_lines("rl", 1, Group(task, (Trajectory(task, tuple(steps), "b", "terminated"),)))
    folder.append_jsonl("trajectories.jsonl", lines)
    text = write_report_html(folder).read_text()
    assert "<summary>thought: 5 characters</summary><pre>a&lt;i&gt;␀</pre></details>\n<pre>b&lt;u&gt;</pre>" in text
    assert "<pre>c</pre></details>\n<pre>(no content)</pre>" in text
    document = ElementTree.fromstring(re.sub(r'<!doctype html>|<meta charset="utf-8">', "", text))
    charts = {chart.get("aria-label"): chart for chart in document.iter("svg")}
    assert list(charts) == ["rl: majority_ratio", "rl: <b>"], "a metric that does not change has no chart"
    line = charts["rl: majority_ratio"].find("polyline")
    assert line is not None
    heights = [float(point.split(",")[1]) for point in line.get("points", "").split()]
    assert len(heights) == 3 and heights[0] > heights[1] > heights[2], "a rising figure is drawn rising"
    assert "&lt;entropy&gt;" in text and "0.950" in text


def test_model_card() -> None:
    config = SkillTTRLConfig(name="t")
    card = model_card(config, phase="rl", step=20)
    front = yaml.safe_load(card.split("---")[1])
    assert front["library_name"] == "transformers" and front["base_model"] == config.model.path
    assert "ttrl" in front["tags"] and "no labels were used" in card
    config.rl.reward, config.model.path, config.model.lora = "label", "builtin", LoraConfig()
    card = model_card(config, phase="rl", step=20)
    front = yaml.safe_load(card.split("---")[1])
    assert front["library_name"] == "peft" and "base_model" not in front and "ttrl" not in front["tags"]
    assert "labels were used" in card and "no labels" not in card
    folded = model_card(config, phase="rl", step=20, merged=True)
    assert "library_name: transformers" in folded


def test_trackers_that_cannot_be_had(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_tracker("none", folder, "t", {}) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"skill-ttrl\[trackers\]"):
        open_tracker("wandb", folder, "t", {})
    assert not folder.tracker.exists()
