"""Every registered algorithm trains a run from a config: two steps from a cold-started model, on questions or on episodes of two turns."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from skill_ttrl.config import load_config
from skill_ttrl.envs import TextEnv
from skill_ttrl.rl.algorithms import ALGORITHMS, build_algorithm, requirements
from skill_ttrl.stages import train
from skill_ttrl.types import Task

ENV = f"{__name__}:TwoTurnParity-v0"
QUICK = ["rl.steps=2", "rl.save_steps=2", "eval.samples=1", "eval.greedy=false", "rl.warmup_steps=0"]
QUESTIONS = ["phases=[rl]", "rollout.n_votes_per_prompt=8", "rollout.n_samples_per_prompt=8"]
NEEDED = {"critic": "rl.critic={learning_rate: 1.0e-3}", "extra_rewards": "rl.extra_rewards={format: 0.5}"}
"""Settings that give an algorithm what it requires."""


class Parity(TextEnv):
    """Two turns; the reward is the share of turns whose action has an even number of characters, of which a random policy has both."""

    def tasks(self, split: str | None = None) -> list[Task]:
        names = ["train", "test"] if split is None else [split]
        starts = {"train": 0, "test": 4}
        return [
            Task(f"{name}/{number}", ENV, {"number": starts[name] + number}, split=name)
            for name in names
            for number in range(4)
        ]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._number = (options or {"number": 0})["number"]
        self._even: list[bool] = []
        return f"Say something, number {self._number}.", self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._even.append(len(action) % 2 == 0)
        ends = len(self._even) == 2
        return "Go on.", sum(self._even) / 2 if ends else 0.0, ends, False, self._info()

    def _info(self) -> dict[str, Any]:
        return {"state": f"{self._number} {self._even}", "won": self._even == [True, True]}


gymnasium.register("TwoTurnParity-v0", entry_point=f"{__name__}:Parity")

EPISODES: dict[str, Any] = {
    "name": "parity",
    "phases": ["rl"],
    "env": {"id": ENV, "train_split": "train", "eval_split": "test"},
    "data": {"max_prompt_tokens": 160},
    "agent": {"template": "episode", "prompts": "tiny", "context_mode": "window", "max_turns": 2},
    "model": {"path": "builtin", "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 192}},
    "rollout": {"n_votes_per_prompt": 4, "n_samples_per_prompt": 4, "max_new_tokens": 6},
    "rl": {"reward": "env", "prompts_per_step": 2, "mini_batch_size": None, "learning_rate": 1e-3},
    "runtime": {"device": "cpu", "threads": 1},
}


def needs(name: str) -> frozenset[str]:
    return requirements(build_algorithm({"type": name}))


@pytest.fixture(scope="module")
def model(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cold start that often answers and is sometimes right, so that votes differ."""
    run = tmp_path_factory.mktemp("base") / "run"
    longer = ["sft.steps=100", "sft.batch_size=32", "sft.micro_batch_size=32", "sft.save_steps=200"]
    train.run(load_config(tiny_yaml, ["phases=[sft]", "eval.samples=1", *longer]), run)
    (found,) = (run / "checkpoints").glob("sft-*")
    return found


def rows_of(run: Path) -> list[dict[str, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in row.items() if not isinstance(value, str)} for row in lines]


def check(run: Path) -> list[dict[str, float]]:
    rows = rows_of(run)
    assert [row["step"] for row in rows] == [0, 1]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert sum(row["updates"] for row in rows) > 0 and not any(row["skipped_updates"] for row in rows)
    assert max(row["grad_norm"] for row in rows) > 0, "nothing was learned from"
    return rows


ESTIMATORS_ALONE = frozenset(
    "dr_grpo maxrl rloo opo grpo_passk gpg reinforce_plus_plus reinforce_plus_plus_baseline nsr psr w_reinforce ppo cispo sapo gspo "
    "ttpo gmae scrl dapo".split()
)
"""Algorithms whose advantages, losses and inputs other tests hold, each run of which would repeat another's."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ESTIMATORS_ALONE else ())
        for name in ALGORITHMS
        if "episodes" not in needs(name)
    ],
)
def test_an_algorithm_trains_on_questions(name: str, model: Path, tiny_yaml: Path, tmp_path: Path) -> None:
    given = [NEEDED[each] for each in needs(name) if each in NEEDED]
    settings = [*QUESTIONS, *QUICK, f"model.path={model}", f"rl.algorithm={name}", *given]
    train.run(load_config(tiny_yaml, settings), tmp_path / "run")
    rows = check(tmp_path / "run")
    assert ("critic/vf_loss" in rows[0], "greedy_reward" in rows[0]) == (
        "critic" in needs(name),
        "greedy" in needs(name),
    )
    assert ("rewards/format/mean" in rows[0]) == ("extra_rewards" in needs(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(name for name in ALGORITHMS if "episodes" in needs(name)), "gae", "remax", "rloo"])
def test_an_algorithm_trains_on_episodes(name: str, tmp_path: Path) -> None:
    given = [NEEDED[each] for each in needs(name) if each in NEEDED]
    train.run(load_config(EPISODES, [*QUICK, f"rl.algorithm={name}", *given]), tmp_path / "run")
    rows = check(tmp_path / "run")
    assert rows[0]["sequences"] == 16, "each of two turns is an item"
