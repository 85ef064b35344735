"""`skillttrl envs play`: a game by keyboard, by pipe, by a player and by a policy, as a user sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.types import Trajectory, from_json
from tests.integration.test_cli_commands import skillttrl as command
from tests.preloaded import run_script

HOUSE = '''
import warnings

import gymnasium

from skill_ttrl.envs import TextEnv
from skill_ttrl.types import Task


class House(TextEnv):
    """Take the key, open the door, within five steps. What is read there tries to act on the terminal."""

    def __init__(self, max_steps=5, split="train", broken=False, worn=False):
        super().__init__()
        if worn:
            warnings.warn("a hinge squeaks")
        self.max_steps, self.broken = max_steps, broken

    def tasks(self, split=None):
        return [
            Task(id=f"{part}/{kind}", env_id="House-v0", options={"kind": kind}, split=part, task_type=kind)
            for part in ("train", "test")
            for kind in ("red", "blue")
            if split in (None, part)
        ]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.played, self.key = 0, False
        told = f"A hall with a {(options or {}).get('kind')} door. [bold]\\x1b[31mRead me\\x1b]0;mine\\x07"
        return told, {**self.info(), "walkthrough": ["take the key", "open the door"]}

    def info(self, won=False):
        commands = ["look", "open the door", "take the key", "take the lamp"]
        return {"admissible_commands": commands, "won": won, "task": "leave", "source": "toys"}

    def step(self, action):
        if self.broken:
            raise RuntimeError("the roof fell in")
        self.played += 1
        won = action == "open the door" and self.key
        self.key |= action == "take the key"
        return f"You did: {action}.", float(won), won, not won and self.played >= self.max_steps, self.info(won)


gymnasium.register("House-v0", House)
'''
PLAY = ("envs", "play", "play_house:House-v0")
COMMAND = [sys.executable, "-m", "skill_ttrl.cli.main", *PLAY]
LIST = "  1 look\n  2 open the door\n  3 take the key\n  4 take the lamp\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    (folder / "play_house.py").write_text(HOUSE)
    return folder


@pytest.fixture
def here(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(house)
    monkeypatch.syspath_prepend(str(house))


def skillttrl(*arguments: object, typed: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, with `typed` on stdin."""
    done = command(*arguments, stdin=typed.encode())
    return done.code, done.out, done.err


@pytest.mark.usefixtures("here")
def test_a_game_is_played_through_a_pipe() -> None:
    """Numbers, `?`, blank lines; nothing that is shown acts on a terminal, and nothing in it is markup."""
    code, out, err = skillttrl(*PLAY, "--task", "test/red", typed="?\n\n3\nopen THE door\n2\nlook\n")
    assert (code, err) == (0, "")
    assert "House-v0: test/red. Steps: at most 5." in out and "[bold]␛[31mRead me␛]0;mine␇\n" in out and LIST in out
    for line in ("[1/5] > take the key\n", "[2/5] > open THE door\n", "[3/5] > open the door\n"):
        assert line in out
    assert out.endswith("Episode ended after 3 steps, won, reward 1.\n")


@pytest.mark.usefixtures("here")
def test_json_is_the_trajectory_alone() -> None:
    code, out, err = skillttrl(*PLAY, "--policy", "walkthrough", "--json", "--task", "test/blue")
    played = from_json(Trajectory, out)
    assert code == 0 and out.count("\n") == 1 and played.stop_reason == "terminated" and played.env_return == 1
    assert [step.action for step in played.steps] == ["take the key", "open the door"]
    assert played.steps[1].admissible_actions == ("look", "open the door", "take the key", "take the lamp")
    assert "[2/5] > open the door" in err and "after 2 steps, won" in err


@pytest.mark.usefixtures("here")
def test_a_policy_plays_live(tiny_yaml: Path, tmp_path: Path) -> None:
    small = [
        word for key in ("phases=[rl]", "rl.steps=1", "model.builtin.max_positions=4096") for word in ("--set", key)
    ]
    assert skillttrl("train", tiny_yaml, "-o", tmp_path / "run", *small)[0] == 0
    room = ["--set", "data.max_prompt_tokens=4000", "--set", "rollout.max_new_tokens=3"]
    policy = ["--policy", tmp_path / "run", "--task", "test/red", *room]
    code, out, err = skillttrl(*PLAY, *policy, "--json")
    played = from_json(Trajectory, out)
    assert code == 0 and len(played.steps) == 5 and played.stop_reason == "truncated"
    assert all(step.completion is not None for step in played.steps) and err.count("[5/5] > ") == 1
    code, out, _ = skillttrl(*PLAY, *policy, "--set", "agent.max_turns=2")
    assert code == 0 and "left after 2 steps" in out and "[3/5]" not in out
    code, out, _ = skillttrl(
        *PLAY, *policy, "--json", "--set", "agent.structured_actions=true", "--set", "rollout.max_new_tokens=60"
    )
    played = from_json(Trajectory, out)
    assert code == 0 and played.steps and all(step.action in step.admissible_actions for step in played.steps)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--task", "red"], 3, "2 tasks have 'red' in the id. Such as: train/red, test/red."),
        (["--env-data", "x"], 3, "has no argument 'data'"),
        (["--policy", "exprt"], 2, "Did you mean 'expert'?"),
        (["--policy", "./nowhere"], 5, "There is no folder nowhere"),
        (["--set", "rl.steps=3"], 2, "--set rl.steps=3 has no effect"),
        (
            ["--set", "env.kwargs.broken=true", "--policy", "random"],
            3,
            "failed before the first step: RuntimeError: the",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_message(options: list[str], code: int, words: str) -> None:
    found, _, err = skillttrl(*PLAY, *options, typed="look\n")
    assert found == code and words in err and "Traceback" not in err and err.count("\n") == 1, err


@pytest.mark.slow
def test_what_is_typed_need_not_be_text(house: Path) -> None:
    """Bytes that are no UTF-8."""
    options: Any = {"cwd": house, "capture_output": True, "timeout": 60}
    done = subprocess.run([*COMMAND, "--json"], input=b"\xff\xfe\nlook\n", **options)
    assert [step.action for step in from_json(Trajectory, done.stdout).steps] == ["\ufffd\ufffd", "look"]


@pytest.mark.slow
def test_an_official_game_is_watched_and_its_expert_plays_the_example(
    official_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(official_games))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()  # as in a process of its own: what an earlier test has read would be in memory
    game = "valid_unseen/pick_cool_then_place_in_recep-Potato-None-Microwave-10/trial_T20190907_033228_194678"
    code, out, err = skillttrl("envs", "play", "alfworld", "--task", game, "--policy", "walkthrough")
    assert code == 0 and "cool some potato and put it in microwave." in out, err
    assert out.endswith("You move the potato 2 to the microwave 1.\nEpisode ended after 7 steps, won, reward 1.\n")
    read = {path.name.partition("-")[0] for path in (tmp_path / "skill-ttrl" / "alfworld" / "index").glob("*.json")}
    assert read == {"valid_unseen"}  # thousands of training games are not read for it
    code, out, _ = skillttrl("envs", "play", "alfworld", "--split", "valid_unseen", "--seed", 1, typed="look\n")
    assert code == 0 and "[1/50] > look" in out and "left after 1 step, not won, reward 0." in out
    done = run_script(Path(__file__).parents[2] / "examples" / "play_alfworld.py", game)
    assert done.returncode == 0 and f"alfworld-official: {game}" in done.stdout and "\nwon after " in done.stdout, done
