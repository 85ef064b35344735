"""`reasoning_gym:NAME`: the package's puzzles and scores, in a run too; answers that its scorers would run as Python stay texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skill_ttrl.commands.train import run
from skill_ttrl.config import load_config
from skill_ttrl.envs import check_text_env, env_tasks, make_env
from skill_ttrl.errors import EnvError, MissingDependencyError
from skill_ttrl.runs.reader import read_run

library = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
FIVE = ("basic_arithmetic", "leg_counting", "base_conversion", "number_sorting", "fraction_simplification")
SEEDS = {"train": 0, "validation": 1_000_000, "test": 2_000_000}


@pytest.mark.parametrize("name", [*FIVE, "countdown", "spiral_matrix", "simple_integration", "prime_factorization"])
def test_a_puzzle_and_its_score_are_the_packages(name: str) -> None:
    env = make_env(f"reasoning_gym:{name}", size=3)
    check_text_env(env)
    for task in (task for split in SEEDS for task in env_tasks(f"reasoning_gym:{name}", {"size": 3}, split)):
        theirs, index = library.create_dataset(name, seed=SEEDS[task.split], size=3), task.options["index"]
        entry, other = theirs[index], theirs[index - 1]["answer"]
        for answer in (entry["answer"], f"so {entry['answer']}", other, f"{other} 7", "", "junk"):
            shown, _ = env.reset(options=dict(task.options))
            info = env.step(f"<think>x</think><answer>{answer}</answer>")[4]
            try:
                score = theirs.score_answer(answer.strip(), entry)
            except ValueError:
                score = 0.0  # the package's own scorer fails on this text
            assert shown == entry["question"] and info["score"] == score and info["won"] == (score == 1)
            assert info["answer"] == (None if name == "countdown" else answer)


def test_what_is_missing_or_misspelt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvError, match=r"no data set 'leg_countin'. Did you mean 'leg_counting'"):
        make_env("reasoning_gym:gcd,leg_countin")
    first, same = (make_env("reasoning_gym:gcd", size=kind(3)) for kind in (int, np.int64))
    assert first.reset(options={"index": 2})[0] == same.reset(options={"index": np.int64(2)})[0]
    with pytest.raises(EnvError, match="whole number from 0 to 2, found 3"):
        make_env("reasoning_gym:gcd", size=3).reset(options={"index": 3})
    with pytest.raises(EnvError, match="max_animals"):
        make_env("reasoning_gym:leg_counting", config={"leg_counting": {"max_animals": -1}})
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[reasoning-gym\]'"):
        make_env("reasoning_gym:gcd")


@pytest.mark.parametrize("name", ["countdown", "simple_integration", "puzzle24", "n_queens", "string_insertion"])
def test_an_answer_is_never_run(name: str, tmp_path: Path) -> None:
    env, made = make_env(f"reasoning_gym:{name}", size=2), tmp_path / "made"
    for answer in (f"__import__('pathlib').Path({str(made)!r}).touch()", "9**9**9**9", "(exec)(1)", "(" * 30_000):
        env.reset(seed=0)
        assert float(env.step(f"<answer>{answer}</answer>")[1]) <= 0.01 and not made.exists()


def test_five_families_in_a_run_are_scored_as_the_package_scores(tmp_path: Path) -> None:
    theirs = {name: library.create_dataset(name, seed=0, size=8) for name in FIVE}
    shown = [{"prompt": theirs[n][i]["question"], "response": rf"\boxed{{{i}}}"} for n in FIVE for i in range(8)]
    (tmp_path / "shown.jsonl").write_text("\n".join(map(json.dumps, shown)))
    config: dict[str, Any] = {
        "phases": ["sft", "rl"],
        "env": {"id": f"reasoning_gym:{','.join(FIVE)}", "kwargs": {"size": 8}, "train_tasks": 5, "eval_tasks": 5},
        "agent": {"template": "plain"},
        "model": {"path": "builtin", "builtin": {"hidden_size": 32, "layers": 1, "heads": 2, "max_positions": 1100}},
        "sft": {"data": str(tmp_path / "shown.jsonl"), "steps": 40, "batch_size": 8, "learning_rate": 1e-2},
        "rollout": {"n_votes_per_prompt": 4, "n_samples_per_prompt": 4, "max_new_tokens": 10},
        "rl": {"steps": 2, "prompts_per_step": 5, "mini_batch_size": None},
        "eval": {"samples": 1, "extra_temperatures": [], "greedy": False},
        "runtime": {"device": "cpu", "threads": 1},
    }
    run(load_config(config), tmp_path / "run")
    found = read_run(tmp_path / "run").trajectories
    assert {task["task_type"] for task in found["task"]} == set(FIVE) and sum(map(bool, found["answer"])) > 4
    for task, answer, steps in zip(found["task"], found["answer"], found["steps"], strict=True):
        dataset = theirs[task["task_type"]]
        assert steps[0]["reward"] == dataset.score_answer(answer, dataset[task["options"]["index"]])
