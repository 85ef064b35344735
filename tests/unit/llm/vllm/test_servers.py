"""Requests spread over servers that die, hang, come back as others, refuse or answer nonsense: each ends once, rightly.

The upstream here is scripted: it speaks as a vLLM server and samples nothing. Real ones are in `test_vllm_server.py`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import skill_ttrl.llm.vllm.servers as module
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, EndpointError, ModelError
from skill_ttrl.llm.backend import BackendContext, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.backends import make_backend
from skill_ttrl.llm.models.load import LoadedModel, save_model
from skill_ttrl.llm.vllm.servers import (
    STALE,
    VLLMServerBackend,
    remove_leftovers,
    weight_transfer_dir,
)

PROCESS = module.PROCESS_HEADER
Script = Callable[["Upstream", dict[str, Any]], "tuple[int, dict[str, Any]] | None"]


class Upstream(ThreadingHTTPServer):
    """A scripted upstream: `script` says how a request for completions is answered; None drops the connection."""

    daemon_threads = True
    request_queue_size = 256  # with the usual five, a healthy one resets connections where many come at once

    def __init__(self, root: str, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.script = root, script
        self.process, self.version, self.length, self.well = "p1", "default", 128, True
        self.away = 503
        self.answered: list[int] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None:
        """A client that has gone is part of the script."""


class _Handler(BaseHTTPRequestHandler):
    server: Upstream
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        upstream = self.server
        model = {"id": "policy", "root": upstream.root, "parent": None, "max_model_len": upstream.length}
        said: dict[str, dict[str, Any]] = {
            "/v1/models": {"data": [model] if upstream.length else upstream.root},
            "/weight_info": {"weight_version": upstream.version},
            "/health": {},
        }
        self._say(200 if upstream.well else upstream.away, said.get(self.path, {}))

    def do_POST(self) -> None:
        upstream = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        found = upstream.script(upstream, body)
        if found is None:
            self.close_connection = True
            self.connection.close()
            return
        if found[0] == 200:
            upstream.answered.append(body["prompt"][0])
        self._say(*found)

    def _say(self, status: int, said: dict[str, Any]) -> None:
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.send_header(PROCESS, self.server.process)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


def echo(upstream: Upstream, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Each sample is the first token of its prompt."""
    token = body["prompt"][0]
    one = {"token_ids": [token], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "stop"}
    return 200, {"choices": [{"index": index, **one} for index in range(body["n"])]}


OPEN: list[VLLMServerBackend] = []
patched = pytest.MonkeyPatch()
"""Backends of the test that runs, to be closed after it."""


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()
    patched.undo()


@pytest.fixture(autouse=True)
def _looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.05)


@pytest.fixture(scope="module")
def folder(tiny_model: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model(*tiny_model, path)
    return path


@pytest.fixture
def upstreams(folder: Path) -> Iterator[Callable[[Script], Upstream]]:
    running: list[Upstream] = []

    def start(script: Script) -> Upstream:
        running.append(Upstream(str(folder), script))
        return running[-1]

    yield start
    for each in running:
        each.shutdown()
        each.server_close()


def refuse_to_load() -> LoadedModel:
    raise AssertionError("the learner's model was loaded")


def backend_for(
    folder: Path,
    *servers: Upstream,
    notices: list[str] | None = None,
    stopping: bool = False,
    start_timeout: float = 2,
    **vllm: Any,
) -> VLLMServerBackend:
    addresses = [each.address for each in servers]
    section = {"mode": "server", "servers": addresses, **vllm}
    patched.setattr("skill_ttrl.llm.vllm.servers.START_TIMEOUT", start_timeout)
    config = SkillTTRLConfig.model_validate({"model": {"path": str(folder)}, "vllm": section})
    config.rollout.backend = "vllm"
    told = notices.append if notices is not None else (lambda text: None)
    backend = make_backend(BackendContext(config, refuse_to_load, notice=told, stopping=lambda: stopping))
    assert isinstance(backend, VLLMServerBackend)
    OPEN.append(backend)
    return backend


def ask(backend: VLLMServerBackend, count: int, n: int = 2) -> list[Generation]:
    requests = [Request(token_ids=(number + 10, 3), n=n) for number in range(count)]
    return wait_for(backend.generate(requests, Sampling(max_new_tokens=4), seed=0))


def assert_each_once(found: list[Generation], count: int, n: int = 2) -> None:
    assert [[done.token_ids for done in each.completions] for each in found] == [
        [(number + 10,)] * n for number in range(count)
    ]


def test_requests_are_spread_and_come_back_in_order(folder: Path, upstreams: Callable[[Script], Upstream]) -> None:
    def slowly(upstream: Upstream, body: dict[str, Any]) -> Any:
        time.sleep(0.001 * (body["prompt"][0] % 7))
        return echo(upstream, body)

    first, second = upstreams(slowly), upstreams(slowly)
    assert_each_once(ask(backend_for(folder, first, second), 60), 60)
    assert len(first.answered) > 10 and len(second.answered) > 10
    assert sorted(first.answered + second.answered) == list(range(10, 70))


@pytest.mark.slow
@pytest.mark.parametrize("away", [503, 404])  # a proxy's answer
def test_what_a_server_was_asked_is_asked_again_once_it_is_back(
    folder: Path, upstreams: Callable[[Script], Upstream], away: int
) -> None:
    def dying(upstream: Upstream, body: dict[str, Any]) -> Any:
        if len(upstream.answered) < 5 or upstream.process == "p2":
            return echo(upstream, body)
        if upstream.well:
            upstream.well = False
            threading.Timer(0.5, lambda: vars(upstream).update(well=True, process="p2")).start()
        return None

    notices: list[str] = []
    dead, healthy = upstreams(dying), upstreams(echo)
    dead.away = away
    assert_each_once(ask(backend_for(folder, dead, healthy, notices=notices, start_timeout=20), 40), 40)
    assert sorted(dead.answered + healthy.answered) == list(range(10, 50))  # what was answered is kept
    assert sum("sent again" in text for text in notices) == 1


def test_answers_of_a_process_that_was_not_asked_are_thrown_away(
    folder: Path, upstreams: Callable[[Script], Upstream]
) -> None:
    """It died and came back between two requests: nothing but its name tells."""
    given: list[str] = []

    def reborn(upstream: Upstream, body: dict[str, Any]) -> Any:
        if len(upstream.answered) == 3 and upstream.process == "p1":
            upstream.process = "p2"
        given.append(upstream.process)
        return echo(upstream, body)

    upstream = upstreams(reborn)
    assert_each_once(ask(backend_for(folder, upstream), 8), 8)
    assert len(given) > 8  # those of p2, before it was looked at, were asked again


def test_a_server_that_hangs_is_named(
    folder: Path, upstreams: Callable[[Script], Upstream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.2)

    def hanging(upstream: Upstream, body: dict[str, Any]) -> Any:
        upstream.well = False
        time.sleep(3)
        return None

    began, bad = time.monotonic(), upstreams(hanging)
    with pytest.raises(EndpointError, match=f"{bad.address} did not answer"):
        ask(backend_for(folder, bad, upstreams(echo), start_timeout=0.5), 10)
    assert time.monotonic() - began < 10


def test_a_request_that_kills_every_server_ends_the_run(folder: Path, upstreams: Callable[[Script], Upstream]) -> None:
    with pytest.raises(EndpointError, match="lost 3 times"):
        ask(backend_for(folder, upstreams(lambda upstream, body: None)), 2)


@pytest.mark.parametrize("status", [400, 401])
def test_a_refusal_is_not_asked_again(folder: Path, upstreams: Callable[[Script], Upstream], status: int) -> None:
    calls: list[int] = []

    def refusing(upstream: Upstream, body: dict[str, Any]) -> Any:
        calls.append(status)
        return status, {"error": {"message": "too long"}}

    with pytest.raises(EndpointError, match="SKILLTTRL_SERVER_KEY" if status == 401 else "too long") as caught:
        ask(backend_for(folder, upstreams(refusing)), 1)
    assert caught.value.kind == "refused" and len(calls) == 1


@pytest.mark.parametrize(
    "choices",
    [
        [],
        [{"index": 0, "text": "no ids"}] * 2,
        [
            {"index": i, "token_ids": [1, 2], "logprobs": {"token_logprobs": [0.1]}, "finish_reason": "stop"}
            for i in (0, 1)
        ],
        [
            {"index": i, "token_ids": [1], "logprobs": {"token_logprobs": [None]}, "finish_reason": "stop"}
            for i in (0, 1)
        ],
    ],
)
def test_an_answer_without_tokens_or_log_probs_is_refused(
    folder: Path, upstreams: Callable[[Script], Upstream], choices: list[Any]
) -> None:
    with pytest.raises(EndpointError, match="cannot be used") as caught:
        ask(backend_for(folder, upstreams(lambda upstream, body: (200, {"choices": choices}))), 1)
    assert caught.value.kind == "malformed"


def test_a_server_that_has_other_weights_is_given_the_learners(
    folder: Path, upstreams: Callable[[Script], Upstream]
) -> None:
    """It was trained through before: what is measured is the policy that was named, not what is left there."""
    upstream = upstreams(echo)
    upstream.version = "another:3"
    with pytest.raises(AssertionError, match="was loaded"):
        ask(backend_for(folder, upstream), 1)


def test_what_servers_cannot_do_is_said_beforehand(folder: Path, upstreams: Callable[[Script], Upstream]) -> None:
    upstream = upstreams(echo)
    with pytest.raises(ConfigError, match=r"vllm\.servers names none"):
        backend_for(folder)
    with pytest.raises(ConfigError, match=r"takes 128 tokens.*vllm.max_model_len=200"):
        backend_for(folder, upstream, max_model_len=200)
    config = SkillTTRLConfig.model_validate({"vllm": {"mode": "server", "servers": [upstream.address]}})
    config.rollout.top_p = 0.9
    with pytest.raises(ConfigError, match=r"rollout\.top_p"):
        VLLMServerBackend(BackendContext(config, refuse_to_load, trains=True))
    upstream.length = 0
    with pytest.raises(EndpointError, match=r"/v1/models does not say which model .*skillttrl serve"):
        backend_for(folder, upstream)
    upstream.length = 64
    assert backend_for(folder, upstream, upstreams(echo)).max_model_len == 64
    with pytest.raises(ModelError, match="does not fit"):
        wait_for(backend_for(folder, upstream).generate([Request(token_ids=(3,) * 64)], Sampling(), seed=0))


def test_a_server_that_is_not_there_is_waited_for_and_then_said(
    folder: Path, upstreams: Callable[[Script], Upstream]
) -> None:
    notices: list[str] = []
    upstream = upstreams(echo)
    upstream.well = False
    threading.Timer(0.5, lambda: setattr(upstream, "well", True)).start()
    assert backend_for(folder, upstream, notices=notices, start_timeout=20).max_model_len == 128
    assert "Waiting up to" in notices[0]
    upstream.well = False
    with pytest.raises(EndpointError, match=f"{upstream.address} did not answer.*skillttrl serve"):
        backend_for(folder, upstream, start_timeout=0.5)


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        weight_transfer_dir(str(shared))
    shared.chmod(0o700)
    assert weight_transfer_dir(str(shared)) == shared
    link.symlink_to(shared)
    with pytest.raises(ConfigError, match="chmod 700"):
        weight_transfer_dir(str(link))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="weight_transfer_dir"):
        weight_transfer_dir(str(tmp_path / "file"))


def test_only_what_the_dead_have_left_long_ago_is_removed(tmp_path: Path) -> None:
    gone, old = 2**22 + 1, time.time() - 2 * STALE  # above the most that Linux numbers processes
    for name in (f"{gone}-old", f"{gone}-new", f"{os.getpid()}-old", "mine-old"):
        (tmp_path / name).write_text("")
        if name.endswith("old"):
            os.utime(tmp_path / name, (old, old))
    remove_leftovers(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {f"{gone}-new", f"{os.getpid()}-old", "mine-old"}
