"""The server of an environment: token, hosts, bodies that are none, arguments and splits of clients. Sockets and threads are real."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import gymnasium
import httpx
import pytest

from skill_ttrl.cli.envs import find_token
from skill_ttrl.envs import check_text_env, env_tasks, make_env
from skill_ttrl.envs.remote.env import RemoteEnv
from skill_ttrl.envs.remote.server import MAX_BODY_BYTES, EnvServer, Refused, Sessions
from skill_ttrl.errors import ConfigError, EnvError, SplitError
from tests.doors import DOORS

TOKEN = "0123456789abcdef"


@contextmanager
def serving(name: str = DOORS, token: str | None = None, **settings: Any) -> Iterator[EnvServer]:
    with EnvServer(name, settings.pop("kwargs", {}), token=token, **settings) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[EnvServer]:
    with serving() as server:
        yield server


def ask(server: EnvServer, method: str, path: str, **more: Any) -> httpx.Response:
    return httpx.request(method, server.address + path, trust_env=False, timeout=60, **more)


def raw(server: EnvServer, request: str) -> int:
    """The status that answers a request of these bytes."""
    host, port = server.server_address[:2]
    with socket.create_connection((str(host), port), timeout=60) as connection:
        connection.sendall(request.encode())
        return int(connection.recv(64).split()[1])


def message(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


def test_a_whole_visit_in_plain_requests(server: EnvServer) -> None:
    assert ask(server, "GET", "/v1/health").json() == {"status": "ok"}
    about = ask(server, "GET", "/v1/environment").json()
    assert about["env"] == DOORS.partition(":")[2] and about["protocol"] == 2 and about["tasks"] is None
    path = "/v1/sessions/mine"
    started = ask(server, "POST", f"{path}/reset", json={"step": 0, "seed": 1, "options": {"door": 4}}).json()
    assert started["observation"].startswith("Door 4: open the left one.") and started["info"]["source"] == "joinery"
    step = {"step": 1, "action": "wait"}
    first = ask(server, "POST", f"{path}/step", json=step)
    assert first.json()["reward"] == 0.0 and ask(server, "POST", f"{path}/step", json=step).text == first.text
    assert ask(server, "POST", f"{path}/step", json={"step": 2, "action": "left"}).json()["terminated"] is True
    wrong = ask(server, "POST", f"{path}/step", json={"step": 7, "action": "left"})
    assert wrong.status_code == 409 and "3 was expected" in message(wrong)
    assert ask(server, "POST", f"{path}/reset", json={"step": 3, "options": {"door": 5}}).status_code == 200
    assert ask(server, "DELETE", path).json() == {"ended": True}
    ended = ask(server, "POST", f"{path}/step", json={"step": 4, "action": "left"})
    assert ended.status_code == 410 and "no such session" in message(ended)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "no JSON"),
        (b"{", 400, "no JSON"),
        (b"[" * 100_000, 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        (b"9" * 5000, 400, "no JSON"),
        (b"[]", 400, "no ResetRequest"),
        (b'{"step": 0, "sead": 1}', 400, "sead"),
        (b'{"step": 0, "seed": "1"}', 400, "seed"),
        (b'{"step": 0, "seed": 1.5}', 400, "seed"),
        (b'{"step": 0, "options": []}', 400, "options"),
        (b'{"step": 0, "split": "../../etc"}', 400, "split"),
        (b'{"step": 0, "kwargs": {"pause": 9}}', 400, "kwargs"),
        (b'{"step": 0, "split": "train"}', 403, "split"),
        (b'{"step": 0, "options": {"window": 1}}', 422, "'door'"),
        (b" " * (MAX_BODY_BYTES + 1), 413, "has at most"),
    ],
)
def test_a_body_that_is_none_is_refused(server: EnvServer, body: bytes, status: int, said: str) -> None:
    refused = ask(server, "POST", "/v1/sessions/new/reset", content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code == status and said in message(refused)


def test_requests_that_a_web_page_could_send_are_refused(server: EnvServer) -> None:
    plain = ask(server, "POST", "/v1/sessions/new/reset", content=b"{}", headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415
    rebound = ask(server, "GET", "/v1/environment", headers={"Host": "evil.example"})
    assert rebound.status_code == 403 and "only this machine" in message(rebound)
    chunks = ask(
        server, "POST", "/v1/sessions/new/reset", content=iter([b"{}"]), headers={"Content-Type": "application/json"}
    )
    assert chunks.status_code == 411
    for path in ("/", "/v1/sessions/..%2f..", "/v1/sessions/a/b", "/v2/environment"):
        assert ask(server, "GET", path).status_code == 404
    for path in ("/v1/environment?tasks=../x", "/v1/environment?a&b&c&d&e", "http://["):
        assert raw(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n") == 400
    for host in ("[", "[::1", "::1]x", "localhost:x", "", "evil.example:80", "127.0.0.1.evil.example"):
        assert raw(server, f"GET /v1/environment HTTP/1.1\r\nHost: {host}\r\n\r\n") == 403
    for host in ("localhost", "LocalHost:80", "127.0.0.1:9", "[::1]:80"):
        assert raw(server, f"GET /v1/environment HTTP/1.1\r\nHost: {host}\r\n\r\n") == 200


def test_a_token_is_needed_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(token=TOKEN) as server:
        assert ask(server, "GET", "/v1/health").status_code == 200
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {TOKEN}x"}):
            assert ask(server, "GET", "/v1/environment", headers=given).status_code == 401
        elsewhere = {"Authorization": f"Bearer {TOKEN}", "Host": "cluster.example"}
        assert ask(server, "GET", "/v1/environment", headers=elsewhere).status_code == 200
        monkeypatch.delenv("SKILLTTRL_ENV_TOKEN", raising=False)
        with pytest.raises(EnvError, match=r"\$SKILLTTRL_ENV_TOKEN, which is not set"):
            make_env("remote", url=server.address)
        monkeypatch.setenv("SKILLTTRL_ENV_TOKEN", TOKEN)
        assert len(env_tasks("remote", {"url": server.address}, "test")) == 6
        monkeypatch.setenv("SKILLTTRL_ENV_TOKEN", "Grüße, 門, long enough")
        with pytest.raises(EnvError, match="must be ASCII"):
            make_env("remote", url=server.address)


def test_a_token_comes_from_the_environment_and_other_machines_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKILLTTRL_ENV_TOKEN", raising=False)
    assert find_token("127.0.0.1") is None and find_token("::1") is None
    for host in ("0.0.0.0", "::", "10.0.0.3", "example.org"):
        with pytest.raises(ConfigError, match="export SKILLTTRL_ENV_TOKEN"):
            find_token(host)
    monkeypatch.setenv("SKILLTTRL_ENV_TOKEN", "short")
    with pytest.raises(ConfigError, match="at least 16 characters"):
        find_token("127.0.0.1")
    monkeypatch.setenv("SKILLTTRL_ENV_TOKEN", f" {TOKEN}\n")
    assert find_token("0.0.0.0") == TOKEN


def test_a_client_changes_no_arguments_and_an_environment_that_fails_is_named(server: EnvServer) -> None:
    with pytest.raises(EnvError, match=r"broken=\[3\]"):
        make_env(DOORS, url=server.address, broken=[3])
    with serving(kwargs={"broken": [3], "worn": False}) as same:
        env = make_env(DOORS, url=same.address, broken=[3])
        with pytest.raises(EnvError, match="raised RuntimeError: door 3 is stuck"):
            env.reset(options={"door": 3})
        assert env.reset(options={"door": 4})[0].startswith("Door 4")  # in a new session
        with pytest.raises(EnvError, match="found worn=True"):
            make_env(DOORS, url=same.address, broken=[3], worn=True)


def test_it_is_an_environment_of_the_contract(server: EnvServer) -> None:
    env = make_env("remote", url=server.address)
    check_text_env(env, env_tasks("remote", {"url": server.address}, "test")[0])
    env.reset(options={"door": 1})
    env.step("\ud800 \x00 ä 門")  # any text is an action
    env.close()
    env.close()
    with pytest.raises(EnvError, match="step was called before reset"):
        env.unwrapped.step("left")
    assert env.reset(options={"door": 1})[0].startswith("Door 1")
    with pytest.raises(EnvError, match="JSON-serializable"):
        env.reset(options={"door": object()})


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, "needs the url of a server"),
        ({"url": "ftp://x"}, "url must be the address"),
        ({"url": "http://u:p@127.0.0.1:1"}, "url must be the address"),
        ({"url": "http://127.0.0.1:9", "retry_seconds": 0.1}, "nothing answers there"),
        ({"url": "http://127.0.0.1:9", "answer_timeout": 0}, "answer_timeout must be a number of seconds above 0"),
    ],
)
def test_a_server_that_is_none_is_one_message(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvError, match=said):
        make_env("remote", **kwargs)


def test_another_environment_than_expected_is_named(server: EnvServer) -> None:
    with pytest.raises(EnvError, match="serves Doors-v0, not SkillTTRL/Math-v0"):
        make_env("math", url=server.address)
    env = make_env("remote", url=server.address, env=DOORS)
    assert isinstance(env.unwrapped, RemoteEnv) and env.unwrapped.served.env == "Doors-v0"


def test_tasks_of_a_split_and_a_split_that_is_none() -> None:
    local = {"family": "add", "last_number": True}
    with serving("math", kwargs=local) as server:
        for split in ("train", "test"):
            assert env_tasks("math", {"url": server.address}, split) == env_tasks("math", local, split)
        with pytest.raises((EnvError, SplitError), match="nosuch"):
            env_tasks("math", {"url": server.address}, "nosuch")
        drawn = make_env("math", url=server.address, split="test"), make_env("math", **local, split="test")
        assert drawn[0].reset(seed=5) == drawn[1].reset(seed=5)
        about = ask(server, "GET", "/v1/environment").json()
        assert about["takes_split"] is True and about["config_defaults"] == {}


class Counter(gymnasium.Env[str, str]):
    """Counts what it is asked for; the action "hang" waits for `gate`, "fail" raises."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.gate = threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return self._note(("reset", seed)), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "hang":
            self.gate.wait(30)
        if action == "fail":
            raise RuntimeError("the door is stuck")
        return self._note(action), 0.0, False, False, {}

    def close(self) -> None:
        self._note("close")

    def _note(self, call: Any) -> str:
        self.calls.append(call)
        return f"{call} is call {len(self.calls)}"


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    made = Sessions(timeout=60.0, most=3)
    yield made
    made.close()


def opened(sessions: Sessions, host: Counter, seed: int = 0) -> str:
    """Id of a new session whose environment is reset."""
    session = uuid.uuid4().hex
    assert sessions.ask(session, 0, "reset", lambda: host, seed=seed)[0] == 200
    return session


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_same_request_again_gets_the_stored_answer(sessions: Sessions) -> None:
    host = Counter()
    session = opened(sessions, host, 7)
    first = sessions.ask(session, 1, "step", action="look")
    assert sessions.ask(session, 1, "step", action="look") == first
    assert host.calls == [("reset", 7), "look"]
    assert sessions.ask(session, 2, "step", action="look") != first  # the same action, but another request
    assert sessions.ask(session, 3, "reset", seed=8)[0] == 200
    assert host.calls == [("reset", 7), "look", "look", ("reset", 8)]


@pytest.mark.parametrize(("number", "action"), [(0, "look"), (1, "other"), (3, "look"), (99, "look")])
def test_any_other_number_is_refused_with_the_expected_one(sessions: Sessions, number: int, action: str) -> None:
    host = Counter()
    session = opened(sessions, host)
    sessions.ask(session, 1, "step", action="look")
    with pytest.raises(Refused, match="where 2 was expected") as refused:
        sessions.ask(session, number, "step", action=action)
    assert refused.value.answer[0] == 409 and host.calls == [("reset", 0), "look"]


def test_a_request_that_is_repeated_while_it_runs_waits_for_the_same_answer(sessions: Sessions) -> None:
    host = Counter()
    session = opened(sessions, host)
    with ThreadPoolExecutor(3) as asking:
        running, again = (asking.submit(sessions.ask, session, 1, "step", action="hang") for _ in range(2))
        time.sleep(0.1)
        assert not running.done() and not again.done()
        host.gate.set()
        assert running.result(30) == again.result(30) and host.calls == [("reset", 0), "hang"]


def test_opening_again_finds_the_session(sessions: Sessions) -> None:
    host = Counter()
    start = sessions.ask("abc", 0, "reset", lambda: host, seed=1)
    again = sessions.ask("abc", 0, "reset", Counter, seed=1)
    assert start == again and host.calls == [("reset", 1)]
    with pytest.raises(Refused, match="another request"):
        sessions.ask("abc", 0, "reset", Counter, seed=2)


def test_an_environment_that_fails_closes_its_session(sessions: Sessions) -> None:
    host = Counter()
    session = opened(sessions, host)
    status, text = sessions.ask(session, 1, "step", action="fail")
    assert status == 422 and "the door is stuck" in text
    until(lambda: "close" in host.calls)
    with pytest.raises(Refused, match="no such session") as refused:
        sessions.ask(session, 1, "step", action="fail")
    assert refused.value.answer[0] == 410 and len(sessions) == 0


def test_an_idle_session_ends_and_a_used_one_does_not() -> None:
    sessions = Sessions(timeout=0.6, most=3)
    hosts = [Counter(), Counter()]
    idle, used = (opened(sessions, host) for host in hosts)
    number = 0
    while "close" not in hosts[0].calls:
        number += 1
        assert number < 1000 and sessions.ask(used, number, "step", action="look")[0] == 200
        time.sleep(0.02)
    with pytest.raises(Refused, match=r"--session-timeout") as refused:
        sessions.ask(idle, 1, "step", action="look")
    assert refused.value.answer[0] == 410
    sessions.close()


def test_no_more_sessions_than_allowed_and_one_that_hangs_counts(sessions: Sessions) -> None:
    hosts = [Counter() for _ in range(3)]
    made = [opened(sessions, host) for host in hosts]
    hanging = threading.Thread(target=sessions.ask, args=(made[0], 1, "step"), kwargs={"action": "hang"}, daemon=True)
    hanging.start()
    until(lambda: made[0] in sessions._open and sessions._open[made[0]]._number == 1)
    assert sessions.end(made[0]) and not sessions.end(made[0])
    with pytest.raises(Refused, match="All 3 sessions are in use") as refused:
        opened(sessions, Counter())
    assert refused.value.answer[0] == 503
    hosts[0].gate.set()
    until(lambda: "close" in hosts[0].calls and not sessions._ending)
    opened(sessions, Counter())
