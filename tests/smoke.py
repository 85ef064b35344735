"""Everything that the light install promises, on the installed package alone: `python tests/smoke.py`.

Needs the files of the package alfworld, and no torch. Ends with "ok"; whatever fails raises. The tests run it with torch and its
family blocked, and on the wheel in an environment of its own, as does the workflow that publishes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium

import skill_ttrl
from skill_ttrl import Skill, SkillBank, grade_answer, majority_vote
from skill_ttrl.agents.scripted import make_scripted_agent
from skill_ttrl.cli.main import main
from skill_ttrl.errors import MissingDependencyError


def play(env_id: str, split: str) -> float:
    """Return of the scripted expert in the first episode."""
    env = gymnasium.make(f"skill_ttrl.envs:{env_id}", split=split)
    observation, info = env.reset(seed=0)
    expert = make_scripted_agent("expert", env_id)
    expert.start(observation, info, seed=0)
    over, earned = False, 0.0
    while not over:
        observation, reward, terminated, truncated, info = env.step(expert.act(observation, info))
        over, earned = terminated or truncated, earned + float(reward)
    env.close()
    return earned


def command(line: str) -> tuple[int, str]:
    """Exit code and output, both streams, of `skillttrl …` in this process."""
    sys.argv, said = ["skillttrl", *line.split()], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as left:
            return int(left.code or 0), said.getvalue()
    return 0, said.getvalue()


@contextlib.contextmanager
def refused(remedy: str) -> Iterator[None]:
    """Fails unless a missing package is named with its remedy."""
    said = "nothing was refused"
    try:
        yield
    except MissingDependencyError as error:
        said = str(error)
    assert said.endswith(f"which is not installed. Install in a checkout with: pip install -e '{remedy}'"), said


def check() -> None:
    """Play, solve, vote, retrieve; then the commands, and the line of each that trains."""
    assert importlib.util.find_spec("torch") is None, "an environment with the trainer"
    assert play("SkillTTRL/ALFWorld-v0", "valid_unseen") == 1.0
    assert play("SkillTTRL/WebShop-v0", "test") > 0.5
    problem = gymnasium.make("skill_ttrl.envs:SkillTTRL/Math-v0")
    problem.reset(options={"question": "What is 7 * 6?", "ground_truth": "42"})
    assert problem.step(r"It is \boxed{42}.")[1] == 1.0
    assert grade_answer(r"\frac{1}{2}", "0.5")
    assert majority_vote(["42", "42.0", "41", None]).answer == "42"
    skills = [
        Skill(id="parity", title="Parity", text="An odd sum needs an odd term."),
        Skill(id="egg", title="Eggs", text="Heat the egg first."),
    ]
    for mode in ("keyword", "embedding"):  # with the built-in embedder
        with SkillBank(retrieval_mode=mode) as bank:
            for skill in skills:
                bank.add(skill)
            assert [found.id for found in bank.retrieve("Is this sum odd?", top_k=1)] == ["parity"]

    with tempfile.TemporaryDirectory() as folder:
        at, answers = Path(folder), Path(folder, "answers.jsonl")
        answers.write_text('{"problem": "1+1", "responses": ["\\\\boxed{2}", "\\\\boxed{2}", "\\\\boxed{3}"]}\n')
        episodes = f"{at}/episodes.jsonl"
        for line in (
            "--help",
            "envs",
            "configs",
            "doctor",
            f"collect --env alfworld --limit 12 -n 4 --epsilon 0,0.9 --max-steps 30 -o {episodes}",
            "evaluate expert --env webshop --split test --limit 4",
            f"inspect {episodes}",
            f"vote {answers} --strategies all",
            f"distill --trajectories {episodes} -o {at}/bank",
            f"inspect {at}/bank",
        ):
            code, said = command(line)
            assert code == 0, f"{line}: {code}\n{said}"
        lacking: tuple[dict[str, Any], ...] = ({"index": "chroma"}, {"embedder": "sentence-transformers"})
        for settings in lacking:
            with SkillBank(at / "other", **settings) as bank, refused(".[skills]"):
                bank.retrieve("an egg", top_k=1)
    with refused(".[train]"):
        _ = skill_ttrl.compute_grpo_advantage
    with refused(".[train]"):
        importlib.import_module("skill_ttrl.commands.train")
    code, said = command("evaluate none --agent cat --env qa --set skills.prompt_top_k=1")
    assert code == 5 and "[skills]', or set skills.embedder=hash." in " ".join(said.split()), said
    for line in (
        "train quickstart",
        "sft quickstart",
        "rl quickstart",
        "ask Qwen/Qwen3-0.6B 1+1",
        "serve Qwen/Qwen3-0.6B",
    ):
        code, said = command(line)
        assert code == 5, f"{line}: {code}\n{said}"
        assert " ".join(said.split()) == (
            f"Error: `skillttrl {line}` needs torch, which is not installed. Install in a checkout with: pip install -e '.[train]'"
        )


if __name__ == "__main__":
    check()
    print("ok")
