"""The client against a really started server that fails on purpose: every request ends in a result or a recorded error."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import logging
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from skill_ttrl.config import EndpointConfig
from skill_ttrl.envs import env_tasks, make_env
from skill_ttrl.errors import EndpointError
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.llm.openai.client import Client
from skill_ttrl.llm.openai.ledger import DELIVERED, Ledger
from skill_ttrl.llm.openai.replies import Reply
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings
from skill_ttrl.train.measure import lists_actions
from skill_ttrl.types import Message
from tests.doors import DOORS
from tests.env_server import ROOT
from tests.faulty_server import FAULTS, FaultyServer
from tests.hostile_server import RAW, attacks
from tests.integration.test_cli_commands import Done, refused, skillttrl
from tests.integration.test_imitation import CONFIG

KEY = "sk-secret-0123456789abcdef"

ASK = [Message("user", "How many?")]

QUICK = {"timeout": 3.0, "max_retries": 8}
"""A timeout that a busy machine does not reach by itself."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's pauses after a lost connection begin at half a second."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


class Titled(BaseModel):
    title: str


def client(server: FaultyServer, ledger: Ledger | None = None, **fields: Any) -> Client:
    config = EndpointConfig.model_validate({"model": "m", "base_url": server.url, **QUICK, **fields})
    return Client(config, "policy", ledger or Ledger())


def ask(asked: Client, work: Callable[[Client], Awaitable[Any]]) -> Any:
    """What `work` gives; the client is closed after it."""

    async def whole() -> Any:
        try:
            return await work(asked)
        finally:
            asked.shut()

    return wait_for(whole())


def outcomes(ledger: Ledger) -> list[str]:
    assert ledger.path is not None
    return [json.loads(line)["outcome"] for line in ledger.path.read_text().splitlines()]


@pytest.mark.slow
def test_hundreds_of_requests_through_every_fault_are_each_counted_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "usage.jsonl")
    with FaultyServer(slow=2.5, seed=3) as server:
        asked = client(server, ledger, max_concurrency=24, max_retries=2, timeout=2.0)

        async def one(number: int) -> Reply | EndpointError:
            try:
                return await asked.chat([Message("user", f"question {number}")], n=1 + number % 3, seed=number)
            except EndpointError as error:
                return error

        async def every(_: Client) -> list[Reply | EndpointError]:
            return await asyncio.gather(*(one(number) for number in range(200)))

        found = ask(asked, every)
        assert set(server.hit) >= set(FAULTS)  # each of them has happened
    replies = [each for each in found if isinstance(each, Reply)]
    errors = [each for each in found if isinstance(each, EndpointError)]
    assert len(replies) + len(errors) == 200
    numbers = [number for number, each in enumerate(found) if isinstance(each, Reply)]
    assert [len(reply.choices) for reply in replies] == [1 + number % 3 for number in numbers]
    for number, reply in zip(numbers, replies, strict=True):  # nobody has another's answer
        assert all(
            f"question {number} " in text or not text or "unfinished" in text
            for text in (each.text for each in reply.choices)
        )
    totals, counted = ledger.totals(), Counter(outcomes(ledger))
    delivered = sum(counted[outcome] for outcome in DELIVERED)
    assert (totals.tokens_in, totals.tokens_out) == (server.delivered["prompt"], server.delivered["answer"])
    assert delivered == server.delivered["answers"]
    assert totals.failed == totals.requests - delivered
    assert totals.failed >= len(errors)
    assert totals.attempts == len(server.asked)
    assert server.busiest <= 24
    assert {"length", "empty", "refusal", "tool_call"} <= set(counted)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("500", "server_error"),
        ("429", "rate_limited"),
        ("drop in the answer", "dropped"),
        ("truncated JSON", "unreadable"),
    ],
)
def test_what_does_not_pass_is_an_error_with_its_kind(fault: str, kind: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "usage.jsonl")
    with FaultyServer([fault], rate=1.0) as server, pytest.raises(EndpointError) as caught:
        ask(client(server, ledger, max_retries=2), lambda asked: asked.chat(ASK))
    assert caught.value.kind == kind and len(server.asked) == 3
    assert "endpoints.roles.policy: 'm' at 127.0.0.1" in str(caught.value)
    assert set(outcomes(ledger)) == {kind} and ledger.totals().attempts == 3
    assert ", 3 times" in str(caught.value)


@pytest.mark.parametrize("fault", ["slow", "drip"])
def test_an_answer_that_takes_too_long_is_a_timeout(fault: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "usage.jsonl")
    with FaultyServer([fault], rate=1.0, slow=1.0) as server, pytest.raises(EndpointError, match="timeout") as caught:
        ask(client(server, ledger, timeout=0.2, max_retries=1), lambda asked: asked.chat(ASK))
    assert caught.value.kind == "timeout" and outcomes(ledger) == ["timeout"] and len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "kind", "advice"),
    [(401, "unauthorized", "OPENAI_API_KEY"), (307, "redirected", "base_url"), (429, "quota", "credit")],
)
def test_a_refusal_is_final_and_says_what_to_do(status: int, kind: str, advice: str) -> None:
    said = {"error": {"message": "no such thing here", "code": "insufficient_quota", "param": "model"}}
    with (
        FaultyServer(
            first=[(status, {"location": "http://127.0.0.1:1/", "x-should-retry": "false"}, said)] * 3
        ) as server,
        pytest.raises(EndpointError) as caught,
    ):
        ask(client(server), lambda asked: asked.chat(ASK))
    text = str(caught.value)
    assert len(server.asked) == 1 and caught.value.kind == kind
    assert f"({status})" in text and "no such thing here" in text and "'m' at 127.0.0.1" in text and advice in text


def test_a_pause_that_a_server_asks_for_is_made_and_an_absent_server_is_named() -> None:
    busy = (429, {"retry-after-ms": "900"}, {"error": {"message": "slow down"}})
    with FaultyServer([], first=[busy]) as server:
        began = time.monotonic()
        ask(client(server), lambda asked: asked.chat(ASK))
        assert time.monotonic() - began >= 0.9 and len(server.asked) == 2
        gone = server.url
    config = EndpointConfig.model_validate({"model": "m", "base_url": gone, **QUICK, "max_retries": 1})
    with pytest.raises(EndpointError) as absent:
        ask(Client(config, "policy", Ledger()), lambda asked: asked.chat(ASK))
    assert absent.value.kind == "unreachable" and gone in str(absent.value)


def test_a_server_without_n_is_asked_for_one_answer_at_a_time_with_seeds_of_their_own() -> None:
    with FaultyServer([]) as server:
        server.refuses = lambda body: "n is not known" if "n" in body else ""
        found = ask(client(server, extra_body={"n": None}), lambda asked: asked.chat(ASK, n=3, seed=1))
        sent = [each["body"] for each in server.asked]
    assert len(found.choices) == 3 and len(sent) == 3 and len({body["seed"] for body in sent}) == 3


def strict(body: Mapping[str, Any]) -> str:
    """Refuses what strict servers refuse: a message without text, and two of one role in a row."""
    roles = [each["role"] for each in body["messages"]]
    if not all(each["content"] and each["content"].strip() for each in body["messages"]):
        return "text content must be non-empty"
    return "roles must alternate" if any(one == next for one, next in itertools.pairwise(roles)) else ""


def test_a_turn_that_says_nothing_is_not_sent() -> None:
    """A model may answer nothing in the middle of an episode: its later turns go on."""
    nothing = " \n"
    turns = [("system", nothing), ("user", "look"), ("assistant", nothing), ("user", "again"), ("assistant", "go")]
    with FaultyServer([]) as server:
        server.refuses = strict
        said = [Message(role, text) for role, text in (*turns, ("user", "and?"), ("assistant", nothing))]  # type: ignore[arg-type]
        assert ask(client(server), lambda asked: asked.chat(said)).choices[0].outcome == "ok"
        sent = server.asked[0]["body"]["messages"]
    assert [(each["role"], each["content"]) for each in sent] == [
        ("user", "look\n\nagain"),
        ("assistant", "go"),
        ("user", "and?"),
    ]


def test_a_field_that_is_null_in_extra_body_is_not_sent() -> None:
    with FaultyServer([]) as server:
        fields = {"seed": None, "temperature": None, "top_k": 5, "max_completion_tokens": None, "max_tokens": 7}
        asked = client(server, extra_body=fields)
        ask(asked, lambda asked: asked.chat(ASK, temperature=1.0, top_p=0.9, seed=3, stop=["x"]))
        assert server.asked[0]["body"] == {
            "model": "m",
            "messages": [{"role": "user", "content": "How many?"}],
            "top_p": 0.9,
            "max_tokens": 7,
            "stop": ["x"],
            "top_k": 5,
        }


def test_json_that_does_not_fit_is_asked_for_again_with_what_was_wrong(tmp_path: Path) -> None:
    said = iter(['{"name": "x"}', 'Here:\n```json\n{"title": "better"}\n```'])
    ledger = Ledger(tmp_path / "usage.jsonl")
    with FaultyServer([], answer=lambda body, draw: next(said)) as server:
        found = ask(client(server, ledger), lambda asked: asked.json(ASK, Titled))
        second = server.asked[1]["body"]
    assert found == Titled(title="better")
    assert second["response_format"]["json_schema"]["schema"]["required"] == ["title"]
    assert [each["role"] for each in second["messages"]] == ["user", "assistant", "user"]
    assert "title: Field required" in second["messages"][-1]["content"]
    assert outcomes(ledger) == ["malformed", "ok"]


@pytest.mark.parametrize("fault", ["malformed content", "empty", "tool call", "length"])
def test_json_that_never_fits_is_an_error_that_was_counted(fault: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "usage.jsonl")
    with (
        FaultyServer([fault], rate=1.0, answer=lambda body, draw: '{"title": "cut') as server,
        pytest.raises(EndpointError, match=r"no Titled in 3 answers: .* Try another") as caught,
    ):
        ask(
            client(server, ledger, extra_body={"response_format": None}),
            lambda asked: asked.json(ASK, Titled, repairs=2),
        )
    assert caught.value.kind == "malformed" and len(server.asked) == 3
    assert "JSON schema" in server.asked[0]["body"]["messages"][-1]["content"]
    assert set(outcomes(ledger)) == {{"malformed content": "malformed", "tool call": "tool_call"}.get(fault, fault)}


def test_azure_is_asked_by_its_own_paths_and_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    with FaultyServer([]) as server:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url.removesuffix("/v1"))
        config = EndpointConfig.model_validate({"model": "my-deployment", "provider": "azure", **QUICK})
        found = ask(Client(config, "policy", Ledger()), lambda asked: asked.chat(ASK))
        sent = server.asked[0]
    assert found.choices[0].outcome == "ok"
    assert sent["path"] == "/openai/deployments/my-deployment/chat/completions?api-version=2024-10-21"
    assert {name.lower(): value for name, value in sent["headers"].items()}["api-key"] == KEY


def test_the_key_is_sent_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where a server says it back, in errors and in answers."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()])
    logging.root.setLevel("DEBUG")
    said: list[str] = []
    echoing: tuple[int, Mapping[str, str], Any] = (
        401,
        {},
        {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}},
    )
    busy: tuple[int, Mapping[str, str], Any] = (500, {}, f"<html>Bearer {KEY}</html>")
    ledger = Ledger(tmp_path / "usage.jsonl")
    with FaultyServer([], first=[echoing, busy, busy], answer=lambda body, draw: f"the key is {KEY}") as server:
        for retries in (0, 1, 1):
            asked = client(server, ledger, max_retries=retries)
            said.append(repr(asked))
            try:
                said.append(ask(asked, lambda asked: asked.chat(ASK)).text)
            except EndpointError as error:
                said += [str(error), repr(error), repr(error.__cause__)]
        sent = [{name.lower(): value for name, value in each["headers"].items()} for each in server.asked]
        assert all(headers["authorization"] == f"Bearer {KEY}" for headers in sent)
    logging.root.setLevel("WARNING")
    out = capfd.readouterr()
    assert "chat/completions" in out.err, "what is logged is seen"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    everything = [*said, out.out, out.err, *(path.read_text() for path in files)]
    assert not any(KEY in text for text in everything)
    assert any("[key]" in text for text in said)


@pytest.mark.parametrize(
    ("coding", "said"), [("gzip", "more than 64 MiB"), ("gzip, gzip", "gzip, gzip"), ("br", "as br")]
)
def test_an_answer_that_memory_has_no_room_for_is_not_read(coding: str, said: str, tmp_path: Path) -> None:
    headers, body = {"content-encoding": coding}, bytes(100 << 20)
    for _ in range(coding.count("gzip")):
        body = gzip.compress(body, 1)
    body = body[: 1 << 20]  # as long as what is compressed
    ledger = Ledger(tmp_path / "usage.jsonl")
    with FaultyServer([], first=[(200, headers, body)]) as server, pytest.raises(EndpointError, match=said) as caught:
        ask(client(server, ledger, max_retries=0), lambda asked: asked.chat(ASK))
    assert caught.value.kind == "unreadable" and outcomes(ledger) == ["unreadable"]


def test_what_a_server_says_cannot_steer_a_terminal() -> None:
    said = {"error": {"message": "\x1b[31mred\x1b]0;title\x07 {0} %s \u202e", "param": "\x1b[31m" + 9000 * "p"}}
    refused = {"choices": [{"message": {"content": None, "refusal": "\x1b[2Jno" + 9000 * "!"}}]}
    with FaultyServer([], first=[(400, {}, said), (200, {}, refused)]) as server:
        for work in (lambda asked: asked.chat(ASK), lambda asked: asked.json(ASK, Titled)):
            with pytest.raises(EndpointError) as caught:
                ask(client(server), work)
            assert str(caught.value).isprintable() and len(str(caught.value)) < 1000


def test_a_proxy_is_asked_for_other_machines_and_not_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyServer([]) as proxy, FaultyServer([]) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        ask(client(server), lambda asked: asked.chat(ASK))
        assert len(server.asked) == 1 and not proxy.asked
        far = EndpointConfig.model_validate({"model": "m", "base_url": "http://far.example/v1", **QUICK})
        assert ask(Client(far, "policy", Ledger()), lambda asked: asked.chat(ASK)).text
        assert proxy.asked[0]["path"] == "http://far.example/v1/chat/completions"


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
    hanging, began = envs.acquire(), time.monotonic()
    assert lists_actions(envs, env_tasks(DOORS, {}), RolloutSettings(Sampling(), 0, rollout_timeout_s=0.3)) is False
    assert time.monotonic() - began < 20 and envs.acquire() is not hanging


def test_what_a_server_may_set_is_taken(hostile: Hostile, config: Path) -> None:
    done = skillttrl("train", config, *hostile.settings("none", **IN_TIME), "-o", config.parent / "run")
    assert done.code == 0, done


def peak() -> int:
    """Most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
