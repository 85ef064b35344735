"""Environments on a server that is really started: the same episodes as here, each step once, and clear errors when either side dies."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from skill_ttrl.cli.main import main
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.envs import env_defaults, env_tasks, make_env
from skill_ttrl.envs.alfworld.games import forget
from skill_ttrl.errors import EnvError
from skill_ttrl.train.defaults import in_another_env, with_env_defaults
from tests.alfworld_kitchen import walks, write_game
from tests.doors import DOORS
from tests.env_server import ROOT, Lossy, started
from tests.faulty_server import FaultyServer, at
from tests.integration.test_cli_commands import refused, skillttrl

GOLDEN = ROOT / "tests" / "golden" / "webshop_episodes"

SHOP = {"data": str(GOLDEN), "goals": "synthetic"}


@pytest.fixture(scope="module")
def doors() -> Iterator[str]:
    """Address of a server."""
    with started(DOORS) as (_, address):
        yield address


def walk(env: Any, tasks: list[Any], seed: int = 0, most: int = 60) -> list[Any]:
    """Everything that random episodes of the tasks show."""
    seen: list[Any] = []
    for task in tasks:
        draw = random.Random(f"{seed} {task.id}")
        reference = {} if task.ground_truth is None else {"ground_truth": task.ground_truth}
        observation, info = env.reset(seed=seed, options={**task.options, **reference})
        seen.append((observation, info))
        for _ in range(most):
            listed = info.get("admissible_commands") or ["<answer>5</answer>", "\\boxed{12}", "no idea"]
            outcome = env.step(draw.choice(["Wörter \ud800", *listed, *listed, *listed]))
            seen.append(outcome)
            info = outcome[4]
            if outcome[2] or outcome[3]:
                break
    return seen


def assert_same_episodes(name: str, address: str, kwargs: dict[str, Any], split: str, count: int) -> None:
    tasks = env_tasks(name, kwargs, split, count)
    assert env_tasks(name, {"url": address}, split, count) == tasks
    there, here = make_env(name, url=address, split=split), make_env(name, **kwargs, split=split)
    assert repr(walk(there, tasks)) == repr(walk(here, tasks))
    assert repr(there.reset(seed=11)) == repr(here.reset(seed=11))  # drawn from the same split
    there.close()
    here.close()


@pytest.mark.slow
def test_webshop_is_played_as_here() -> None:
    sets = [f"env.kwargs.{each}" for each in ("goals=synthetic", "split=test")]
    options = ("--env-data", str(GOLDEN), *(word for each in sets for word in ("--set", each)))
    with started("webshop", *options) as (_, address):
        assert_same_episodes("webshop", address, SHOP, "test", 4)


@pytest.mark.alfworld
def test_generated_alfworld_is_played_as_here() -> None:
    with started("alfworld", "--env-data", "generated") as (_, address):
        assert_same_episodes("alfworld", address, {"data": "generated"}, "valid_unseen", 3)


def test_collect_writes_the_same_lines_as_here(tmp_path: Path, doors: str) -> None:
    """With the environment's own name all is equal; with `remote` all but the environment's id, which names the place."""
    command = ("collect", "--policy", "random", "--split", "train", "--limit", 8, "--num-workers", 1)
    for name, env, more in (
        ("here", DOORS, ()),
        ("there", DOORS, ("--set", f"env.kwargs.url={doors}")),
        ("remote", "remote", ("--set", f"env.kwargs.url={doors}")),
    ):
        done = skillttrl(*command, "--env", env, *more, "-o", tmp_path / f"{name}.jsonl")
        assert done.code == 0, done
    here, there, remote = ((tmp_path / f"{name}.jsonl").read_bytes() for name in ("here", "there", "remote"))
    assert there == here and here.count(b"\n") == 8
    assert remote.replace(b'"SkillTTRL/Remote-v0"', json.dumps(DOORS).encode()) == here


@pytest.mark.slow
def test_an_answer_that_is_lost_after_the_step_is_asked_for_again_and_the_step_is_taken_once(doors: str) -> None:
    lost: dict[str, int] = {}

    def loses(method: str, path: str) -> bool:
        """The first two answers of every kind of request."""
        kind = path.rpartition("/")[2]
        lost[kind] = lost.get(kind, 0) + 1
        return method == "POST" and lost[kind] <= 2

    proxy = Lossy(doors, loses)
    tasks = env_tasks(DOORS, {}, "train", 6)
    there, here = make_env(DOORS, url=proxy.address), make_env(DOORS)
    assert walk(there, tasks) == walk(here, tasks)
    assert sorted(path.rpartition("/")[2] for path in proxy.lost) == ["reset"] * 2 + ["step"] * 2
    proxy.close()


def test_a_pickle_goes_on_in_its_session_and_the_original_is_refused(doors: str) -> None:
    env = make_env(DOORS, url=doors)
    env.reset(options={"door": 1})
    env.step("wait")
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step("wait")[3] is False and copy.step("right")[:3] == ("Open.", 1.0, True)
    with pytest.raises(EnvError, match=r"came where .* was expected.* A session has one client"):
        env.step("left")
    assert env.reset(options={"door": 2})[0].startswith("Door 2")
    env.close()
    copy.close()


@pytest.mark.slow
def test_a_client_that_is_killed_leaves_a_session_that_ends_by_itself() -> None:
    code = (
        "import sys, os; from skill_ttrl.envs import make_env; env = make_env(sys.argv[1], url=sys.argv[2])\n"
        "env.reset(options={'door': 1}); env.step('wait'); print('in', env.unwrapped._session, flush=True); sys.stdin.read()"
    )
    with started(DOORS, "--session-timeout", "1", "--max-sessions", "1") as (_, address):
        command = [sys.executable, "-c", code, DOORS, address]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            session = client.stdout.readline().split()[1]
            client.kill()
        env = make_env(DOORS, url=address, retry_seconds=60)  # waits while the only session is in use
        assert env.reset(options={"door": 2})[0].startswith("Door 2")
        gone = httpx.post(f"{address}/v1/sessions/{session}/step", json={"step": 2, "action": "left"}, trust_env=False)
        assert gone.status_code == 410 and "--session-timeout" in gone.text
        assert env.step("left")[2] is True


@pytest.mark.slow
def test_a_server_that_is_killed_is_a_clear_error_and_a_new_one_begins_anew() -> None:
    with started(DOORS) as (process, address):
        env = make_env(DOORS, url=address, retry_seconds=0.5)
        env.reset(options={"door": 1})
        env.step("wait")
        process.kill()
        process.wait(60)
        with pytest.raises(EnvError) as caught:
            env.step("right")
        said = str(caught.value)
        assert address in said and "request 2 (step) of session" in said and "in 0.5 s" in said
        assert "skillttrl envs serve" in said and "reset" in said
        with pytest.raises(EnvError, match="after an error that ended the episode"):
            env.step("right")
    with started(DOORS, "--port", address.rpartition(":")[2]) as (_, again):
        assert again == address
        assert env.reset(options={"door": 1})[0].startswith("Door 1") and env.step("right")[2] is True


def test_a_mistake_on_the_command_line_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], doors: str
) -> None:
    monkeypatch.delenv("SKILLTTRL_ENV_TOKEN", raising=False)
    port = doors.rpartition(":")[2]
    for words, code, said in (
        (["math", "--host", "0.0.0.0"], 2, "accepts other machines, which needs a token. Set one"),
        (["math", "--set", "env.kwargs.famly=add"], 3, "has no argument 'famly'"),
        (["math", "--port", port], 3, f"Port {port} of 127.0.0.1 is in use"),
    ):
        monkeypatch.setattr(sys, "argv", ["skillttrl", "envs", "serve", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == code and said in " ".join(capsys.readouterr().err.split())


GAME = "pick_and_place_simple-Apple-None-Fridge-1/trial_A"


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_game(tmp_path / "games", "train", GAME)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "games"
    forget()


@pytest.mark.parametrize("command", ["evaluate", "collect", "envs play"])
def test_a_model_behind_an_address_plays_with_nothing_said_of_prompts(command: str, kitchen: Path) -> None:
    place = {
        "evaluate": ("openai:m", "--env", "alfworld", "--split", "train", "--set", "eval.samples=1"),
        "collect": ("--policy", "openai:m", "--env", "alfworld", "-o", kitchen / "out.jsonl"),
        "envs play": ("alfworld", "--policy", "openai:m"),
    }[command]
    said: list[str] = []

    def hears(body: Mapping[str, Any], draw: random.Random) -> str:
        said[:] = [message["content"] for message in body["messages"]]
        return walks(body, draw)

    with FaultyServer(answer=hears, faults=()) as server:
        done = skillttrl(*command.split(), *place, "--env-data", kitchen, "--json", *at(server))
    assert done.code == 0, done
    found = done.json
    won = {"evaluate": lambda: found["accuracy"], "collect": lambda: found["overall"]["success"]}
    assert won.get(command, lambda: found["steps"][-1]["reward"])() == 1.0
    assert len(said) == 1 and "boxed" not in said[0] and "go to fridge 1" in said[0] and "<action>" in said[0]


def test_what_a_config_states_stays(kitchen: Path) -> None:
    assert env_defaults("webshop")["agent.max_turns"] == 15

    def agent(env: str, playing: tuple[str, ...] | None = (), **stated: Any) -> Any:
        found = with_env_defaults(SkillTTRLConfig.model_validate({"env": {"id": env}, **stated}), playing=playing)
        return found.agent.template, found.agent.context_mode, found.agent.action_parser, found.agent.max_turns

    assert agent("webshop") == ("webshop", "window", "action", 15)
    assert agent("math") == ("boxed", "conversation", "none", 50) and agent("math", None)[3] == 1
    assert agent("alfworld", agent={"template": "plain"}) == ("plain", "conversation", "none", 50)
    assert agent("alfworld", agent={"action_parser": "none"})[:3] == ("alfworld", "window", "none")
    assert agent("alfworld", agent={"max_turns": 7, "context_mode": "none"}) == ("boxed", "none", "none", 7)
    assert agent("alfworld", ("agent.max_turns=1",), agent={"max_turns": 1})[3] == 1
    assert with_env_defaults(load_config("skillrl_webshop")).to_yaml() == load_config("skillrl_webshop").to_yaml()
    assert with_env_defaults(load_config({"env": {"id": "alfworld"}})).rl.reward == "env"


def test_a_recipe_of_one_environment_is_replanned_for_another_or_refused() -> None:
    refused(skillttrl("train", "quickstart", "--env", "webshop", "--dry-run"), 2, "for math", "sft.data", "webshop")
    refused(skillttrl("train", "quickstart_skills", "--env", "webshop", "--dry-run"), 2, "skills.bank")
    refused(skillttrl("train", "quickstart_webshop", "--env", "alfworld", "--dry-run"), 3, "no agent 'careful'")
    replanned = load_config(
        "quickstart_skills_alfworld", [*in_another_env("quickstart_skills_alfworld", "webshop"), "env.id=webshop"]
    )
    assert (replanned.agent.template, replanned.agent.max_turns, replanned.env.kwargs) == ("webshop", 15, {})
    assert replanned.env.eval_split == "test" and in_another_env("quickstart_webshop", "webshop") == []


def test_ask_speaks_the_environment_of_the_policy(tmp_path: Path) -> None:
    said: list[str] = []

    def answer(body: Mapping[str, Any], draw: random.Random) -> str:
        said.append(body["messages"][-1]["content"])
        return "I am: a river, 7 of them"

    with FaultyServer(answer=answer, faults=()) as server:

        def ask(env: str, kwargs: str = "{}") -> Any:
            file = tmp_path / "config.yaml"
            file.write_text(f"env: {{id: {env}, kwargs: {kwargs}}}\n")
            return skillttrl("ask", "openai:m", "How many?", "--config", file, "--json", *at(server))

        game, sums, lenient = ask("alfworld"), ask("math"), ask("math", "{last_number: true}")
    refused(game, 2, "takes no question")
    assert "boxed" in said[0] and sums.code == 0 and sums.json["warnings"] == []
    assert sums.json["answers"] == [None] and lenient.json["answers"] == ["7"], "an answer is found as in training"
