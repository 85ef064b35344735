"""The server of an environment: token, hosts, bodies that are none, arguments and splits of clients. Sockets and threads are real."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from skill_ttrl.cli.envs import find_token
from skill_ttrl.envs import check_text_env, env_tasks, make_env
from skill_ttrl.envs.remote.env import RemoteEnv
from skill_ttrl.envs.remote.server import MAX_BODY_BYTES, EnvServer
from skill_ttrl.errors import ConfigError, EnvError, SplitError
from skill_ttrl.trust import powers
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
        monkeypatch.setenv("OTHER", "Grüße, 門, long enough")
        with pytest.raises(EnvError, match="must be ASCII"):
            make_env("remote", url=server.address, token_env="OTHER")


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
    foreign = powers({"env": {"kwargs": {"url": "http://there.example", "token_env": "AWS_SECRET"}}})
    assert (
        set(foreign) == {"env.kwargs.url", "env.kwargs.token_env"} and "AWS_SECRET" in foreign["env.kwargs.token_env"]
    )


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
