"""Agent programs through the gateway: what the openai SDK gets, what is recorded, and what attacks come to. The SDK and sockets are real."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import openai
import pytest
import torch

from skill_ttrl.errors import BudgetError, WorkerError
from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling, wait_for
from skill_ttrl.llm.hand_over import PLACE, AbandonedError, BatchingBackend
from skill_ttrl.llm.hf.backend import HFBackend
from skill_ttrl.rl.batch import pack
from skill_ttrl.rollout import gateway as gateway_module
from skill_ttrl.rollout.gateway import Gateway
from skill_ttrl.types import Group, Task, Trajectory
from tests.scripted_backend import ScriptedBackend
from tests.unit.rollout.test_tools import Spoken
from tests.unit.rollout.test_tools import call as written

TASK = Task("one", "SkillTTRL/Math-v0")
ASKED = {"role": "user", "content": "Compute 12+34."}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS, "strict": True}}


def through(backend: Any, *programs: Callable[[openai.OpenAI], None], **options: Any) -> list[Any]:
    """Run programs at once, each with a session of its own."""

    async def run() -> list[Any]:
        async with Gateway(backend, Sampling(max_new_tokens=8), **options) as gateway:
            sessions = [gateway.session(seed) for seed in range(len(programs))]
            clients = [openai.OpenAI(base_url=each.url, api_key=each.key, max_retries=0) for each in sessions]
            await asyncio.gather(*map(asyncio.to_thread, programs, clients))
            return sessions

    return wait_for(run())


def ask(client: Any, *messages: Any, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": "policy", "messages": list(messages)} | more)


@pytest.fixture
def backend(tiny_model: tuple[Any, Any]) -> Backend:
    return BatchingBackend(HFBackend(*tiny_model), lambda: 1)


def tokens(call: Any) -> Any:
    return call.prompt_ids + call.completion.token_ids


def test_a_plain_call(backend: Any) -> None:
    found: list[Any] = []

    def program(client: openai.OpenAI) -> None:
        found.append(ask(client, ASKED, n=2, seed=4, logprobs=True, temperature=0, max_tokens=5))
        found.append(ask(client, ASKED, n=2, seed=4))
        found.append(client.models.list().data[0].id)

    (session,) = through(backend, program)
    first, again, model = found
    assert model == first.model == "policy" and [choice.index for choice in first.choices] == [0, 1]
    assert len(session.calls) == 4 and session.error is None
    for choice, call in zip(first.choices, session.calls, strict=False):
        assert choice.message.content == call.completion.text and choice.finish_reason == "length"
        assert [row.logprob for row in choice.logprobs.content] == list(call.completion.logprobs)
        assert call.observation == "Compute 12+34."
    assert first.usage.prompt_tokens == len(session.calls[0].prompt_ids) and first.usage.completion_tokens == 10
    texts = [[choice.message.content for choice in each.choices] for each in (first, again)]
    assert all(long.startswith(short) for short, long in zip(*texts, strict=True))  # the seed is the same


def test_conversations_become_sequences_whose_logprobs_are_those_of_a_fresh_forward_pass(
    backend: Any, tiny_model: tuple[Any, Any]
) -> None:
    def program(client: openai.OpenAI) -> None:
        talk: list[Any] = [ASKED]
        for question in ("And 1+2?", "And 3?"):
            ask(client, {"role": "system", "content": "A sub-agent."}, {"role": "user", "content": question})
            said = ask(client, *talk).choices[0].message
            asked = {"role": "user", "content": [{"type": "text", "text": question}]}
            talk += [said.model_dump(exclude_none=True), asked]
        ask(client, *talk)
        ask(client, ASKED, {"role": "assistant", "content": "a summary"}, talk[-1])

    (session,) = through(backend, program)
    other, another, one, two, three, compacted = session.calls
    assert two.prompt_ids[: len(tokens(one))] == tokens(one) and two.observation == "And 1+2?"
    assert three.prompt_ids[: len(tokens(two))] == tokens(two) and three.observation == "And 3?"
    for branch in (other, another, compacted):
        assert all(branch.prompt_ids[: len(tokens(each))] != tokens(each) for each in (one, two, three))
    steps = tuple(session.calls)
    packed = pack([Group(TASK, (Trajectory(TASK, steps, None, "terminated"),))], join=True)
    assert len(packed) == 4  # the conversation is one item, though a sub-agent spoke in between
    model = tiny_model[0]
    for call in session.calls:
        with torch.no_grad():
            logits = model(torch.tensor([tokens(call)])).logits[0].float()
        rows = logits.log_softmax(-1)[len(call.prompt_ids) - 1 : -1]
        fresh = rows.gather(1, torch.tensor(call.completion.token_ids)[:, None])[:, 0]
        assert fresh.tolist() == pytest.approx(list(call.completion.logprobs), abs=1e-4)


def test_tools_with_parallel_calls_and_results(tiny_model: tuple[Any, Any]) -> None:
    said = [
        "<think>Two.</think>I add." + written("add", a=1) + written("add", a=2),
        written("add", a=3) + "<tool_call>{</tool_call>",
    ]
    said += ["3 and done.", written("add", a=4), "No tool."]
    found: list[Any] = []

    def program(client: openai.OpenAI) -> None:
        talk: list[Any] = [{"role": "developer", "content": "Add."}, ASKED]
        for _ in range(2):
            message = ask(client, *talk, tools=[ADD], tool_choice="required").choices[0].message
            found.append(message)
            asked = message.model_dump(exclude_none=True)
            for each in asked["tool_calls"]:  # as pydantic-ai writes them anew
                each["function"]["arguments"] = each["function"]["arguments"].replace(": ", ":")
            numbers = [(each.id, json.loads(each.function.arguments)["a"]) for each in message.tool_calls]
            talk += [asked, *({"role": "tool", "tool_call_id": id, "content": f"<{a}>"} for id, a in numbers)]
        found.append(ask(client, *talk, tools=[ADD]).choices[0])
        talk += [{"role": "assistant", "content": " 3 and done.\n"}, ASKED]
        found.append(ask(client, *talk, tools=[ADD], tool_choice="none").choices[0])
        found.append(ask(client, ASKED).choices[0])
        with pytest.raises(openai.BadRequestError, match="which no earlier message calls"):
            ask(client, ASKED, {"role": "tool", "tool_call_id": "x", "content": "3"})

    (session,) = through(Spoken(tiny_model[1], said), program)
    two, one, done, none, _ = found
    assert two.content == "<think>\nTwo.\n</think>\n\nI add."
    one_of, other = two.tool_calls
    assert (one_of.id, one_of.function.name, one_of.function.arguments) == ("call00001", "add", '{"a": 1}')
    assert (other.id, other.function.arguments) == ("call00002", '{"a": 2}')
    assert one.content == "<tool_call>{</tool_call>" and len(one.tool_calls) == 1
    assert (done.message.tool_calls, done.finish_reason) == (None, "stop")
    assert none.message.content == said[3] and none.message.tool_calls is None
    assert [len(each.calls) for each in session.calls] == [2, 1, 0, 0, 0]
    assert [each.observation for each in session.calls][1:3] == ["<1>\n\n<2>", "<3>"]
    *chain, alone = session.calls
    for before, after in pairwise(chain):
        assert after.prompt_ids[: len(tokens(before))] == tokens(before)
    assert alone.prompt_ids[:4] != chain[0].prompt_ids[:4]
    text = tiny_model[1].decode(chain[2].prompt_ids)
    assert text.count("<|im_start|>tool\n") == 3 and "<2>" in text


def test_streams_end_with_what_a_whole_answer_says(tiny_model: tuple[Any, Any]) -> None:
    chunks: list[list[Any]] = []

    def program(client: openai.OpenAI) -> None:
        for _ in range(2):
            more = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
            chunks.append(list(ask(client, ASKED, tools=[ADD], stop=["END", "34"], parallel_tool_calls=False, **more)))

    (session,) = through(Spoken(tiny_model[1], [written("add", a=1) + written("add", a=2), "12 END 34"]), program)
    (first, last, usage), (plain, _, _) = chunks
    (delta,) = first.choices[0].delta.tool_calls
    assert (first.choices[0].delta.role, delta.index, delta.function.name) == ("assistant", 0, "add")
    assert last.choices[0].finish_reason == "tool_calls" and first.usage is None
    assert usage.choices == [] and usage.usage.completion_tokens == len(session.calls[0].completion.token_ids)
    assert plain.choices[0].delta.content == "12 " and session.calls[1].completion.text == "12 END 34"
    assert len(plain.choices[0].logprobs.content) == len(session.calls[1].completion.token_ids)


def test_a_stop_text_that_is_put_back_makes_no_branch(tiny_model: tuple[Any, Any]) -> None:
    def program(client: openai.OpenAI) -> None:
        said = ask(client, ASKED, stop="</code>").choices[0].message.content
        ask(client, ASKED, {"role": "assistant", "content": f"{said}</code>"}, ASKED)

    (session,) = through(Spoken(tiny_model[1], ["12</code>"]), program)
    assert session.calls[1].prompt_ids[: len(tokens(session.calls[0]))] == tokens(session.calls[0])


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "only 'policy'"),
        ({"messages": []}, openai.BadRequestError, "messages: "),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, openai.BadRequestError, "no images"),
        ({"messages": [ASKED | {"content": "12 " * 200}]}, openai.BadRequestError, "at most 127 fit"),
        ({"messages": [ASKED | {"content": "12 " * 20}]}, openai.BadRequestError, "at most 40 fit"),
        ({"messages": [ASKED | {"content": " " * 10_000}]}, openai.BadRequestError, "Shorten the messages"),
        ({"messages": [ASKED | {"content": " " * (5 << 20)}]}, openai.APIStatusError, "at most 4,194,304 bytes"),
        ({"top_logprobs": 3}, openai.BadRequestError, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
        ({"n": 10**6}, openai.BadRequestError, "n: "),
    ],
)
def test_what_cannot_be_answered_is_an_error_of_the_sdk(
    backend: Any, asked: dict[str, Any], kind: type[openai.APIStatusError], said: str
) -> None:
    def program(client: openai.OpenAI) -> None:
        with pytest.raises(kind, match=said) as refused:
            ask(client, ASKED, **asked)
        assert isinstance(refused.value.body, dict) and refused.value.body["message"] in str(refused.value)

    (session,) = through(backend, program, max_prompt_tokens=40 if "40" in said else None)
    assert session.calls == [] and session.error is None


class Failing(ScriptedBackend):
    """Raises an error, or gives one as the completion."""

    def __init__(self, error: BaseException | str) -> None:
        super().__init__(["12"])
        self.error = error

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        assert PLACE.get() == 7  # it runs in the context of the rollout, in which budgets are
        if isinstance(self.error, BaseException):
            raise self.error
        (found,) = await super().generate(requests, sampling, seed=seed)
        return [replace(found, completions=(replace(found.completions[0], finish_reason="error", error=self.error),))]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (BudgetError("The budget is spent."), openai.RateLimitError, "The budget is spent"),
        (WorkerError("A worker is gone."), openai.InternalServerError, "WorkerError: A worker"),
        (TimeoutError("too late"), openai.InternalServerError, "TimeoutError"),
        (AbandonedError(), openai.InternalServerError, "AbandonedError"),
        ("The server's filter cut it.", openai.InternalServerError, "filter cut it"),
    ],
)
def test_a_failure_of_the_sampler_reaches_the_program_and_the_rollout(
    error: BaseException | str, kind: type[openai.APIStatusError], said: str
) -> None:
    def program(client: openai.OpenAI) -> None:
        for _ in range(2):
            with pytest.raises(kind, match=said) as failed:
                ask(client.with_options(max_retries=2), ASKED)
            assert failed.value.response.headers["x-should-retry"] == "false"
            assert failed.value.code == ("insufficient_quota" if isinstance(error, BudgetError) else None)

    place = PLACE.set(7)
    try:
        (session,) = through(Failing(error), program)
    finally:
        PLACE.reset(place)
    assert session.calls == [] and session.error is (error if isinstance(error, BaseException) else None)


class Hanging(ScriptedBackend):
    """Answers nobody, and counts who was cancelled."""

    cancelled = 0

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError


def test_calls_of_a_program_that_is_gone_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "POLL_S", 0.05)
    monkeypatch.setattr(gateway_module, "MAX_CALLS", 2)
    backend = Hanging(["12"])

    async def run() -> list[Any]:
        async with Gateway(backend, Sampling()) as gateway:
            gone, closed, crowd = (gateway.session(seed) for seed in range(3))
            clients = [
                openai.AsyncOpenAI(base_url=each.url, api_key=each.key, max_retries=0) for each in (gone, closed, crowd)
            ]
            with pytest.raises(openai.APITimeoutError):
                await ask(clients[0].with_options(timeout=0.3), ASKED)
            while not backend.cancelled:
                await asyncio.sleep(0.02)
            waiting = [asyncio.create_task(ask(client, ASKED)) for client in clients[1:] for _ in range(2)]
            while not len(closed.running) == len(crowd.running) == 2:
                await asyncio.sleep(0.02)
            with pytest.raises(openai.RateLimitError, match="at most 2 calls"):
                await ask(clients[2], ASKED)
            closed.close()
            with pytest.raises(openai.AuthenticationError):
                await ask(clients[1], ASKED)
        return await asyncio.gather(*waiting, return_exceptions=True)

    ended = wait_for(run())
    assert backend.cancelled == 5
    assert all(isinstance(each, openai.InternalServerError) and each.status_code == 503 for each in ended)


def test_a_slow_a_silent_and_a_hostile_client_stop_no_other(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "MAX_WAITING", 16)
    kept: list[socket.socket] = []

    def send(client: openai.OpenAI, request: bytes) -> bytes:
        connection = socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=30)
        kept.append(connection)
        connection.sendall(request)
        return b"" if request[-4:] != b"\r\n\r\n" else connection.recv(1 << 16)

    def hostile(client: openai.OpenAI) -> None:
        head = b"POST /0/v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer " + client.api_key.encode()
        json_head = head + b"\r\nContent-Type: application/json\r\nContent-Length: "
        for _ in range(40):
            send(client, b"")  # silent
            send(client, head[:20])  # slow headers
            send(client, json_head + b"100\r\n\r\n{")  # a slow body
            kept_alive = head.replace(b"POST /0/v1/chat/completions", b"GET /0/v1/models") + b"\r\n\r\n"
            assert b" 200 " in send(client, kept_alive)
        assert b" 413 " in send(client, json_head + b"999999999999\r\n\r\n")
        assert b" 411 " in send(client, json_head + b"-1\r\n\r\n")
        assert b" 415 " in send(client, head + b"\r\nContent-Length: 2\r\n\r\n")
        assert b" 400 " in send(client, b"\x00\xff\x16\x03 garbage in many words\r\n\r\n")
        assert b" 431 " in send(client, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n\r\n")
        sent = {"Authorization": f"Bearer {client.api_key}", "Content-Type": "application/json"}
        with httpx.Client(headers=sent, trust_env=False) as raw:
            root = str(client.base_url.copy_with(path="/"))
            for body in (b"", b"{", b"[" * 100_000, b"\xff\xfe", b"9" * 5000, b"[]", b'{"model": "policy"}', b"null"):
                answer = raw.post(f"{root}0/v1/chat/completions", content=body)
                assert answer.status_code == 400 and answer.json()["error"]["message"]
            paths = "../etc/passwd 0/v1/../../../etc/passwd 0/v1/%2e%2e/models 999/v1/models 0/v1/files"
            for path in paths.split():
                assert b"passwd" not in (found := raw.get(root + path)).content and found.status_code in (401, 404)
            assert raw.get(f"{root}1/v1/models").status_code == 401  # the key of another rollout
        with pytest.raises(openai.AuthenticationError, match="not that of this address"):
            ask(client.with_options(api_key=client.api_key + "x"), ASKED)
        with pytest.raises(openai.NotFoundError, match="no such route"):
            client.responses.create(model="policy", input="12")

    def honest(client: openai.OpenAI) -> None:
        for _ in range(30):
            ask(client.with_options(timeout=30, max_retries=2), ASKED, max_tokens=2)

    bad, *good = through(backend, hostile, honest, honest)
    assert bad.calls == [] and [len(each.calls) for each in good] == [30, 30]
    assert kept[0].recv(1) == b""  # of those that only wait, the longest there were closed
    for connection in kept:
        connection.close()
