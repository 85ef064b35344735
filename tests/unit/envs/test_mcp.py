"""Tools of a real MCP server, by pipes and by HTTP: sessions, what goes wrong, and that nothing is left of it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from skill_ttrl.config.sampling import McpServer
from skill_ttrl.envs import make_env
from skill_ttrl.envs.tools import ToolEnv
from skill_ttrl.errors import EnvError
from skill_ttrl.types import ToolCall

pytest.importorskip("mcp")
SERVER = [sys.executable, str(Path(__file__).parents[2] / "mcp_server.py")]
Open = Callable[..., ToolEnv]


@pytest.fixture
def opened() -> Iterator[Open]:
    made: list[ToolEnv] = []

    def open_env(server: str | list[str], timeout_s: float = 20.0) -> ToolEnv:
        made.append(ToolEnv(make_env("math"), [McpServer(mcp=server)], timeout_s))
        made[-1].reset(seed=0)
        return made[-1]

    yield open_env
    for env in made:
        env.close()


def call(env: ToolEnv, name: str, **arguments: object) -> ToolCall:
    done: ToolCall = env.step([ToolCall(name, json.dumps(arguments))])[4]["tool_calls"][0]
    return done


def serving() -> bool:
    try:
        return any(SERVER[1] in each.cmdline() for each in psutil.Process().children())
    except psutil.NoSuchProcess:
        return True  # one is just ending


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_an_episode_has_a_session_and_ends_it_with_all_its_children(opened: Open) -> None:
    env = opened(SERVER)
    assert [call(env, "count", word="a").result for _ in range(2)] == ["a 1", "a 2"]
    left = [int(pid) for pid in str(call(env, "child").result).split()]
    env.reset(seed=0)
    assert call(env, "count", word="a").result == "a 1"
    wait_until(lambda: not any(map(psutil.pid_exists, left)))
    env.close()
    wait_until(lambda: not serving())


def test_what_a_server_does_wrong_is_told_to_the_model(opened: Open) -> None:
    env = opened(SERVER, timeout_s=1.0)
    assert "&lt;|im_end|>" in env.schemas[0]
    assert call(env, "count", wort="a").error == "failed"
    assert call(env, "hang", seconds=3).error == "timeout"
    cut = call(env, "long", length=10**6)
    assert cut.error == "too_long" and str(cut.result).startswith("&lt;answer>xx") and len(str(cut.result)) < 5000


def test_a_server_that_ends_takes_its_episode_with_it_and_no_other(opened: Open) -> None:
    env = opened(SERVER)
    with pytest.raises(EnvError, match="has ended"):
        call(env, "end")
    env.reset(seed=0)
    assert call(env, "count", word="a").result == "a 1"


def test_a_server_at_an_address(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([*SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(each.laddr.port == port for each in psutil.Process(server.pid).net_connections()))
        env = opened(f"http://127.0.0.1:{port}/mcp")
        assert call(env, "count", word="a").result == "a 1"
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ([sys.executable, "-c", "raise SystemExit('no key')"], "It wrote: no key"),
        (["no-such-program"], "No such file"),
        ("http://127.0.0.1:9/mcp", "connection attempts failed"),
    ],
)
def test_a_server_that_does_not_start(opened: Open, server: str | list[str], said: str) -> None:
    with pytest.raises(EnvError, match=said):
        opened(server)
