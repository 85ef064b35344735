"""Rewards: what each gives, what is refused, and that true answers reach the `label` control alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.compat.trainer import SkillTTRLTrainer
from skill_ttrl.config import load_config
from skill_ttrl.errors import ConfigError, ExtensionError
from skill_ttrl.types import Group, Step, Task, Trajectory
from skill_ttrl.voting import majority_vote
from skill_ttrl.voting.rewards import RewardSet, build_reward, format_reward, majority_reward

TASK = Task("t", "Env-v0", {"question": "?", "check": "x + 1 = 3"})


def group(
    answers: Sequence[str | None], returns: Sequence[float] | None = None, info: dict[str, Any] | None = None
) -> Group:
    rewards = returns or [0.0] * len(answers)
    steps = [
        Step("?", str(answer), reward, True, False, info=info or {})
        for answer, reward in zip(answers, rewards, strict=True)
    ]
    return Group(
        TASK,
        tuple(Trajectory(TASK, (step,), answer, "terminated") for step, answer in zip(steps, answers, strict=True)),
    )


def rewards(name: str, given: Group, references: dict[str, str] | None = None, seed: int = 0) -> list[float]:
    return list(build_reward(name, references or {})(given, majority_vote(given.answers), seed))


def test_the_built_in_rewards() -> None:
    given = group(["1", "1.0", "2", None, ""], [0.5, 0.0, -1.0, 2.0, 0.0])
    assert rewards("majority", given) == [1, 1, 0, 0, 0]
    assert rewards("format", given) == [1, 1, 1, 0, 1]
    assert rewards("verify", given) == [0, 0, 1, 0, 0]
    assert rewards("env", given) == [0.5, 0.0, -1.0, 2.0, 0.0]
    assert rewards("label", given, {"t": "2.0"}) == [0, 0, 1, 0, 0]


def test_random_is_a_fair_coin_drawn_from_the_seed_and_the_task() -> None:
    many = group(["1"] * 2000)
    drawn = rewards("random", many, seed=5)
    assert set(drawn) == {0.0, 1.0} and 0.45 < sum(drawn) / 2000 < 0.55
    assert rewards("random", many, seed=5) == drawn != rewards("random", many, seed=6)
    assert rewards("random", replace(many, task=replace(TASK, id="u")), seed=5) != drawn


def test_env_says_when_nothing_can_be_graded() -> None:
    with pytest.raises(ConfigError, match="cannot grade without true answers"):
        rewards("env", group(["1"], info={"graded": False}))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_rewards_under_test.py").write_text(
        "def length(group): return [len(t.text) for t in group.trajectories]\n"
        "def short(group): return [1.0]\n"
        "def nan(group): return [float('nan')] * len(group.trajectories)\n"
        "def words(group): return ['good'] * len(group.trajectories)\n"
        "def nothing(group): pass\n"
        "def text(group): return ['1.0'] * len(group.trajectories)\n"
        "def huge(group): return [1e300] * len(group.trajectories)\n"
        "def raises(group): return [1 / 0]\n"
        "def leaves(group): raise SystemExit(0)\n"
        "def sees(group): assert group.task.ground_truth is None; return [1.0] * len(group.trajectories)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_rewards_under_test"


@pytest.mark.parametrize("function", ["short", "nan", "words", "nothing", "text", "huge"])
def test_a_reward_of_ones_own_that_gives_no_numbers(own: str, function: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"{function}' must return one finite number of at most 1e\+15 for each of the 2 rollouts of task 't'",
    ):
        rewards(f"{own}:{function}", group(["1", "2"]))


@pytest.mark.parametrize(("function", "said"), [("raises", "ZeroDivisionError: division"), ("leaves", "SystemExit: 0")])
def test_a_reward_of_ones_own_that_raises_is_named_with_its_task(own: str, function: str, said: str) -> None:
    with pytest.raises(ExtensionError, match=rf"{own}:{function}' failed on task 't': {said}") as raised:
        rewards(f"{own}:{function}", group(["1", "2"]))
    assert type(raised.value.__cause__).__name__ == said.partition(":")[0], "--debug shows where"


def test_label_needs_every_true_answer() -> None:
    with pytest.raises(ConfigError, match="the training tasks have none"):
        build_reward("label", {})
    with pytest.raises(ConfigError, match="'t' has none"):
        rewards("label", group(["1"]), {"other": "1"})


def run_with(tiny_yaml: Path, output: Path, rows: list[dict[str, str]], reward: str) -> dict[str, bytes]:
    settings = [f"rl.reward={reward}", "sft.steps=40", "sft.learning_rate=1e-2", "rl.steps=3", "sft.save_steps=40"]
    SkillTTRLTrainer(load_config(tiny_yaml, settings), output).train(rows)
    files = ("trajectories.jsonl", "votes.jsonl", "checkpoints/rl-000003/model.safetensors")
    return {name: (output / name).read_bytes() for name in files}


def unmeasured(lines: bytes) -> bytes:
    """The lines without what the meter says of them."""
    return re.sub(rb'"(correct|original_score|labels)": ?(\{.*?\}|[\w.]+), ', b"", lines)


def test_true_answers_never_reach_a_label_free_run(tiny_yaml: Path, tmp_path: Path) -> None:
    """Other true answers, other measurements; the same samples, votes, rewards and weights, byte by byte."""
    tasks = [{"id": f"q{a}", "prompt": f"Compute {a}+21.", "answer": "no number"} for a in range(10, 16)]
    first = run_with(tiny_yaml, tmp_path / "first", tasks, "majority")
    winners = {vote["task_id"]: vote["answer"] for vote in map(json.loads, first["votes.jsonl"].splitlines())}
    assert any(winners.values())  # something was voted for, so the comparison says something
    voted = [{**task, "answer": winners.get(task["id"]) or "no number"} for task in tasks]
    second = run_with(tiny_yaml, tmp_path / "second", voted, "majority")
    assert b'"correct": true' in second["votes.jsonl"] and b'"correct": true' not in first["votes.jsonl"]
    assert b'"original_score": 1.0' in second["trajectories.jsonl"]
    assert b'"original_score": 1.0' not in first["trajectories.jsonl"]
    for name in ("votes.jsonl", "trajectories.jsonl"):
        assert unmeasured(second[name]) == unmeasured(first[name])
    weights = "checkpoints/rl-000003/model.safetensors"
    assert second[weights] == first[weights]
    assert b'"reward":1.0' in first["trajectories.jsonl"] and b'"reference":"' not in first["trajectories.jsonl"]


def test_several_are_added_up_by_weight_and_stay_side_by_side() -> None:
    given = group(["1/2", "0.5", None, "3"])
    both = RewardSet({"majority": majority_reward, "format": format_reward}, {"format": 0.5})
    rewarded = both(given, majority_vote(given.answers), 0).trajectories
    assert [each.reward for each in rewarded] == [1.5, 1.5, 0.0, 0.5]
    assert rewarded[0].rewards == {"majority": 1, "format": 1} and rewarded[3].rewards == {"majority": 0, "format": 1}
