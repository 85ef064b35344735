"""The chat client under skillrl's name, and skillrl's own, against a really started server of the protocol."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from skillrl.llm.openai_client import OpenAIChatClient as TheirClient

from skill_ttrl import BaseLLMClient, OpenAIChatClient
from skill_ttrl.errors import ConfigError, EndpointError
from tests.faulty_server import FaultyServer

REFUSED: tuple[int, dict[str, str], Any] = (
    400,
    {},
    {"error": {"message": "Unknown parameter: 'max_completion_tokens'.", "param": "max_completion_tokens"}},
)


def shout(body: Mapping[str, Any], draw: random.Random) -> str:
    return f"  {body['messages'][-1]['content'].upper()}\n"


def header(asked: Mapping[str, Any], name: str) -> str:
    return str({key.lower(): value for key, value in asked["headers"].items()}[name])


def test_both_clients_ask_and_answer_the_same() -> None:
    with FaultyServer(rate=0, answer=shout) as server:
        common: dict[str, Any] = {"api_key": "secret-key", "base_url": server.url, "default_temperature": 0.5}
        mine, theirs = OpenAIChatClient("m", **common), TheirClient("m", **common)
        asked: dict[str, Any] = {
            "system": "be loud", "user": "hello there", "max_completion_tokens": 9, "stage": "analyst",
        }  # fmt: skip
        (text, used), expected = mine.chat(**asked), theirs.chat(**asked)
        assert (text, used | {"total_tokens": None}) == expected  # this server does not add up
        assert (text, used["total_tokens"]) == ("HELLO THERE", 6)
        assert mine.chat(system="", user="", temperature=0.0)[0] == theirs.chat(system="", user="", temperature=0.0)[0]
        mine.close()
    bodies = [each["body"] for each in server.asked]
    assert bodies[0] == bodies[1] and bodies[2] == bodies[3]
    assert bodies[0]["temperature"] == 0.5 and bodies[2]["temperature"] == 0.0
    assert {header(each, "authorization") for each in server.asked} == {"Bearer secret-key"}
    assert isinstance(mine, BaseLLMClient) and mine.model == "m"


def test_a_server_that_knows_only_max_tokens_is_asked_so_from_then_on() -> None:
    with FaultyServer(rate=0, first=[REFUSED], answer=shout) as server:
        client = OpenAIChatClient("m", base_url=server.url)
        assert [client.chat(system="s", user="u", max_completion_tokens=7)[0] for _ in range(2)] == ["U", "U"]
        client.close()
    limits = [{k: v for k, v in each["body"].items() if k.startswith("max")} for each in server.asked]
    assert limits == [{"max_completion_tokens": 7}, {"max_tokens": 7}, {"max_tokens": 7}]


def test_a_request_that_comes_to_nothing_is_an_error_and_not_an_empty_answer() -> None:
    refused: tuple[int, dict[str, str], Any] = (400, {}, {"error": {"message": "the prompt is too long"}})
    with FaultyServer(rate=0, first=[refused, refused]) as server:
        assert TheirClient("m", api_key="k", base_url=server.url).chat(system="s", user="u", retries=1)[0] == ""
        client = OpenAIChatClient("m", base_url=server.url)
        with pytest.raises(EndpointError, match="the prompt is too long") as caught:
            client.chat(system="s", user="u", retries=1)
        client.close()
    assert caught.value.kind == "refused"


def test_azure_is_asked_by_deployment_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-key")
    with FaultyServer(rate=0, answer=shout) as server:
        client = OpenAIChatClient("mine", azure_endpoint=server.url.removesuffix("/v1"), api_version="2024-10-21")
        assert client.chat(system="s", user="u")[0] == "U"
        client.close()
    (asked,) = server.asked
    assert asked["path"].startswith("/openai/deployments/mine/chat/completions?api-version=2024-10-21")
    assert header(asked, "api-key") == "azure-key"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "OPENAI_API_KEY is not set.* pass api_key="),
        ({"base_url": "localhost:8000"}, "an address must start with http"),
        ({"base_url": "http://localhost:1", "timeout": 0}, "timeout"),
    ],
)
def test_what_is_missing_is_found_at_once(given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match=said):
        OpenAIChatClient("gpt", **given)
