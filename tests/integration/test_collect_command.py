"""`skillttrl collect` and what is made of its files: whole, resumable, inspected, refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skill_ttrl.types import Trajectory, from_json
from tests.doors import DOORS
from tests.integration.test_cli_commands import Done, refused, skillttrl

ROOT = Path(__file__).parents[2]
COMMAND = (
    "collect", "--env", DOORS, "--policy", "random", "--rollouts-per-task", "10", "--set", "env.kwargs.pause=0.003",
)  # fmt: skip
EPISODES = 300
"""Of the command above: more than a second of playing."""


def collecting(output: Path, *more: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    code = "from skill_ttrl.cli.main import main; main()"
    command = [sys.executable, "-c", code, *COMMAND, "-o", str(output), *more]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_lines(path: Path, process: subprocess.Popen[str]) -> int:
    """Until the process has written some."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        if path.is_file() and (lines := path.read_bytes().count(b"\n")):
            return lines
        time.sleep(0.01)
    raise AssertionError("nothing was written in a minute")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the command writes when nothing stops it."""
    file = tmp_path_factory.mktemp("whole") / "out.jsonl"
    done = skillttrl(*COMMAND, "--num-workers", 1, "-o", file)
    assert done.code == 0, done
    assert file.read_bytes().count(b"\n") == EPISODES
    return file.read_bytes()


@pytest.mark.slow
def test_stopped_anywhere_and_called_again_it_ends_with_the_same_bytes(tmp_path: Path, whole: bytes) -> None:
    file = tmp_path / "out.jsonl"
    process = collecting(file, "--num-workers", "2")
    there = wait_for_lines(file, process)
    process.kill()
    process.communicate(timeout=20)
    kept = file.read_bytes()
    assert process.returncode == -signal.SIGKILL
    assert there <= kept.count(b"\n") < EPISODES and whole.startswith(kept)
    with file.open("ab") as stream:
        stream.write(b'{"task":{"id":"train')
    done = skillttrl(*COMMAND, "--num-workers", 2, "-o", file)
    assert done.code == 0, done
    assert f"Continuing after {kept.count(bytes([10]))} of {EPISODES} episodes" in done.err.replace("\n", " ")
    assert file.read_bytes() == whole
    again = skillttrl(*COMMAND, "-o", file)
    assert again.code == 0 and "episodes are in" in again.err


def test_success_is_shown_by_type_with_intervals_and_the_source_is_named(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    command = ("collect", "--env", DOORS, "--policy", "tests.doors:Clumsy", "-o", file)
    done = skillttrl(*command)
    assert done.code == 0, done
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "│" in line]
    rows = {name: cells for name, *cells in lines}
    assert next(iter(rows)) == "all" and rows["all"][0] == "30" and rows["all"][1].startswith("0.900 [")
    assert rows["left"] == ["15", "1.000 [0.796, 1.000]", "2.0", "0"]
    assert rows["right"] == ["15", "0.800 [0.548, 0.930]", "1.0", "3"]
    assert "Source: joinery." in done.out and "3 episodes failed" in done.out and "dropped the key" in done.out
    found = skillttrl(*command, "--json").json
    assert found["overall"]["success"] == 0.9 and found["by_type"]["right"]["failed"] == 3
    assert found["source"] == "joinery" and found["played"] == 0 and found["output"] == str(file)
    assert all(from_json(Trajectory, line).task.split == "train" for line in file.read_bytes().splitlines())


def test_bad_input_is_one_clear_message(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"

    def collect(*words: object, env: str = DOORS, output: Path = out) -> Done:
        return skillttrl("collect", "--env", env, "-o", output, *words)

    refused(collect("--policy", "exprt"), 2, "There is no policy 'exprt'", "Did you mean 'expert'?")
    refused(collect(), 3, "no agent 'expert'")
    refused(collect("--policy", "random", "--types", "up,left"), 3, "no tasks of type 'up'", "left, right")
    refused(collect("--policy", "random", "--set", "rl.steps=3"), 2, "has no effect")
    refused(collect("--policy", "random", output=tmp_path), 4, "name an ordinary file")
    refused(collect("--policy", "random", "--limit", 3, env="math"), 3, "All 3 episodes failed", "admissible_commands")
    refused(collect("--policy", "tests.doors:Wordless"), 3, "episodes failed", "action must be a str, found int")
    for option in ("--limit", "--rollouts-per-task", "--num-workers"):
        assert collect("--policy", "random", option, 0).code == 2
    assert list(tmp_path.iterdir()) == []
