"""`skillttrl envs play`: a game by keyboard, by pipe, by a player and by a policy, as a user sees it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from skill_ttrl.agents.scripted.scripted_agent import make_scripted_agent
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.main import main
from skill_ttrl.envs import make_env
from skill_ttrl.envs.alfworld.index import forget
from skill_ttrl.envs.tasks import find_task
from skill_ttrl.stages.collecting.watch import Scene, play
from skill_ttrl.types import Trajectory, from_json
from tests.doors import DOORS
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


class Waits:
    """A player that opens the door at once, without the key."""

    def start(self, observation, info, seed):
        pass

    def act(self, observation, info):
        return "open the door"


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
    """Exit code, stdout and stderr of the command in this process, with `typed` on stdin."""
    before, out, err = (sys.argv, sys.stdin), io.StringIO(), io.StringIO()
    sys.argv, sys.stdin = ["skillttrl", *map(str, arguments)], io.StringIO(typed)
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as leaving:
                code = leaving.code
    finally:
        sys.argv, sys.stdin = before
    return int(code or 0), out.getvalue(), err.getvalue()


@pytest.mark.usefixtures("here")
def test_a_game_is_played_through_a_pipe() -> None:
    """Numbers, `?`, blank lines; nothing that is shown acts on a terminal, and nothing in it is markup."""
    code, out, err = skillttrl(*PLAY, "--task", "test/red", typed="?\n\n7\n3\nopen THE door\n2\nlook\n")
    assert (code, err) == (0, "")
    assert out == (
        "House-v0: test/red (red, toys)\nTask: leave\nSteps: 5 at most\n\n"
        f"A hall with a red door. [bold]␛[31mRead me␛]0;mine␇\n{LIST}{LIST}"
        "The list goes from 1 to 4.\n"
        "[1/5] > take the key\nYou did: take the key.\n"
        "[2/5] > open THE door\nYou did: open THE door.\n"
        "[3/5] > open the door\nYou did: open the door.\n"
        "Won after 3 steps, reward 1 (toys).\n"
    )


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("typed", ["look\n", "look\nquit\nlook\n"], ids=["input ends", "quit"])
def test_leaving_early_is_no_mistake(typed: str) -> None:
    code, out, err = skillttrl(*PLAY, "--json", typed=typed)
    played = from_json(Trajectory, out)
    assert code == 0 and [step.action for step in played.steps] == ["look"] and played.stop_reason == "max_turns"
    assert played.source == "toys" and "source" not in played.steps[0].info, (
        "as in an episode that was played to its end"
    )
    assert "Left after 1 step, reward 0 (toys)." in err


@pytest.mark.usefixtures("here")
def test_what_an_environment_warns_of_is_one_line_without_its_code() -> None:
    code, _, err = skillttrl(*PLAY, "--set", "env.kwargs.worn=true", typed="quit\n")
    assert (code, err) == (0, "Warning: a hinge squeaks\n")


@pytest.mark.usefixtures("here")
def test_json_is_the_trajectory_alone() -> None:
    code, out, err = skillttrl(*PLAY, "--walkthrough", "--json", "--task", "test/blue")
    played = from_json(Trajectory, out)
    assert code == 0 and out.count("\n") == 1 and played.stop_reason == "terminated" and played.env_return == 1
    assert [step.action for step in played.steps] == ["take the key", "open the door"]
    assert played.steps[1].admissible_actions == ("look", "open the door", "take the key", "take the lamp")
    assert played.task.id == "test/blue" and played.final_obs == "You did: open the door."
    assert "[2/5] > open the door" in err and "Won after 2 steps" in err


@pytest.mark.usefixtures("here")
def test_tasks_are_found_by_id_split_type_and_seed() -> None:
    def first(*options: object) -> str:
        return skillttrl(*PLAY, *options)[1].splitlines()[0]

    assert first("--split", "test", "--types", "blue,blue") == "House-v0: test/blue (blue, toys)"
    assert first("--task", "n/bl") == "House-v0: train/blue (blue, toys)"
    drawn = [first("--seed", seed) for seed in range(12)]
    assert len(set(drawn)) == 4 and drawn == [first("--seed", seed) for seed in range(12)]
    assert len({first() for _ in range(20)}) > 1, "without a seed it is another game each time"


@pytest.mark.usefixtures("here")
def test_players_are_watched() -> None:
    assert "Not won after 5 steps, reward 0" in skillttrl(*PLAY, "--policy", "play_house:Waits")[1]
    random = skillttrl(*PLAY, "--policy", "random", "--seed", 1)
    assert random[0] == 0 and random == skillttrl(*PLAY, "--policy", "random", "--seed", 1)
    began = time.monotonic()
    skillttrl(*PLAY, "--policy", "play_house:Waits", "--set", "env.kwargs.max_steps=3", "--delay", 0.1)
    assert time.monotonic() - began >= 0.3


@pytest.mark.usefixtures("here")
def test_a_policy_plays_live(tiny_yaml: Path, tmp_path: Path) -> None:
    """A model of random weights, first for as many steps as the game has, then for as many as there is room for."""
    small = [
        word for key in ("phases=[rl]", "rl.steps=1", "model.builtin.max_positions=4096") for word in ("--set", key)
    ]
    code = skillttrl("train", tiny_yaml, "-o", tmp_path / "run", *small)[0]
    assert code == 0
    room = ["--set", "data.max_prompt_tokens=4000", "--set", "rollout.max_new_tokens=3"]
    code, out, err = skillttrl(*PLAY, "--policy", tmp_path / "run", "--task", "test/red", "--json", *room)
    played = from_json(Trajectory, out)
    assert code == 0 and len(played.steps) == 5 and played.stop_reason == "truncated"
    assert all(step.completion is not None for step in played.steps)
    assert err.count("[5/5] > ") == 1 and "Not won after 5 steps" in err
    code, out, _ = skillttrl(
        *PLAY, "--policy", tmp_path / "run", "--task", "test/red", *room, "--set", "agent.max_turns=2"
    )
    assert code == 0 and "plays agent.max_turns=2 steps" in out and "[3/5]" not in out
    room[1] = "data.max_prompt_tokens=150"
    code, out, _ = skillttrl(*PLAY, "--policy", tmp_path / "run", "--task", "test/red", *room)
    assert code == 0 and "has grown past data.max_prompt_tokens=150" in out and "Left after" in out
    room = ["--set", "data.max_prompt_tokens=4000", "--set", "rollout.max_new_tokens=60"]
    code, out, _ = skillttrl(
        *PLAY, "--policy", tmp_path / "run", "--task", "test/red", "--structured-outputs", "--json", *room
    )
    played = from_json(Trajectory, out)
    assert code == 0 and played.steps and all(step.action in step.admissible_actions for step in played.steps)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--task", "red"], 3, "2 tasks have 'red' in the id. Such as: train/red, test/red."),
        (["--task", "test/green"], 3, "None of 2 tasks of the split 'test' has 'test/green'"),
        (["--split", "tset"], 3, "no tasks of the split 'tset'"),
        (["--split", "test", "--set", "env.kwargs.split=train"], 2, "named by --split"),
        (["--types", "bleu"], 3, "Did you mean 'blue'?"),
        (["--env-data", "x"], 3, "has no argument 'data'"),
        (["--policy", "exprt"], 2, "Did you mean 'expert'?"),
        (["--policy", "expert"], 3, "There is no expert for"),
        (["--policy", "play_house:None"], 2, "has no agent 'None'"),
        (["--policy", "./nowhere"], 5, "There is no folder nowhere"),
        (["--walkthrough", "--policy", "random"], 2, "give one of them"),
        (["--temperature", "1"], 2, "--temperature needs a model"),
        (["--set", "rl.steps=3"], 2, "--set rl.steps=3 needs a model"),
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


def test_a_screen_that_fails_is_no_outcome_of_the_game() -> None:
    def broken(scene: Scene) -> None:
        raise RuntimeError("no screen")

    env = make_env(DOORS)
    with pytest.raises(RuntimeError, match="no screen"):
        play(env, find_task(env, DOORS), make_scripted_agent("random", DOORS), seed=0, watch=broken)


def test_a_view_that_waits_draws_nothing_before_a_phase_begins() -> None:
    with io.StringIO() as out:
        with RunView(Console(file=out, force_terminal=True, width=80), "play", loop=False, waits=True) as view:
            assert not out.getvalue()
            view.start("open", 3, "task")
        assert "open" in out.getvalue() and "0/3" in out.getvalue()


def test_an_environment_without_a_walkthrough_or_commands_says_so() -> None:
    code, _, err = skillttrl("envs", "play", "math", "--walkthrough")
    assert code == 3 and "SkillTTRL/Math-v0 gives no walkthrough" in err
    code, _, err = skillttrl("envs", "play", "math", "--policy", "random")
    assert code == 3 and "admissible_commands" in err


def test_a_problem_is_answered_and_graded() -> None:
    assert "[1] > 3\n" in skillttrl("envs", "play", "math", typed="3\n")[1], (
        "a number is an action where nothing is listed"
    )
    code, out, _ = skillttrl("envs", "play", "math", "--task", "add-87-89", typed="<answer>176</answer>\n")
    assert code == 0 and "[1] > <answer>176" in out and out.endswith("The end after 1 step, reward 1.\n")


def test_environments_are_listed_with_and_without_the_word() -> None:
    assert skillttrl("envs") == skillttrl("envs", "list") and "SkillTTRL/ALFWorld-v0" in skillttrl("envs")[1]
    assert json.loads(skillttrl("envs", "list", "--json")[1]) == json.loads(skillttrl("envs", "--json")[1])
    assert "--json comes after" in skillttrl("envs", "--json", "list")[2]


def test_what_is_typed_need_not_be_text(house: Path) -> None:
    """Bytes that are no UTF-8, and no stdin at all."""
    options: Any = {"cwd": house, "capture_output": True, "timeout": 60}
    done = subprocess.run([*COMMAND, "--json"], input=b"\xff\xfe\nlook\n", **options)
    assert [step.action for step in from_json(Trajectory, done.stdout).steps] == ["\ufffd\ufffd", "look"]
    done = subprocess.run(["sh", "-c", f"{shlex.join(COMMAND)} <&-"], **options)
    assert done.returncode == 0 and b"Left after 0 steps" in done.stdout and b"Traceback" not in done.stderr


class Terminal:
    """The command at a real pseudo-terminal, typed at and read as a person would."""

    def __init__(self, folder: Path, *options: str, stdout: Any = None, game: Sequence[str] = PLAY) -> None:
        self._screen, inner = pty.openpty()
        self.shown = ""
        """All that the screen got, without what moves and colours."""
        self._raw, self._seen = b"", 0
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": str(folder)}
        self.process = subprocess.Popen(
            [*COMMAND[: -len(PLAY)], *game, *options],
            cwd=folder,
            stdin=inner,
            stdout=inner if stdout is None else stdout,
            stderr=inner,
            env=environment,
            preexec_fn=lambda: _own_terminal(inner),
        )
        os.close(inner)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def wait_for(self, text: str, seconds: float = 60.0) -> str:
        """What was shown since the last time until `text` came, that included."""
        end = time.monotonic() + seconds
        while text not in self.shown[self._seen :]:
            assert time.monotonic() < end and self._read(), f"{text!r} never came: {self.shown}"
        before, self._seen = self._seen, self.shown.index(text, self._seen) + len(text)
        return self.shown[before : self._seen]

    def leave(self, key: str = "") -> int:
        """Press `key` and read to the end; the exit code. A signal that comes while readline begins to read waits for the next key."""
        for _ in range(6):
            if self.process.poll() is None:
                self.type(key)
            while self._read(seconds=5):
                pass
            # The end of the terminal is seen before the process has ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=5)
        raise AssertionError(f"it goes on: {self.shown}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)

    def _read(self, seconds: float = 60) -> bool:
        if not select.select([self._screen], [], [], seconds)[0]:
            return False
        try:
            new = os.read(self._screen, 65536)
        except OSError:  # the other end is closed
            return False
        self._raw += new
        self.shown = re.sub(r"\x1b(\[[0-9;?]*([a-zA-Z]|$)|$)|\r", "", self._raw.decode(errors="ignore"))
        return bool(new)


def _own_terminal(inner: int) -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(inner, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell that runs the tests in the background has them ignore it


@contextlib.contextmanager
def at_terminal(folder: Path, *options: str, stdout: Any = None) -> Iterator[Terminal]:
    terminal = Terminal(folder, *options, stdout=stdout)
    try:
        yield terminal
    finally:
        terminal.close()


def test_at_a_terminal_tab_completes_and_a_number_picks(house: Path) -> None:
    with at_terminal(house, "--task", "train/red") as terminal:
        told = terminal.wait_for("[1/5] > ")
        assert "?" in told and "quit leaves" in told and "  3 take the key" in told and "␛[31m" in told
        terminal.type("TAKE THE K\t\n")
        assert "take the key" in terminal.wait_for("You did: take the key.")
        terminal.wait_for("[2/5] > ")
        terminal.type("op\t")
        terminal.wait_for("open the door")
        terminal.type(
            "\x15la\x1b[D\x7f4\n"
        )  # line editing: all out, "la", one to the left, "l" out, "4" in: no action listed
        terminal.wait_for("You did: 4a.")
        terminal.wait_for("[3/5] > ")
        terminal.type("2\n")
        terminal.wait_for("You did: open the door.")
        assert terminal.leave() == 0
        assert terminal.shown.rstrip().endswith("Won after 3 steps, reward 1 (toys).")
        assert terminal.shown.count("[2/5] > ") == 1, "what was typed is not shown again"


@pytest.mark.parametrize(("key", "code"), [("\x03", 128 + signal.SIGINT), ("\x04", 0)], ids=["Ctrl-C", "Ctrl-D"])
def test_at_a_terminal_one_leaves_politely(house: Path, key: str, code: int) -> None:
    with at_terminal(house) as terminal:
        terminal.wait_for("[1/5] > ")
        terminal.type("look\n")
        terminal.wait_for("[2/5] > ")
        assert terminal.leave(key) == code
        assert "Left after 1 step" in terminal.shown and "Traceback" not in terminal.shown


def test_at_a_terminal_with_json_elsewhere_the_game_is_shown_and_the_file_is_json(house: Path, tmp_path: Path) -> None:
    with (tmp_path / "played.json").open("wb") as file, at_terminal(house, "--json", stdout=file) as terminal:
        terminal.wait_for("[1/5] > ")
        terminal.type("look\n")
        terminal.wait_for("You did: look.")
        assert terminal.leave("\x04") == 0
    played = from_json(Trajectory, (tmp_path / "played.json").read_bytes())
    assert [step.action for step in played.steps] == ["look"]


def test_an_official_game_is_watched_and_its_expert_plays_the_example(
    official_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(official_games))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()  # as in a process of its own: what an earlier test has read would be in memory
    game = "valid_unseen/pick_cool_then_place_in_recep-Potato-None-Microwave-10/trial_T20190907_033228_194678"
    code, out, err = skillttrl("envs", "play", "alfworld", "--task", game, "--walkthrough")
    assert code == 0 and "Task: cool some potato and put it in microwave." in out
    assert out.endswith(
        "You move the potato 2 to the microwave 1.\nWon after 7 steps, reward 1 (alfworld-official).\n"
    ), err
    read = {path.name.partition("-")[0] for path in (tmp_path / "skill-ttrl" / "alfworld" / "index").glob("*.json")}
    assert read == {"valid_unseen"}  # thousands of training games are not read for it
    code, out, _ = skillttrl("envs", "play", "alfworld", "--split", "valid_unseen", "--seed", 1, typed="look\n")
    assert code == 0 and "[1/50] > look" in out and "Left after 1 step, reward 0 (alfworld-official)." in out
    done = run_script(Path(__file__).parents[2] / "examples" / "play_alfworld.py", game)
    assert done.returncode == 0 and f"alfworld-official: {game}" in done.stdout and "\nwon after " in done.stdout, done


def test_the_example_says_what_to_do_where_there_are_no_games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    done = run_script(Path(__file__).parents[2] / "examples" / "play_alfworld.py")
    assert done.returncode == 1 and done.stderr.startswith(f"There are no games in {tmp_path} ($ALFWORLD_DATA)")
    assert "Traceback" not in done.stderr and "unset ALFWORLD_DATA" in done.stderr


def test_playing_loads_no_model_library(house: Path) -> None:
    code = (
        "import sys; from skill_ttrl.cli.main import main; sys.argv[1:] = sys.argv[1:]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'alfworld', 'textworld', 'chromadb'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *PLAY, "--walkthrough"], cwd=house, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.endswith("Won after 2 steps, reward 1 (toys).\n[]\n"), done
