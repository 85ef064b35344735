"""`skillttrl serve` without vLLM: its process, what it refuses beforehand, and what its server lets in."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from skill_ttrl.commands.serve import LAUNCHER, plan
from skill_ttrl.config import EndpointConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.openai.replies import find_address
from skill_ttrl.llm.server_key import drawn_key, key_file, key_headers
from skill_ttrl.llm.vllm.plugin.launch import vllm_arguments
from skill_ttrl.llm.vllm.plugin.skillttrl_guard import KEY_VARIABLE, Guard, inside
from tests.vllm_server import free_port

SERVER = f"""
import http.server, json, os, sys
sys.path.insert(0, {str(LAUNCHER.parent)!r})
from launch import die_with_parent
options = json.loads(sys.argv[2])
die_with_parent(options["parent"])
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([os.getpid(), len(os.environ["SKILLTTRL_SERVER_KEY"])]).encode())
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", options["port"]), Answers).serve_forever()
"""
"""Stands in for vLLM: answers its process id and the length of its key."""


def alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def wait_until(look: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come about")


def model_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def serving(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Arguments of `plan` for a server whose interpreter runs `SERVER` in the place of the launcher."""
    (tmp_path / "server.py").write_text(SERVER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/server.py "$@"\n')
    python.chmod(0o755)
    model = model_folder(tmp_path / "model") if not (tmp_path / "model").exists() else tmp_path / "model"
    how = {
        "policy": str(model), "port": free_port(), "python": str(python), "recipe": None,
        "output": tmp_path / "model",
    }  # fmt: skip
    return {**how, "overrides": [f"vllm.weight_transfer_dir={tmp_path / 'pass'}"], **changes}


def test_a_port_in_use_is_said_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port} .*--port"):
            plan(**serving(tmp_path, port=port))
    with pytest.raises(ConfigError, match="/no/such/python"):
        plan(**serving(tmp_path, python="/no/such/python"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """`skillttrl serve`, with the process id of its server, and the length of the key that this has."""
    made = serving(tmp_path)
    words = ["serve", made["policy"], "--python", made["python"], "--port", str(made["port"])]
    words += ["--set", made["overrides"][0]]
    command = [sys.executable, "-m", "skill_ttrl.cli.main", *words]
    environment = {name: value for name, value in os.environ.items() if name != "SKILLTTRL_SERVER_KEY"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        pid, key = wait_until(lambda: answer(made["port"]), 60)
        yield process, pid, key
        process.kill()


def answer(port: int) -> list[int] | None:
    try:
        return list(httpx.get(f"http://127.0.0.1:{port}", trust_env=False).json())
    except httpx.TransportError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_the_server_ends_with_the_command_however_it_ends(
    served: tuple[subprocess.Popen[str], int, int], signum: signal.Signals
) -> None:
    process, pid, key = served
    assert key > 30 and alive(pid)
    process.send_signal(signum)
    assert process.wait(20) == (-signal.SIGKILL if signum == signal.SIGKILL else 0)
    wait_until(lambda: not alive(pid))


@pytest.mark.slow
def test_a_server_that_ends_by_itself_ends_the_command(served: tuple[subprocess.Popen[str], int, int]) -> None:
    process, pid, _ = served
    os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 5 and "ended with exit code -9" in " ".join(said.split())
    assert "--set 'vllm.servers=[http://127.0.0.1:" in said and "It requires a key" in said


def test_a_server_for_others_wants_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKILLTTRL_SERVER_KEY", raising=False)
    with pytest.raises(ConfigError, match="SKILLTTRL_SERVER_KEY"):
        plan(**serving(tmp_path, host="0.0.0.0"))
    monkeypatch.setenv("SKILLTTRL_SERVER_KEY", "a-secret")
    assert "a-secret" not in " ".join(plan(**serving(tmp_path, host="0.0.0.0")))


def test_servers_without_a_given_key_ask_for_one_that_this_user_s_clients_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKILLTTRL_SERVER_KEY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with drawn_key(8123) as key:
        file = key_file(8123)
        assert file.is_relative_to(tmp_path) and file.read_text() == key and len(key) > 30
        assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o077 == 0
        for address in ("http://127.0.0.1:8123", "http://localhost:8123/v1"):
            assert key_headers(address) == {"Authorization": f"Bearer {key}"}
        for other in ("http://127.0.0.1:8124", "http://10.0.0.1:8123", "http://evil.example:8123", "http://127.0.0.1"):
            assert key_headers(other) == {}
        policy = EndpointConfig(model="policy", base_url="http://127.0.0.1:8123/v1")
        assert find_address(policy, "policy").key == key
    assert not file.exists() and key_headers("http://127.0.0.1:8123") == {}
    with drawn_key(8123) as again:
        assert again != key
    monkeypatch.setenv("SKILLTTRL_SERVER_KEY", "a-secret")
    assert key_headers("http://10.0.0.1:8123") == {"Authorization": "Bearer a-secret"}


def test_a_recipe_says_what_its_servers_need(tmp_path: Path, tiny_yaml: Path) -> None:
    overrides = ["vllm.mode=server", "vllm.max_num_seqs=7"]
    found = planned(serving(tmp_path, policy=None, recipe=str(tiny_yaml), overrides=overrides))
    assert (found.max_model_len, found.max_num_seqs) == (58, 7)
    assert Path(found.model, "config.json").is_file()  # the built-in model is made and written


def planned(how: dict[str, Any]) -> SimpleNamespace:
    """What the launcher reads."""
    return SimpleNamespace(**json.loads(plan(**how)[-1]))


def test_the_command_serves_as_the_backend_counts_on(tmp_path: Path) -> None:
    overrides = ["vllm.enable_sleep_mode=true", "vllm.max_model_len=9000"]
    options = planned(serving(tmp_path, overrides=overrides))
    assert options.gpu_memory_utilization == 0.9  # a server's default; the config's leaves room for a learner
    words = vllm_arguments(options, on_cpu=True)
    assert words[words.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert words[words.index("--generation-config") + 1] == "vllm"
    assert words[words.index("--max-num-batched-tokens") + 1] == "9000"  # no prompt is cut
    assert "--enforce-eager" in words and "--enable-sleep-mode" not in words
    on_gpu = vllm_arguments(options, on_cpu=False)
    assert "--enable-sleep-mode" in on_gpu and "--enforce-eager" not in on_gpu


def test_only_files_below_the_folder_are_inside(tmp_path: Path) -> None:
    folder, outside = tmp_path / "pass", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("")
    (folder / "link").symlink_to(outside)
    assert inside(str(folder / "weights.safetensors"), str(folder))
    refused = [outside, folder, folder / "link", folder / ".." / "outside", tmp_path / "pass2" / "x"]
    assert not any(inside(str(path), str(folder)) for path in refused)
    assert not any(inside(path, str(folder)) for path in ("x", "", None, 3, ["a"], f"{folder}/a\0b"))
    assert not inside("/x", "")


def asked_of_guard(path: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> int:
    """Status of the answer to one request; the application's own names its process."""
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    asyncio.run(Guard(application)({"type": "http", "path": path, "headers": list(headers)}, receive, send))
    assert (b"x-skillttrl-process" in dict(sent[0]["headers"])) == (sent[0]["status"] == 200)
    return int(sent[0]["status"])


def test_the_guard_lets_in_what_is_needed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a-secret")
    key = [(b"authorization", b"Bearer a-secret")]
    assert asked_of_guard("/health") == 200
    assert asked_of_guard("/v1/models") == asked_of_guard("/update_weights") == 401
    assert asked_of_guard("/v1/models", [(b"authorization", b"Bearer a-secre")]) == 401
    assert asked_of_guard("/v1/models", key) == asked_of_guard("/update_weights", key) == 200
    assert asked_of_guard("/collective_rpc", key) == 403
