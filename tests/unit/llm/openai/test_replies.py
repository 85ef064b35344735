"""What servers make of the protocol, and JSON in whatever stands around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from skill_ttrl.config import EndpointConfig
from skill_ttrl.llm.openai.backend import with_stop_text
from skill_ttrl.llm.openai.ledger import Usage
from skill_ttrl.llm.openai.replies import (
    FATAL_KINDS,
    Address,
    MalformedResponse,
    failure_of,
    read_body,
    read_embeddings,
    read_json,
    read_reply,
    response_format,
)
from skill_ttrl.types import ToolCall


class Part(BaseModel):
    text: str


class Thing(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str
    parts: list[Part] = Field(default_factory=list)


def chat(**changes: Any) -> dict[str, Any]:
    choice = {"message": {"content": "yes"}, "finish_reason": "stop"} | changes
    return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "ok"),
        ({"finish_reason": None}, "ok"),
        ({"finish_reason": "length"}, "length"),
        ({"message": {"content": ""}}, "empty"),
        ({"message": {"content": None}}, "empty"),
        ({"message": {"content": None, "refusal": "No."}}, "refusal"),
        ({"finish_reason": "content_filter"}, "filtered"),
        ({"message": {"content": None, "tool_calls": [{}]}}, "tool_call"),
        ({"message": {"content": [{"type": "text", "text": "y"}]}}, "ok"),
    ],
)
def test_each_way_an_answer_can_go_has_a_name(changes: dict[str, Any], outcome: str) -> None:
    assert read_reply(chat(**changes)).outcome == outcome


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ({"name": "a", "arguments": '{"x": 1}'}, ToolCall("a", '{"x": 1}', "call_0")),
        ({"name": "a", "arguments": {"x": 1}}, ToolCall("a", '{"x": 1}', "call_0")),
        ({"name": "a", "arguments": ""}, ToolCall("a", "{}", "call_0")),
        ({"name": "a"}, ToolCall("a", "{}", "call_0")),
        ({"name": 3, "arguments": "[" * 9999}, ToolCall("", "[" * 9999, "call_0", error="not_json")),
        (None, ToolCall("", "{}", "call_0")),
    ],
)
def test_calls_are_read_whatever_a_server_makes_of_them(function: Any, call: ToolCall) -> None:
    message = {"content": None, "tool_calls": [{"function": function}]}
    assert read_reply(chat(message=message)).choices[0].calls == (call,)


NO_CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"choices": []},
    {"choices": [None]},
    {"choices": "x"},
    {"error": {"message": "overloaded"}},
)
NO_MESSAGE = ({"choices": [{"message": None}]}, {"choices": [{"message": {"content": 3}}]})
DEEP = ['{"x":' + "[" * depth + "]" * depth + "}" for depth in (900, 100_000)]
VECTOR = {"index": 0, "embedding": [1.0]}
VECTORS = [(data, 2) for data in (None, [], [VECTOR], [VECTOR, VECTOR])]
VECTORS += [([{"embedding": bad}], 1) for bad in ([float("nan"), 1.0], [], "AAAA", [True, 1])]


@pytest.mark.parametrize(
    ("read", "given"),
    [
        *((read_reply, body) for body in (*NO_CHOICES, *NO_MESSAGE)),
        *((read_body, text) for text in ("", "<html>", "[1]", "{", "[" * 100_000, '{"choices": [{"mess', *DEEP)),
        *((lambda given: read_embeddings({"data": given[0]}, given[1]), each) for each in VECTORS),
    ],
)
def test_an_answer_that_lacks_what_it_must_have_is_unreadable(read: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(MalformedResponse):
        read(given)


def test_tokens_are_taken_as_the_server_counts_them_and_nonsense_is_nothing() -> None:
    body = chat()
    assert read_reply(body).usage == Usage(tokens_in=7, tokens_out=2)
    body["usage"] = {"prompt_tokens": -3, "completion_tokens": "many", "prompt_tokens_details": None}
    assert read_reply(body).usage == Usage()


@pytest.mark.parametrize(
    "text",
    [
        '{"title": "t"}',
        'Sure:\n```json\n{"title": "t"}\n```\nDone.',
        '```\n{"title": "t"}\n```',
        'I think {this} is it: {"title": "t"} and no more.',
        '{"title": "t"} {"title": "second"}',
        '{"thought": 1}\n{"title": "t", "parts": []}',
    ],
)
def test_json_is_found_in_what_stands_around_it(text: str) -> None:
    found, _ = read_json(text, Thing)
    assert found == Thing(title="t")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no object", "there is no JSON object"),
        ('{"title": "unfinished', "there is no JSON object"),
        ('{"title": 3}', "title: Input should be a valid string"),
        ('{"title": "t", "extra": 1}', "extra: Extra inputs"),
        ("{" * 10_000, "there is no JSON object"),
        ('{"a":' * 50_000, "there is no JSON object"),
    ],
)
def test_what_does_not_fit_is_explained(text: str, problem: str) -> None:
    found, said = read_json(text, Thing)
    assert found is None
    assert problem in said and len(said) < 900


def test_the_strict_schema_requires_everything_and_allows_no_more() -> None:
    schema = response_format(Thing)["json_schema"]["schema"]
    assert schema["required"] == ["title", "parts"] and schema["additionalProperties"] is False
    assert schema["$defs"]["Part"]["additionalProperties"] is False
    assert "default" not in schema["properties"]["parts"]


MARK = "</retrieve>"


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ('<retrieve query="x">', None, f'<retrieve query="x">{MARK}'),
        ('<retrieve query="x < 3" ', None, '<retrieve query="x < 3" />'),
        ("<retrieve query='x'", "/>", "<retrieve query='x'/>"),
        ("is a <b", None, "is a <b"),
        ("nothing asked", None, "nothing asked"),
        (f"<retrieve>a{MARK} done", None, f"<retrieve>a{MARK} done"),
        (f"<retrieve>a{MARK} <retrieve>b", None, f"<retrieve>a{MARK} <retrieve>b{MARK}"),
        ("anything", MARK, f"anything{MARK}"),
        (f"kept{MARK}", MARK, f"kept{MARK}"),
        ("<retrieved> is another tag", None, "<retrieved> is another tag"),
    ],
)
def test_a_stop_text_that_a_server_cut_off_is_put_back(text: str, said: str | None, expected: str) -> None:
    assert with_stop_text(text, [MARK, "/>"], said) == expected


@pytest.mark.parametrize("count", [-5, 1e308, 10**400, float("nan"), "7", True])
def test_a_count_that_is_none_is_taken_for_no_count_at_all(count: Any) -> None:
    body = chat(logprobs={"content": [{"logprob": -(10**400)}]}) | {
        "usage": {"prompt_tokens": count, "completion_tokens": 2}
    }
    reply = read_reply(body)
    assert reply.usage == Usage() and reply.choices[0].logprobs is None


def test_half_a_surrogate_pair_does_not_reach_a_file_and_a_secret_is_found_however_it_is_spelled() -> None:
    body = read_body(
        '{"a": ["x\\ud800y", {"\\u0073ecret": "\\ud83d\\ude00"}]}', lambda text: text.replace("secret", "[key]")
    )
    assert body == {"a": ["x\N{REPLACEMENT CHARACTER}y", {"[key]": "\N{GRINNING FACE}"}]}


HERE = Address("http://h/v1", "h", "none", key_variable="OPENAI_API_KEY")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        *((status, "", "refused") for status in (400, 413, 422)),
        *((status, "", "server_error") for status in (409, 529)),
        (307, "", "redirected"),
        (401, "", "unauthorized"),
        (402, "", "quota"),
        (403, "", "forbidden"),
        (404, "", "not_found"),
        (408, "", "timeout"),
        (429, "rate_limit_exceeded", "rate_limited"),
        (429, "insufficient_quota", "quota"),
    ],
)
def test_a_status_has_a_kind(status: int, code: str, kind: str) -> None:
    error = {"code": code, "message": "no"}
    response = httpx.Response(status, request=httpx.Request("POST", "http://h/v1"), json={"error": error})
    raised = openai.APIStatusError("m", response=response, body=error)  # type: ignore[arg-type]  # or httpx2's
    found = failure_of(raised, EndpointConfig(model="m"), "policy", HERE, 1)
    assert found is not None and f"({status})" in str(found) and found.kind == kind
    fatal = ("redirected", "unauthorized", "quota", "forbidden", "not_found")
    assert (kind in FATAL_KINDS) == (kind in fatal)
