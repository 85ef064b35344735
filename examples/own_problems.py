"""Your own problems and your own reward: write a JSONL file, train the built-in model on it without labels.

The problems ask to raise each digit of a number by one. The demonstrations are partly wrong on purpose, so that the model
half knows what to do; the votes do the rest. True answers are in the file to measure with. The reward below
never sees them: a task that the trainer holds carries none.

Run it: python examples/own_problems.py [FOLDER]        (about 20 s on one core, writes FOLDER/run)
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
from pathlib import Path

from skill_ttrl import SkillTTRLTrainer, load_config, majority_vote
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.types import Group

LONGEST_WELCOME = 21
"""Characters; a longer text earns a little less."""
NOISE = 0.15
"""Chance that a digit of a demonstrated answer is wrong."""


def reward(group: Group) -> list[float]:
    """1 for agreeing with the group's majority, 0.1 less for a text that is too long. One number for each rollout."""
    vote = majority_vote(group.answers)
    return [
        float(agrees) - 0.1 * (len(trajectory.text) > LONGEST_WELCOME)
        for agrees, trajectory in zip(vote.matches, group.trajectories, strict=True)
    ]


def write_problems(folder: Path) -> None:
    """Write `demos.jsonl` with prompt and response, `train.jsonl` and `test.jsonl` with prompt and answer."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    numbers = ["".join(digits) for digits in itertools.product("12345678", repeat=4)]
    draw.shuffle(numbers)
    for part, chosen in {"test": numbers[:48], "train": numbers[48:112], "demos": numbers[112:1112]}.items():
        rows = []
        for number in chosen:
            answer = "".join(str(int(digit) + 1) for digit in number)
            slipped = "".join(draw.choice("23456789") if draw.random() < NOISE else digit for digit in answer)
            target = {"response": f"<answer>{slipped}</answer>"} if part == "demos" else {"answer": answer}
            rows.append({"prompt": f"Raise each digit of {number} by one.", **target})
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main(folder: Path) -> None:
    write_problems(folder)
    config = load_config(
        {
            "name": "own_problems",
            "phases": ["sft", "rl"],
            "data": {
                "train": {"path": str(folder / "train.jsonl")},
                "eval": {"path": str(folder / "test.jsonl")},
                "max_prompt_tokens": 48,
            },
            "agent": {"template": "plain"},
            "model": {
                "path": "builtin",
                "builtin": {"hidden_size": 64, "layers": 2, "heads": 4, "max_positions": 64},
            },
            "sft": {
                "data": {"path": str(folder / "demos.jsonl")},
                "steps": 150,
                "batch_size": 64,
                "learning_rate": 3e-3,
                "betas": [0.9, 0.95],
            },
            "rollout": {"n_votes_per_prompt": 16, "n_samples_per_prompt": 16, "max_new_tokens": 12},
            "rl": {
                "reward": "own_problems:reward",  # this file as a module; the folder of the script is searched
                "steps": 20,
                "prompts_per_step": 16,
                "learning_rate": 3e-4,
                "warmup_steps": 3,
                "lr_scheduler": "constant",
                "mini_batch_size": None,
                "micro_batch_size": 64,
                "kl_coef": 0.0,
            },
            "eval": {"samples": 16, "temperature": 1.0, "top_p": 1.0},
            "runtime": {"device": "cpu", "threads": 1},
        }
    )
    summary = SkillTTRLTrainer(config, folder / "run").train()
    print(f"avg@{summary.samples}  before {summary.accuracy_before:.3f}  after {summary.accuracy_after:.3f}")
    print(f"greedy  before {summary.greedy_before:.3f}  after {summary.greedy_after:.3f}")
    print("Look at it: skillttrl inspect", folder / "run")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="own_problems-")))
    except (SkillTTRLError, OSError) as error:
        sys.exit(f"Error: {error}")
