"""A hostile environment server, in a process of its own, against real commands: nothing runs, nothing leaks, and every command ends."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from skill_ttrl.envs import env_tasks, make_env
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings
from skill_ttrl.train.measure import lists_actions
from tests.doors import DOORS
from tests.env_server import ROOT
from tests.hostile_server import RAW, attacks
from tests.integration.test_cli_commands import Done, refused, skillttrl
from tests.integration.test_episode_run import CONFIG

CUT_SHORT = {"answer_timeout": 0.2, "retry_seconds": 0.1}
IN_TIME = {"answer_timeout": 10}
"""For what the server answers well."""
SECONDS = 60
"""Far more than any command here takes; a server that holds its client holds it for ever."""
MEMORY_MIB = 300


@dataclass
class Hostile:
    folder: Path
    addresses: dict[str, str]

    def requests(self) -> list[dict[str, Any]]:
        file = self.folder / "requests.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def settings(self, attack: str, **more: Any) -> list[str]:
        kwargs = {"url": self.addresses[attack], **CUT_SHORT, **more}
        return [word for key, value in kwargs.items() for word in ("--set", f"env.kwargs.{key}={value}")]

    def has_power(self) -> list[str]:
        """Signs that the server got its way."""
        reached = [f"{each['path']} {each['token']}" for each in self.requests() if each["attack"] == "sink"]
        imported = [name for name in sys.modules if name.startswith("hostile_module")]
        return [*reached, *imported, *map(str, self.folder.glob("pwned*"))]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "own.md").write_text("$observation")
    (folder / "hostile_module.py").write_text(f"open({str(folder / 'pwned')!r}, 'w')")
    command = [sys.executable, "-m", "tests.hostile_server", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield Hostile(folder, json.loads(process.stdout.readline()))
        process.stdin.close()
        process.wait(60)


@pytest.fixture
def config(hostile: Hostile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A config that states nothing of prompts, agents and rewards; the secrets that the server wants are there to be taken."""
    monkeypatch.syspath_prepend(str(hostile.folder))
    monkeypatch.chdir(hostile.folder)
    monkeypatch.setenv("SECRET", "my secret")
    monkeypatch.setenv("SKILLTTRL_ENV_TOKEN", "my token")
    kept = {key: value for key, value in CONFIG.items() if key != "agent"}
    rl = {"steps": 1, "prompts_per_step": 2, "mini_batch_size": None}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**kept, "env": {"id": "remote"}, "rl": rl}))
    return file


def ended(began: float, done: Done) -> None:
    """It has ended in time, with one message in place of a traceback, and shows no control character."""
    assert time.monotonic() - began < SECONDS
    assert "Traceback" not in done.err + done.out, done.err
    shown = (done.out + done.err).replace("\n", "")
    assert not [char for char in shown if char < " " or "\x7f" <= char <= "\x9f" or char == "\u202e"], repr(shown)


@pytest.mark.parametrize("attack", [each for each in attacks() if each.startswith("default:")], ids=ascii)
def test_a_server_sets_no_more_than_a_short_list_of_keys(attack: str, hostile: Hostile, config: Path) -> None:
    began, output = time.monotonic(), config.parent / "run"
    done = skillttrl("train", config, *hostile.settings(attack, **IN_TIME), "-o", output)
    ended(began, done)
    key = attack.removeprefix("default:").rpartition("#")[0]
    assert done.code == 3 and (key in done.err or not key.isprintable()), done
    assert not output.exists() and hostile.has_power() == []


def holding() -> list[Any]:
    """Attacks by answers. Those that are none of JSON are alike for every kind of request: of steps all, of others some by default."""
    slow = {f"{when}:{what}" for when in ("environment", "reset") for what in [*RAW][1:-1]} - {"reset:elsewhere"}
    found = [each for each in attacks() if ":" in each and "default" not in each]
    return [pytest.param(each, marks=[pytest.mark.slow] * (each in slow)) for each in found]


@pytest.mark.parametrize("attack", holding())
def test_no_answer_holds_or_breaks_a_client(attack: str, hostile: Hostile, config: Path) -> None:
    began, output, before = time.monotonic(), config.parent / "episodes.jsonl", peak()
    done = skillttrl(
        "collect", "--env", "remote", "--policy", "random", "--limit", 1, *hostile.settings(attack), "-o", output
    )
    ended(began, done)
    assert peak() - before < MEMORY_MIB and hostile.has_power() == []
    if attack.partition(":")[2] in RAW:
        assert done.code == 3 and hostile.addresses[attack] in done.err, done
    else:
        assert done.code in (0, 3), done
        assert all(
            isinstance(json.loads(line, parse_constant=pytest.fail), dict)
            for line in (output.read_text().splitlines() if output.exists() else ())
        )


@pytest.mark.parametrize(
    "what",
    [
        "drip in headers",
        "huge",
        "brackets",
        "infinite",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("running for ever", "terminal codes", "odd info")),
    ],
)
def test_training_and_evaluation_end_too(what: str, hostile: Hostile, config: Path) -> None:
    when = next(when for when in ("step", "reset", "environment") if f"{when}:{what}" in hostile.addresses)
    settings, began = hostile.settings(f"{when}:{what}"), time.monotonic()
    ended(began, skillttrl("evaluate", "random", "--env", "remote", "--limit", 2, *settings))
    fewer = [word for key in ("votes", "samples") for word in ("--set", f"rollout.n_{key}_per_prompt=2")]
    ended(began, skillttrl("train", config, *settings, *fewer, "-o", config.parent / "run"))
    assert hostile.has_power() == []


@pytest.mark.parametrize("pause", ["env.kwargs.pause=40", "env.kwargs.pause=0"])
def test_scripted_agents_have_a_time_limit_too(pause: str, tmp_path: Path) -> None:
    began, out = time.monotonic(), tmp_path / "episodes.jsonl"
    words = ("--env", DOORS, "--policy", "random", "--limit", 2, "--set", pause)
    done = skillttrl("collect", *words, "--set", "rollout.rollout_timeout_s=1", "-o", out)
    if pause.endswith("=0"):
        assert done.code == 0, done
    else:
        refused(done, 3, "All 2 episodes failed", "After 1 s (rollout.rollout_timeout_s)", "0 steps")
    assert time.monotonic() - began < 30


def test_controls_have_a_time_limit_too() -> None:
    envs = EnvPool(lambda: make_env(DOORS, pause=40))
    (hanging,), began = envs.acquire(1), time.monotonic()
    assert lists_actions(envs, env_tasks(DOORS, {}), RolloutSettings(Sampling(), 0, rollout_timeout_s=0.3)) is False
    assert time.monotonic() - began < 20 and envs.acquire(1) != [hanging]


def test_what_a_server_may_set_is_taken(hostile: Hostile, config: Path) -> None:
    done = skillttrl("train", config, *hostile.settings("none", **IN_TIME), "-o", config.parent / "run")
    assert done.code == 0, done


def peak() -> int:
    """Most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
