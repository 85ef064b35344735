"""Votes: the command, the strategies and rewards in training, and what imitates the vote."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl import apply_original_gt, apply_ttrl_gt, batch_majority_vote, compute_ttrl_metrics, grade_answer
from skill_ttrl.answers import canonical
from skill_ttrl.commands import train
from skill_ttrl.commands.reports.compare import compare
from skill_ttrl.commands.train import run
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.progress import SilentProgress
from skill_ttrl.rl.algorithms.negative import POSITIVE, POSITIVE_TOKENS
from skill_ttrl.runs.folder import trajectory_lines
from skill_ttrl.runs.reader import read_run
from skill_ttrl.signals import Interrupted
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.imitate import agreeing
from skill_ttrl.train.results import read_evaluations
from skill_ttrl.train.rules import Rules
from skill_ttrl.types import Completion, Group, Labels, Step, Task, Trajectory, from_json
from skill_ttrl.voting import STRATEGIES
from tests.integration.test_cli_commands import Listener, refused, skillttrl

ALL = ("--strategies", "all")


@pytest.fixture(scope="module")
def run_again(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every problem comes round again: three problems, three a step."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = ("data.train.limit=3", "rl.steps=3", "sft.steps=80", "sft.save_steps=80")
    done = skillttrl("train", tiny_yaml, "-o", folder, *[word for each in settings for word in ("--set", each)])
    assert done.code == 0, done
    return folder


def lines(folder: Path, name: str = "votes.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def strategies(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["strategy"]: each for each in found["strategies"]}


@pytest.mark.slow
def test_a_run_s_steps_are_replayed_with_its_true_answers(run_again: Path, tmp_path: Path) -> None:
    found = skillttrl("vote", run_again / "trajectories.jsonl", *ALL, "-o", tmp_path / "lab", "--json")
    assert found.code == 0, found
    assert [found.json[name] for name in ("problems", "visits", "labelled", "trained_on")] == [3, 3, 3, 3]
    each = strategies(found.json)
    assert set(each) == set(STRATEGIES) and next(iter(each)) == "majority"
    assert not any(each[name]["requires"] for name in each)
    # The majority of the laboratory is the run's own: winner by winner, and whether it was true.
    held = [(row["task_id"], row["answer"], row["majority_ratio"], row["correct"]) for row in lines(run_again)]
    mine = [row for row in lines(tmp_path / "lab") if row["strategy"] == "majority"]
    assert [(row["task_id"], row["answer"], row["majority_ratio"], row["correct"]) for row in mine] == held
    winners: dict[str, list[str]] = defaultdict(list)
    for row in held:
        if (key := canonical(row[1])) is not None:
            winners[row[0]].append(key)
    flips = [
        sum(one != two for one, two in pairwise(keys)) / (len(keys) - 1) for keys in winners.values() if len(keys) > 1
    ]
    assert flips and each["majority"]["figures"]["flip_rate"]["value"] == pytest.approx(sum(flips) / len(flips))
    assert len(lines(tmp_path / "lab")) == 9 * len(each)


def test_drawn_samples_are_kept_and_voted_on_again(run_again: Path, tmp_path: Path) -> None:
    asked = ("vote", "--policy", run_again, "-n", 6, "-o", tmp_path / "lab")
    first = skillttrl(*asked, "--json")
    assert first.code == 0 and (first.json["problems"], first.json["samples"], first.json["trained_on"]) == (
        4,
        [6, 6],
        0,
    )
    rows = lines(tmp_path / "lab", "samples.jsonl")
    assert [len(row["samples"]) for row in rows] == [6] * 4 and {row["draw"] for row in rows} == {"sample"}
    samples = (tmp_path / "lab" / "samples.jsonl").read_bytes()
    every = skillttrl(*asked, *ALL, "--json")
    assert "All samples are in" in every.err and (tmp_path / "lab" / "samples.jsonl").read_bytes() == samples
    stored = skillttrl("vote", tmp_path / "lab", *ALL, "--json").json
    assert strategies(stored) == strategies(every.json) and stored["trained_on"] == 0
    assert (
        skillttrl("vote", tmp_path / "lab" / "samples.jsonl", *ALL, "--json").json["strategies"] == stored["strategies"]
    )
    assert strategies(stored)["majority"]["figures"] == strategies(first.json)["majority"]["figures"]
    assert json.loads((tmp_path / "lab" / "vote.json").read_text())["strategies"] == stored["strategies"]
    looked = skillttrl("inspect", tmp_path / "lab", "--json").json
    assert (
        looked["kind"] == "samples" and looked["facts"]["complete"] == "yes" and looked["rows"][0][:2] == ["sample", 6]
    )
    assert "strategy" in skillttrl("inspect", tmp_path / "lab" / "votes.jsonl", "--json").json["columns"]
    shown = skillttrl("vote", tmp_path / "lab", *ALL).out
    assert "unclear" in shown and "verdict" in shown and "false consensus" in shown
    assert max(map(len, shown.splitlines())) <= 80


HOSTILE = "[red]\x1b[2J</title><script>x</script>"


def test_texts_of_one_s_own(tmp_path: Path) -> None:
    rows = [
        {
            "problem": "6 times 7?",
            "answer": "42",
            "task_type": HOSTILE,
            "responses": [r"\boxed{42}", "answer is 41", "42!"],
        },
        {"problem": "open", "answer": None, "responses": [rf"\boxed{{{HOSTILE}}}"] * 3},
    ]
    file = tmp_path / f"{HOSTILE.replace('/', '')}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = skillttrl("vote", file, *ALL, "-o", tmp_path / "lab")
    assert done.code == 0 and "\x1b" not in done.out and "[red]" in done.out and "confidence needs logprobs" in done.out
    assert "1 of them with a true answer" in " ".join(done.out.split())
    found = [row for row in lines(tmp_path / "lab") if row["strategy"] == "majority"]
    assert next((row["answer"], row["correct"], row["abstained"]) for row in found) == ("42", True, 1)
    assert "given up" not in done.out
    hard = tmp_path / "hard.json"
    hard.write_text(
        json.dumps([{"problem": "a", "responses": ["answer is 1", r"\boxed{9^{9^{9^9}}}", r"\boxed{1.0}"]}])
    )
    told = skillttrl("vote", hard, "-o", tmp_path / "hard")
    assert "1 of 3 different answers could not be normalized (undecided 1)" in " ".join(told.out.split()), told
    counted = json.loads((tmp_path / "hard" / "vote.json").read_text())["undecided_answers"]
    assert counted == {"count": 1, "distinct": 3, "reasons": {"undecided": 1}}
    unlabelled = tmp_path / "open.json"
    unlabelled.write_text(json.dumps([{"problem": "a", "responses": ["answer is 1"] * 4}]))
    found_open = skillttrl("vote", unlabelled)
    assert (
        "label accuracy" not in found_open.out and "false" not in found_open.out and "majority ratio" in found_open.out
    )


def test_mistakes(run_again: Path, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(json.dumps({"problem": "a", "responses": ["answer is 1"]}) + "\n")
    refused(skillttrl("vote", file, "--strategies", "majorty"), 2, "Did you mean 'majority'")
    refused(skillttrl("vote", file, "--strategy-arg", "anchored.weight=0.6"), 2, "not among the chosen strategies")
    refused(skillttrl("vote", file, *ALL, "--strategy-arg", "anchored.weight=7"), 2, "weight")
    refused(skillttrl("vote", file, "-n", 4, "--data", file), 2, "nothing is sampled", "--policy")
    refused(skillttrl("vote", tmp_path / "none.jsonl"), 3, "No file")
    refused(skillttrl("vote"), 2)
    refused(skillttrl("vote", "--policy", file), 2, "stored samples")
    refused(skillttrl("vote", file, "--policy", run_again), 2, "not both")
    refused(skillttrl("vote", file, "--strategies", "os:system"), 2, "'os:system'")
    refused(skillttrl("vote", run_again / "metrics.jsonl"), 3, "metrics.jsonl")
    before = (run_again / "votes.jsonl").read_bytes()
    refused(skillttrl("vote", run_again / "trajectories.jsonl", "-o", run_again), 4, "holds something other than votes")
    assert (run_again / "votes.jsonl").read_bytes() == before
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    refused(skillttrl("vote", file, "-o", tmp_path / "photos"), 4, "holds something other than votes")
    assert [entry.name for entry in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


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


VOTED = [
    "phases=[rl]",
    "rl.steps=6",
    "rl.prompts_per_step=3",
    "rl.save_steps=2",
    "rl.learning_rate=0.003",
    "rollout.n_votes_per_prompt=8",
    "rollout.n_samples_per_prompt=4",
    "rollout.max_new_tokens=10",
    "rollout.temperature=0.25",  # at 1 hardly two samples of this policy agree
]


@pytest.fixture
def cold(answering: Path) -> str:
    return f"model.path={answering}"


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


class StopAfter(SilentProgress):
    """Asks the run to stop when so many steps of a phase are done."""

    def __init__(self, step: int, phase: str = "grpo") -> None:
        self.step, self.phase = step, phase

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        if phase == self.phase and done == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_sequential_trains_and_resumes_to_the_same_bytes(cold: str, tiny_yaml: Path, tmp_path: Path) -> None:
    config = load_config(tiny_yaml, [*VOTED, cold, "vote.strategy={type: sequential, first: 2, error: 0.2}"])
    train.run(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train.run(config, tmp_path / "stopped", progress=StopAfter(3))
    train.run(config, tmp_path / "stopped", resume="auto")
    for file in ("metrics.jsonl", "votes.jsonl", "trajectories.jsonl", "checkpoints/rl-000006/model.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes(), file
    figures, votes = rows(tmp_path / "whole"), rows(tmp_path / "whole", "votes.jsonl")
    assert len(figures) == 6 and len(votes) == 18
    assert all({"majority_ratio", "label_accuracy", "pass@8"} <= row.keys() for row in figures)
    assert sum(len(vote["matches"]) < 8 for vote in votes) >= 2
    drawn = sum(len(vote["matches"]) for vote in votes)
    assert sum(row["votes_saved"] for row in figures) / 6 == pytest.approx(1 - drawn / (18 * 8))


@pytest.mark.slow
def test_the_base_is_asked_once_and_kept_with_the_run(cold: str, tiny_yaml: Path, tmp_path: Path) -> None:
    config = load_config(tiny_yaml, [*VOTED, cold, "vote.strategy=anchored"])
    train.run(config, tmp_path / "run")
    states = [
        json.loads((tmp_path / "run" / "checkpoints" / f"rl-00000{step}" / "state.json").read_text())["state"]
        for step in (2, 6)
    ]
    given = states[0]["votes"]["base_answers"]
    assert given == states[1]["votes"]["base_answers"] and len(given) == 6
    assert {len(answers) for answers in given.values()} == {config.rollout.n_votes_per_prompt}
    with pytest.raises(Interrupted, match="Interrupted during the votes of the base"):
        train.run(config, tmp_path / "stopped", progress=StopAfter(3, "votes of the base"))
    train.run(config, tmp_path / "stopped", resume="auto")
    assert (tmp_path / "stopped" / "votes.jsonl").read_bytes() == (tmp_path / "run" / "votes.jsonl").read_bytes()


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


def all_lines(run: Path, name: str, phase: str) -> list[dict[str, Any]]:
    return [line for line in read_jsonl(run / name) if line["phase"] == phase]


def test_a_control_takes_the_evaluation_before_of_its_run(
    pair: tuple[Path, Path], tiny_yaml: Path, answering: Path
) -> None:
    mine, control = (read_evaluations(run)[0] for run in pair)
    assert mine.reused_from == "" and control == replace(mine, reused_from=str(pair[0]))
    shared = ["phases=[rl]", f"model.path={answering}", *DRAWN, f"run.baseline={pair[0]}"]
    Rules(load_config(tiny_yaml, [*shared, "rl.reward=random", "model.lora.r=4"])).check()
    for other in ("eval.samples=3", "seed=5", "data.eval.limit=2", "phases=[sft, rl]", "phases=[sft]"):
        with pytest.raises(
            ConfigError, match=other.partition("=")[0] if "[sft]" not in other else "learns from votes|phases"
        ):
            Rules(load_config(tiny_yaml, [*shared, other])).check()
    with pytest.raises(RunFolderError, match="no evaluation 'before'"):
        Rules(load_config(tiny_yaml, [*shared, f"run.baseline={answering.parents[1]}"])).check()


@pytest.mark.slow
def test_it_draws_as_many_samples_of_the_same_prompts_in_the_same_order(pair: tuple[Path, Path]) -> None:
    reinforced, baseline = (
        all_lines(pair[0], "trajectories.jsonl", "rl"),
        all_lines(pair[1], "trajectories.jsonl", "vote_sft"),
    )
    assert len(baseline) == len(reinforced) == 4 * 3 * 4

    def drawn(line: dict[str, Any]) -> tuple[Any, ...]:
        return line["step"], line["sample"], line["task"]["id"]

    assert list(map(drawn, baseline)) == list(map(drawn, reinforced))
    first = [line["steps"] for line in baseline if line["step"] == 0]
    assert first == [line["steps"] for line in reinforced if line["step"] == 0], "the first round is the same samples"
    assert {turn["completion"]["policy_version"] for line in baseline for turn in line["steps"]} == {0}


def test_it_learns_the_samples_that_agree_as_they_were_sampled(pair: tuple[Path, Path]) -> None:
    tried = all_lines(pair[1], "trajectories.jsonl", "vote_sft")
    matches = [match for vote in all_lines(pair[1], "votes.jsonl", "vote_sft") for match in vote["matches"]]
    assert len(matches) == len(tried) and 0 < sum(matches) < len(matches)
    expected = [
        (turn["prompt_ids"], turn["completion"]["token_ids"])
        for line, match in zip(tried, matches, strict=True)
        for turn in line["steps"]
        if match
    ]
    data = list(agreeing(pair[1] / "trajectories.jsonl"))
    assert [(list(each.prompt_ids), list(each.response_ids)) for each in data] == expected
    rows = all_lines(pair[1], "metrics.jsonl", "vote_sft")[4:]
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
    assert "was fine-tuned on its own majority answers" in (baseline / "report.html").read_text()
    card = max((baseline / "checkpoints").iterdir()).joinpath("README.md").read_text()
    assert "no labels were used" in card and "grpo" not in card


def test_a_control_imitates_what_a_coin_chooses(
    answering: Path, pair: tuple[Path, Path], tiny_yaml: Path, tmp_path: Path
) -> None:
    settings = ["phases=[vote_sft]", f"model.path={answering}", *DRAWN, "rl.reward=random"]
    heard = Listener()
    summary = train.run(load_config(tiny_yaml, settings), tmp_path / "mine-vote_sft", progress=heard)
    assert [*heard.planned] == ["vote SFT: learn", "evaluate after"] and heard.planned.items() <= heard.started.items()
    tried = all_lines(tmp_path / "mine-vote_sft", "trajectories.jsonl", "vote_sft")
    heads = [line["reward"] for line in tried]
    voted = [line["reward"] for line in all_lines(pair[1], "trajectories.jsonl", "vote_sft")]
    assert set(heads) == {0.0, 1.0} and heads != voted and 12 < sum(heads) < 36, "48 throws"
    assert len(list(agreeing(tmp_path / "mine-vote_sft" / "trajectories.jsonl"))) == sum(heads)
    assert "was fine-tuned on samples that a control chose" in (tmp_path / "mine-vote_sft" / "report.html").read_text()
    assert summary.steps["vote_sft"] > 4


def test_where_nobody_answers_there_is_nothing_to_imitate(tiny_yaml: Path, tmp_path: Path) -> None:
    summary = train.run(load_config(tiny_yaml, ["phases=[sft, vote_sft]", "sft.steps=1"]), tmp_path / "run")
    assert summary.steps == {"sft": 1, "vote_sft": 2} and summary.accuracy_after == summary.accuracy_before
    assert any("imitate" in text for text in summary.warnings)
