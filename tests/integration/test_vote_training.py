"""Every strategy trains, says what it did, and goes on after a stop as if there had been none."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.config import load_config
from skill_ttrl.progress import SilentProgress
from skill_ttrl.signals import Interrupted
from skill_ttrl.stages import train

OWN = """\
def drop(question):
    return question.rstrip(".")
"""
SETTINGS = [
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


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_words_under_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_words_under_test"


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


class StopAfter(SilentProgress):
    """Asks the run to stop when so many steps of a phase are done."""

    def __init__(self, step: int, phase: str = "grpo") -> None:
        self.step, self.phase = step, phase

    def advance(self, phase: str, done: int, metrics: Mapping[str, float]) -> None:
        if phase == self.phase and done == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


STRATEGIES = {
    "harmonic": ["vote.paraphrase=own_words_under_test:drop"],
    "guard": ["vote.options={window: 2, risk_ratio: 0.05, hold_bonus: true}"],
    "sequential": ["vote.options={first: 2, error: 0.2}"],
}
"""Those that need another wording, a history, or rounds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_trains_and_resumes_to_the_same_bytes(
    name: str, cold: str, own: str, tiny_yaml: Path, tmp_path: Path
) -> None:
    config = load_config(tiny_yaml, [*SETTINGS, cold, f"vote.strategy={name}", *STRATEGIES[name]])
    train.run(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train.run(config, tmp_path / "stopped", progress=StopAfter(3))
    train.run(config, tmp_path / "stopped", resume="auto")
    for file in ("metrics.jsonl", "votes.jsonl", "trajectories.jsonl", "checkpoints/rl-000006/model.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes(), file
    figures, votes = rows(tmp_path / "whole"), rows(tmp_path / "whole", "votes.jsonl")
    assert len(figures) == 6 and len(votes) == 18
    for row in figures:
        assert {"majority_ratio", "label_accuracy", "pass@8"} <= row.keys()
    effect: dict[str, Callable[[dict[str, Any]], Any]] = {
        "harmonic": lambda vote: vote["answer"],
        "guard": lambda vote: vote["skipped"] or vote["weight"] < 1 or any(vote["bonus"]),
        "sequential": lambda vote: len(vote["matches"]) < 8,
    }
    assert sum(bool(effect[name](vote)) for vote in votes) >= 2


@pytest.mark.slow
def test_the_run_was_shaped_by_its_votes(cold: str, tiny_yaml: Path, tmp_path: Path) -> None:
    """The first step samples alike; what is learned from it differs between strategies, and between weights of the labels."""
    asked = {
        "majority": ["vote.strategy=majority"],
        "soft": ["vote.strategy=soft"],
        "narrow": ["vote.strategy=restrain", "vote.options={prompt_weight: false, kappa: 0, sigma: 0.2}"],
        "wide": ["vote.strategy=restrain", "vote.options={prompt_weight: false, kappa: 0, sigma: 2}"],
    }
    weights, samples, rewards = {}, {}, {}
    for name, settings in asked.items():
        train.run(load_config(tiny_yaml, [*SETTINGS, cold, "rl.steps=1", *settings]), tmp_path / name)
        weights[name] = (tmp_path / name / "checkpoints/rl-000001/model.safetensors").read_bytes()
        tries = rows(tmp_path / name, "trajectories.jsonl")
        samples[name], rewards[name] = [[row[key] for row in tries] for key in ("answer", "reward")]
    assert len({str(found) for found in samples.values()}) == 1 and any(samples["majority"])
    assert rewards["narrow"] == rewards["wide"] == rewards["majority"], "only the advantages tell them apart"
    assert len(set(weights.values())) == 4


@pytest.mark.slow
def test_a_step_whose_prompts_are_all_skipped_is_recorded_and_changes_nothing(
    cold: str, tiny_yaml: Path, tmp_path: Path
) -> None:
    options = ["vote.strategy=gated", "vote.options={threshold: 1}", "rl.kl_coef=0.01", "rl.steps=2"]
    train.run(load_config(tiny_yaml, [*SETTINGS, cold, *options]), tmp_path / "run")
    figures = rows(tmp_path / "run")
    assert [(row["vote_skipped"], row["vote_gated"], row["updates"], row["sequences"]) for row in figures] == [
        (1, 1, 0, 0)
    ] * 2
    assert all("reward_accuracy" in row and "post_reward_accuracy" not in row for row in figures)
    assert all("entropy" not in row and "learning_rate" not in row and "kl" not in row for row in figures)
    warned = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert sum("Every prompt was skipped in step 0" in text for text in warned) == 1
    from safetensors.numpy import load_file

    before = load_file(Path(cold.removeprefix("model.path=")) / "model.safetensors")
    after = load_file(tmp_path / "run" / "checkpoints" / "rl-000002" / "model.safetensors")
    assert before.keys() == after.keys() and all((before[name] == after[name]).all() for name in before)


@pytest.mark.slow
def test_the_base_is_asked_once_and_kept_with_the_run(cold: str, tiny_yaml: Path, tmp_path: Path) -> None:
    config = load_config(tiny_yaml, [*SETTINGS, cold, "vote.strategy=restrain", "vote.options={sigma: 0.3}"])
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
    votes = rows(tmp_path / "run", "votes.jsonl")
    weights = {
        vote["task_id"]: {other["weight"] for other in votes if other["task_id"] == vote["task_id"]} for vote in votes
    }
    assert all(len(found) == 1 for found in weights.values()), "u_x never changes"
