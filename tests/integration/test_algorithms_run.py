"""Every registered algorithm trains a run from a config: two steps from a cold-started model, on questions. Episodes: test_episode_run.py, test_toys.py."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from skill_ttrl.commands import train
from skill_ttrl.config import load_config
from skill_ttrl.rl.algorithms import ALGORITHMS, build_algorithm, requirements

QUICK = ["rl.steps=2", "rl.save_steps=2", "eval.samples=1", "eval.greedy=false", "rl.warmup_steps=0"]
QUESTIONS = ["phases=[rl]", "rollout.n_votes_per_prompt=8", "rollout.n_samples_per_prompt=8"]
NEEDED = {"critic": "rl.critic={learning_rate: 1.0e-3}", "extra_rewards": "rl.extra_rewards={format: 0.5}"}
"""Settings that give an algorithm what it requires."""


def needs(name: str) -> frozenset[str]:
    return requirements(build_algorithm({"type": name}))


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
    "ttpo dapo".split()
)
"""Algorithms whose advantages, losses and inputs other tests hold (`test_toys.py`), each run of which would repeat another's."""


@pytest.mark.parametrize(
    "name", [name for name in ALGORITHMS if name not in ESTIMATORS_ALONE and "episodes" not in needs(name)]
)
def test_an_algorithm_trains_on_questions(name: str, answering: Path, tiny_yaml: Path, tmp_path: Path) -> None:
    given = [NEEDED[each] for each in needs(name) if each in NEEDED]
    settings = [*QUESTIONS, *QUICK, f"model.path={answering}", f"rl.algorithm={name}", *given]
    train.run(load_config(tiny_yaml, settings), tmp_path / "run")
    rows = check(tmp_path / "run")
    assert ("critic/vf_loss" in rows[0], "greedy_reward" in rows[0]) == (
        "critic" in needs(name),
        "greedy" in needs(name),
    )
    assert ("rewards/format/mean" in rows[0]) == ("extra_rewards" in needs(name))
