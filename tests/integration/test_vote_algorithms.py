"""Runs with algorithms that learn from votes: what a run's files say of each sample, and what a user of the seed looks for in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl import apply_original_gt, apply_ttrl_gt, batch_majority_vote, compute_ttrl_metrics, grade_answer
from skill_ttrl.commands.train import run
from skill_ttrl.config import load_config
from skill_ttrl.rl.algorithms.negative import POSITIVE, POSITIVE_TOKENS
from skill_ttrl.runs.reader import read_run
from skill_ttrl.types import Group, Labels, Trajectory, from_json

SETTINGS = ["rollout.n_votes_per_prompt=8", "rollout.n_samples_per_prompt=4", "rl.kl_in_reward={coef: 0.01}"]


def reinforced(config: Path, folder: Path, *overrides: str) -> Path:
    run(load_config(config, [*SETTINGS, *overrides]), folder)
    return folder


@pytest.fixture(scope="module")
def folder(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of GRPO-NSR with 8 votes and 4 trained samples a prompt."""
    settings = "rl.algorithm={type: grpo_nsr, positive_weight: 0.5, negative_weight: 2.0, norm_by_std: false}"
    return reinforced(tiny_yaml, tmp_path_factory.mktemp("nsr") / "run", settings, "run.save_eval_samples=true")


def rollouts(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "trajectories.jsonl").open()]
    return [line for line in lines if line["phase"] == "rl"]


def test_scores_and_advantages_stand_side_by_side(folder: Path) -> None:
    lines = rollouts(folder)
    truths = {
        vote["task_id"]: vote["labels"]["ground_truth"] for vote in map(json.loads, (folder / "votes.jsonl").open())
    }
    assert len(lines) == 2 * 3 * 8
    groups: dict[Any, list[dict[str, Any]]] = {}
    for line in lines:
        assert line["pseudo_score"] == line["reward"]
        assert line["original_score"] == grade_answer(line["answer"], truths[line["task"]["id"]])["score"]
        assert line["task"]["ground_truth"] is None and line["task"]["labels"] is None, "the trainer has no labels"
        groups.setdefault((line["step"], line["task"]["id"]), []).append(line)
    for group in groups.values():
        trained = [line for line in group if line["advantages"] is not None]
        assert len(trained) == 4
        # The KL in the reward is small: GRPO-NSR of the pseudo scores within a hundredth.
        mean = sum(line["pseudo_score"] for line in trained) / 4
        for line in trained:
            weight = 0.5 if line["pseudo_score"] > 0.5 else 2.0
            assert line["advantages"] == [pytest.approx(weight * (line["pseudo_score"] - mean), abs=0.05)]


def test_the_figures_have_the_names_of_ttrl_and_of_the_fork(folder: Path) -> None:
    metrics = read_run(folder).metrics
    reinforced = metrics[metrics["phase"] == "rl"]
    names = [
        *("label_accuracy", "reward_accuracy", "majority_ratio", "ground_truth_ratio", "majority_voting_reward"),
        *("pass@8", "post_reward_accuracy", "post_ground_truth_ratio", "post_pass@4", "post_entropy"),
        *("score/mean", "score/max", "score/min", "advantage/mean", "reward_kl", POSITIVE, POSITIVE_TOKENS),
    ]
    assert reinforced[names].notna().all().all()
    lines = rollouts(folder)
    for step in (0, 1):
        trained = [line for line in lines if line["step"] == step and line["advantages"] is not None]
        row = reinforced[reinforced["step"] == step].iloc[0]
        positive = [line for line in trained if line["pseudo_score"] > 0.5]
        assert row[POSITIVE] == pytest.approx(len(positive) / len(trained))
        tokens = [len(line["steps"][0]["completion"]["token_ids"]) for line in trained]
        of_positive = [len(line["steps"][0]["completion"]["token_ids"]) for line in positive]
        assert row[POSITIVE_TOKENS] == pytest.approx(sum(of_positive) / sum(tokens))
        agreed = [line["pseudo_score"] == line["original_score"] for line in trained]
        assert row["post_reward_accuracy"] == pytest.approx(sum(agreed) / len(agreed))


def test_pseudo_and_original_labels_on_the_groups_of_a_run(folder: Path) -> None:
    """The functions of the fork on what a run has written: pseudo labels in force, then the original ones again."""
    votes = {(vote["step"], vote["task_id"]): vote for vote in map(json.loads, (folder / "votes.jsonl").open())}
    by_group: dict[Any, list[Trajectory]] = {}
    for line in rollouts(folder):
        where = (line["step"], line["task"]["id"])
        for name in ("phase", "step", "sample", "pseudo_score", "original_score", "advantages"):
            line.pop(name)
        by_group.setdefault(where, []).append(from_json(Trajectory, json.dumps(line)))
    groups = [Group(tries[0].task, tuple(tries)) for tries in by_group.values()]
    held = batch_majority_vote([group.answers for group in groups])
    pseudo = apply_ttrl_gt(groups, held)
    assert [group.task.ground_truth for group in pseudo] == [votes[where]["answer"] for where in by_group]
    assert [group.task.ground_truth for group in apply_original_gt(pseudo)] == [None] * len(groups)
    recorded = [votes[where]["labels"] for where in by_group]
    assert [Labels(**labels).pseudo for labels in recorded] == [group.task.ground_truth for group in pseudo]
    metrics = compute_ttrl_metrics(
        held, [labels["ground_truth"] for labels in recorded], [group.answers for group in groups]
    )
    rows = read_run(folder).metrics
    expected = rows[rows["phase"] == "rl"]["label_accuracy"].mean()
    assert metrics["label_accuracy"] == pytest.approx(expected)


def test_the_samples_of_every_evaluation_are_there_with_their_scores(folder: Path) -> None:
    evaluations = {each["label"]: each for each in map(json.loads, (folder / "evaluations.jsonl").open())}
    lines = [json.loads(line) for line in (folder / "eval_samples.jsonl").open()]
    assert {line["label"] for line in lines} == set(evaluations) == {"before", "after"}
    for label, found in evaluations.items():
        drawn = [line for line in lines if line["label"] == label and line["draw"] == "sample"]
        assert len(drawn) == found["problems"] and all(each["text"] for line in drawn for each in line["samples"])
        scores = [score for line in drawn for score in line["scores"]]
        assert sum(scores) / len(scores) == pytest.approx(found["accuracy"])
    assert not (folder / "eval_samples.jsonl").read_text().count('"scores": []')
