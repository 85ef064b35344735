"""The baseline at equal samples: what it draws, what it learns from, and how it stands beside the reinforcement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands import train
from skill_ttrl.commands.reports.compare import compare, read_evaluations
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.runs.metrics import trajectory_lines
from skill_ttrl.runs.reader import read_run
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.imitate import agreeing
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory

DRAWN = ["rl.steps=4", "rl.learning_rate=1e-4", "rl.mini_batch_size=null", "vote_sft.batch_size=2"]


@pytest.fixture(scope="module")
def pair(answering: Path, tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(reinforced, baseline): two runs from the same model."""
    folder = tmp_path_factory.mktemp("pair")
    start = [f"model.path={answering}", *DRAWN]
    train.run(load_config(tiny_yaml, ["phases=[rl]", "rl.eval_steps=1", *start]), folder / "mine")
    before = f"run.baseline={folder / 'mine'}"
    settings = ["phases=[vote_sft]", "vote_sft.passes=6", "vote_sft.learning_rate=3e-3", before, *start]
    train.run(load_config(tiny_yaml, settings), folder / "mine-vote_sft")
    return folder / "mine", folder / "mine-vote_sft"


def lines(run: Path, name: str, phase: str) -> list[dict[str, Any]]:
    return [line for line in read_jsonl(run / name) if line["phase"] == phase]


def test_a_control_takes_the_evaluation_before_of_its_run(
    pair: tuple[Path, Path], tiny_yaml: Path, answering: Path
) -> None:
    mine, control = (read_evaluations(run)[0] for run in pair)
    assert mine.reused_from == "" and control == replace(mine, reused_from=str(pair[0]))
    shared = ["phases=[rl]", f"model.path={answering}", *DRAWN, f"run.baseline={pair[0]}"]
    train.check_runnable(load_config(tiny_yaml, [*shared, "rl.reward=random", "model.lora.r=4"]))
    for other in ("eval.samples=3", "seed=5", "data.eval.limit=2", "phases=[sft, rl]", "phases=[sft]"):
        with pytest.raises(
            ConfigError, match=other.partition("=")[0] if "[sft]" not in other else "learns from votes|phases"
        ):
            train.check_runnable(load_config(tiny_yaml, [*shared, other]))
    with pytest.raises(RunFolderError, match="no evaluation 'before'"):
        train.check_runnable(load_config(tiny_yaml, [*shared, f"run.baseline={answering.parents[1]}"]))


@pytest.mark.slow
def test_it_draws_as_many_samples_of_the_same_prompts_in_the_same_order(pair: tuple[Path, Path]) -> None:
    reinforced, baseline = lines(pair[0], "trajectories.jsonl", "rl"), lines(pair[1], "trajectories.jsonl", "vote_sft")
    assert len(baseline) == len(reinforced) == 4 * 3 * 4

    def drawn(line: dict[str, Any]) -> tuple[Any, ...]:
        return line["step"], line["sample"], line["task"]["id"]

    assert list(map(drawn, baseline)) == list(map(drawn, reinforced))
    first = [line["steps"] for line in baseline if line["step"] == 0]
    assert first == [line["steps"] for line in reinforced if line["step"] == 0], "the first round is the same samples"
    assert {turn["completion"]["policy_version"] for line in baseline for turn in line["steps"]} == {0}


def test_it_learns_the_samples_that_agree_as_they_were_sampled(pair: tuple[Path, Path]) -> None:
    tried = lines(pair[1], "trajectories.jsonl", "vote_sft")
    matches = [match for vote in lines(pair[1], "votes.jsonl", "vote_sft") for match in vote["matches"]]
    assert len(matches) == len(tried) and 0 < sum(matches) < len(matches)
    expected = [
        (turn["prompt_ids"], turn["completion"]["token_ids"])
        for line, match in zip(tried, matches, strict=True)
        for turn in line["steps"]
        if match
    ]
    data = list(agreeing(pair[1] / "trajectories.jsonl"))
    assert [(list(each.prompt_ids), list(each.response_ids)) for each in data] == expected
    rows = lines(pair[1], "metrics.jsonl", "vote_sft")[4:]
    assert len(rows) == -(-6 * len(data) // 2)
    losses = [row["loss"] for row in rows]
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5]), "seen six times, they are better known"


def test_every_turn_is_learned_from_but_not_what_the_bank_told(tmp_path: Path) -> None:
    task = Task("t", "env")

    def turn(ids: tuple[int, ...], mask: tuple[bool, ...] | None) -> Step:
        return Step(
            "seen", "said", 0.0, False, False, (7, 8), Completion("said", ids, (-0.5,) * len(ids), "stop", 0, mask)
        )

    spoken = (turn((1, 2, 3), (True, False, True)), turn((4, 5), None), turn((), None))
    agrees = Trajectory(task, spoken, "1", "terminated", reward=1.0)
    other = Trajectory(task, (turn((9,), None),), "2", "terminated", reward=0.0)
    file = tmp_path / "trajectories.jsonl"
    written = trajectory_lines("vote_sft", 0, Group(task, (agrees, other))) + trajectory_lines(
        "rl", 0, Group(task, (agrees,))
    )
    file.write_text("".join(f"{line}\n" for line in written))
    found = [(list(e.prompt_ids), list(e.response_ids), e.mask) for e in agreeing(file)]
    assert found == [([7, 8], [1, 2, 3], [True, False, True]), ([7, 8], [4, 5], None)]
    assert list(agreeing(tmp_path / "none.jsonl")) == []


def test_the_two_are_compared_task_by_task(pair: tuple[Path, Path]) -> None:
    reinforced, baseline = pair
    after = [read_run(path).summary for path in pair]
    assert after[0] is not None and after[1] is not None
    assert after[0].accuracy_after is not None and after[1].accuracy_after is not None
    (found,) = compare([baseline, reinforced])
    assert found.figures["accuracy"].difference == pytest.approx(after[0].accuracy_after - after[1].accuracy_after)
    assert "SFT on the majority answers, seed 0" in (baseline / "report.html").read_text()
    card = max((baseline / "checkpoints").iterdir()).joinpath("README.md").read_text()
    assert "no labels were used" in card and "grpo" not in card


def test_a_control_imitates_what_a_coin_chooses(
    answering: Path, pair: tuple[Path, Path], tiny_yaml: Path, tmp_path: Path
) -> None:
    settings = ["phases=[vote_sft]", f"model.path={answering}", *DRAWN, "rl.reward=random"]
    summary = train.run(load_config(tiny_yaml, settings), tmp_path / "mine-vote_sft")
    tried = lines(tmp_path / "mine-vote_sft", "trajectories.jsonl", "vote_sft")
    heads = [line["reward"] for line in tried]
    voted = [line["reward"] for line in lines(pair[1], "trajectories.jsonl", "vote_sft")]
    assert set(heads) == {0.0, 1.0} and heads != voted and 12 < sum(heads) < 36, "48 throws"
    assert len(list(agreeing(tmp_path / "mine-vote_sft" / "trajectories.jsonl"))) == sum(heads)
    assert "SFT by the control random" in (tmp_path / "mine-vote_sft" / "report.html").read_text()
    assert summary.steps["vote_sft"] > 4


def test_where_nobody_answers_there_is_nothing_to_imitate(tiny_yaml: Path, tmp_path: Path) -> None:
    summary = train.run(load_config(tiny_yaml, ["phases=[sft, vote_sft]", "sft.steps=1"]), tmp_path / "run")
    assert summary.steps == {"sft": 1, "vote_sft": 2} and summary.accuracy_after == summary.accuracy_before
    assert any("imitate" in text for text in summary.warnings)
