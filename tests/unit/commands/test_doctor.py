"""`doctor` and `--dry-run`: what this machine has, what a config needs, what its hosts answer (keys are never shown), what keeps a run from starting."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from skill_ttrl.commands.doctor import Check, Diagnosis, diagnose, host_checks
from skill_ttrl.commands.dry_run import DryRun, PhaseSize, dry_run
from skill_ttrl.config import SkillTTRLConfig, load_config

KEY = "sk-very-secret-0123456789"
BASE: dict[str, Any] = {
    "model": {"path": "builtin", "builtin": {"hidden_size": 128, "heads": 4, "max_positions": 256}},
    "agent": {"template": "plain"},
    "data": {"train": {"path": "synthetic:add"}, "max_prompt_tokens": 64},
    "rollout": {"max_new_tokens": 32},
    "runtime": {"device": "cpu"},
}
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
            if key is not None and given != key:
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
    backend = ["rollout.backend=openai", "endpoints.model=small", f"endpoints.base_url={address}/v1"]
    return config(*backend, *overrides)


def served_at(address: str) -> SkillTTRLConfig:
    return config("rollout.backend=vllm", "vllm.mode=server", f"vllm.servers=[{address}]")


def named(found: Diagnosis | list[Check], name: str) -> Check:
    checks = found.checks if isinstance(found, Diagnosis) else found
    return next(each for each in checks if each.name.startswith(name))


def failures(found: Diagnosis) -> list[Check]:
    return [each for each in found.checks if each.status == "fail"]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "AZURE_OPENAI_API_KEY", "SKILLTTRL_SERVER_KEY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_this_installation_is_whole_and_a_config_that_runs_here_has_no_failure() -> None:
    machine = diagnose()
    assert not machine.failed
    assert "torch 2" in named(machine, "packages").found
    found = diagnose(config("phases=[sft, rl]", "sft.data.path=synthetic:add"))
    assert not found.failed, failures(found)
    assert named(found, "tasks").found.startswith("256 to train on")
    assert "of them trainable" in named(found, "model").found


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rl.reward=majorty"], "majority"),
        (["rollout.backend=openai", "endpoints.model=gpt"], "OPENAI_API_KEY"),
        (["rollout.backend=none", "program.argv=[cat]", "data.eval.path=nothing.json"], "nothing.json"),
        (["program.argv=python3 nowhere.py"], "there is no file nowhere.py"),
        (["skills={merger: openai, embedder: hash, index: memory}"], "endpoints.roles.merger"),
    ],
)
def test_a_problem_of_a_config_is_a_failure_that_names_the_key_or_the_choice(overrides: list[str], words: str) -> None:
    found = diagnose(config(*overrides))
    assert found.failed and any(words in f"{each.found} {each.advice}" for each in failures(found)), failures(found)


def test_a_package_that_breaks_where_it_is_imported_fails_its_checks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("skill_ttrl.rl.device.gpus", broken)
    monkeypatch.setattr("skill_ttrl.commands.dry_run.count_parameters", broken)
    found = diagnose(config())
    assert {each.name for each in failures(found)} == {"gpu", "config"}
    assert "torchvision::nms" in named(found, "gpu").found


@pytest.mark.vllm
def test_an_installed_vllm_is_checked_against_the_config() -> None:
    pytest.importorskip("vllm")
    found = diagnose(config("rollout.backend=vllm"))
    assert not found.failed, failures(found)
    wrong = diagnose(config("rollout.backend=vllm", "rollout.top_p=0.9"))
    assert "rollout.top_p=0.9" in named(wrong, "config").found


def models(length: int) -> Replies:
    return {"/v1/models": (200, {"data": [{"id": "policy", "max_model_len": length}]})}


def test_vllm_servers_are_asked_whether_they_are_ready_for_how_many_tokens_and_with_which_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted_host(models(96)) as (address, _):
        assert named(host_checks(served_at(address)), f"vllm server {address}").status == "ok"
    with scripted_host(models(95)) as (address, _):
        found = named(host_checks(served_at(address)), "vllm server")
        assert found.status == "fail" and "vllm.max_model_len=96" in found.advice
    found = named(host_checks(served_at(address)), "vllm server")  # the host is gone
    assert found.status == "fail" and "skillttrl serve" in found.advice
    with scripted_host(models(96), key=KEY) as (address, _):
        found = named(host_checks(served_at(address)), "vllm server")
        assert found.status == "fail" and "SKILLTTRL_SERVER_KEY" in found.advice
        monkeypatch.setenv("SKILLTTRL_SERVER_KEY", KEY)
        assert named(host_checks(served_at(address)), "vllm server").status == "ok"


def test_endpoint_that_answers_is_ok_and_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody is there: this machine is asked without it
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with scripted_host({"/v1/models": (200, {"data": [{"id": "small"}]})}, key=KEY) as (address, _):
        found = diagnose(policy_at(address, "model.path=./nothing"))
    assert named(found, "endpoint policy").found.endswith("(key from OPENAI_API_KEY): it answers")
    assert not found.failed, failures(found)


@pytest.mark.parametrize(
    ("replies", "status", "text"),
    [
        ({"/v1/models": (200, {"data": [{"id": "large\x1b[2J"}]})}, "warn", "large"),
        ({}, "warn", "HTTP 404"),
        ({"/v1/models": (500, {})}, "fail", "HTTP 500"),
        ({"/v1/models": (200, "<html>")}, "ok", "answers"),
    ],
)
def test_what_a_host_answers_is_reported_without_control_characters(replies: Replies, status: str, text: str) -> None:
    with scripted_host(replies) as (address, _):
        found = named(host_checks(policy_at(address)), "endpoint policy")
    assert found.status == status and text in found.found and "\x1b" not in found.found


def test_keys_are_never_shown_and_never_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    keyed = "endpoints.api_key_env=MY_KEY"
    with scripted_host({}, key="another") as (address, asked):
        found = diagnose(policy_at(address, keyed))
        assert "HTTP 401" in named(found, "endpoint policy").found and "MY_KEY" in named(found, "endpoint policy").found
        before = len(asked)
        with scripted_host({"/v1/models": (302, f"{address}/v1/models")}) as (first, _):
            other = diagnose(policy_at(first, keyed))
        assert len(asked) == before  # the redirect was not followed
    assert "HTTP 302" in named(other, "endpoint policy").found
    gone = diagnose(policy_at(address, keyed))
    assert named(gone, "endpoint policy").status == "fail"
    assert KEY not in json.dumps([asdict(found), asdict(other), asdict(gone)])


HOUSE = """
import gymnasium
from skill_ttrl.envs.text_env import TextEnv
from skill_ttrl.types import Task


class House(TextEnv):
    '''A door.'''

    def __init__(self, slow: bool = False) -> None:
        super().__init__()

    @classmethod
    def prepare(cls, progress, slow: bool = False) -> None:
        if slow:
            progress(1, 9000)
            raise AssertionError("went on")

    def tasks(self, split=None):
        count = {"train": 6, "test": 4}[split or "train"]
        return [Task(f"{split}-{n}", "House-v0", options={"question": f"{split} {n}"}, split=split) for n in range(count)]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "A door.", {"won": False}

    def step(self, action):
        return "Open.", 1.0, True, False, {"won": True}


gymnasium.register("House-v0", entry_point=House)
"""
OWN = ["data.train=null", "data.eval=null", "env.id=preflight_house:House-v0"]


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "preflight_house.py").write_text(HOUSE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    gymnasium.registry.pop("House-v0", None)
    sys.modules.pop("preflight_house", None)


def planned(path: Path, *overrides: str) -> DryRun:
    return dry_run(load_config(path, overrides))


@pytest.mark.usefixtures("house")
def test_tasks_of_an_environment_are_counted_where_that_is_quick(tiny_yaml: Path) -> None:
    found = planned(tiny_yaml, *OWN)
    assert found.exit_code == 0, found.obstacles
    assert (found.train_tasks, found.phases[-1]) == (6, PhaseSize("evaluate", prompts=4, samples=12))
    few = planned(tiny_yaml, *OWN, "rl.prompts_per_step=7")
    assert few.exit_code == 2 and "training tasks is 6" in few.obstacles[0]


@pytest.mark.usefixtures("house")
def test_where_counting_takes_long_that_is_said_and_not_done(tiny_yaml: Path) -> None:
    slow = [*OWN, "env.kwargs.slow=true"]
    found = planned(tiny_yaml, *slow)
    assert found.exit_code == 0 and found.phases[-1] == PhaseSize("evaluate") and found.train_tasks is None
    assert any("9,000" in text for text in found.notes)
    said = planned(tiny_yaml, *slow, "env.train_tasks=5", "env.eval_tasks=3")
    assert not any("not known" in text for text in said.notes)


def test_the_sizes_of_each_phase_are_stated() -> None:
    found = dry_run(load_config("quickstart"))
    assert (found.train_tasks, found.evaluated_tasks, found.exit_code) == (256, 128, 0)
    assert found.phases[:2] == [PhaseSize("sft", 500, 64, 32_000), PhaseSize("rl", 20, 32, 20_480)]
    assert "of them trainable" in found.model


ANSWERS = ["42", "leaves", "3.50", "$5", "", "St. Petersburg", "5, because 2+3. So it is 6"]


def test_answers_are_counted_and_those_that_are_read_otherwise_are_named(
    tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"How much is {place}?", "answer": answer} for place, answer in enumerate(ANSWERS)]
    Path("own.jsonl").write_text("\ufeff" + "".join(json.dumps(row) + "\r\n" for row in rows), encoding="utf-8")
    Path("long.jsonl").write_text(json.dumps({"prompt": "ü" * 100}) + "\n" + json.dumps({"prompt": "日本語"}) + "\n")
    found = planned(tiny_yaml, "data.eval={path: own.jsonl}", "data.train={path: long.jsonl}", "rl.prompts_per_step=1")
    long, own = found.data
    assert (own.problems, own.answers, own.kinds) == (7, 6, {"number": 3, "text": 3})
    assert own.missing == ["own.jsonl:5"] and not long.missing
    assert own.unread == [
        "own.jsonl:6: St. Petersburg (read: St)",
        "own.jsonl:7: 5, because 2+3. So it is 6 (read: 5)",
    ]
    assert own.prompt_tokens is not None and own.prompt_tokens[0] <= own.prompt_tokens[1] <= own.prompt_tokens[2] <= 48
    assert (long.answers, long.too_long, long.unread) == (0, 1, []) and long.prompt_tokens is not None
    assert any("1 of 7 problems in own.jsonl have no answer" in text for text in found.notes)
    assert found.exit_code == 0 and found.memory is not None and "GB at the peak" in str(found.memory)


def test_a_run_that_has_begun_does_not_need_the_bank_it_began_with(tiny_skills_yaml: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    found = load_config(tiny_skills_yaml, ["phases=[rl]", "skills.bank=./none"])
    checked = (dry_run(found, output=tmp_path / name, resume="auto") for name in ("new", "run"))
    assert [any("skills.bank" in text for text in each.obstacles) for each in checked] == [True, False]
