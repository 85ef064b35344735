"""A scripted language model on a really started server, and how a merger or an extractor is told of it. For tests only."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from skill_ttrl.config import EndpointsConfig
from skill_ttrl.skills.querying import LLMEndpoints, OnFailure
from tests.faulty_server import FaultyServer

Script = Callable[[str], Any]
"""The user's message of a request → what the scripted model answers: a text, or an object that is written as JSON."""


@contextmanager
def scripted(*answers: Any, script: Script | None = None, **options: Any) -> Iterator[FaultyServer]:
    """A server whose model gives these answers one after another, the last again and again; or what the script says."""
    left = list(answers)

    def speak(body: Mapping[str, Any], draw: random.Random) -> str:
        said = script(body["messages"][1]["content"]) if script else left.pop(0) if len(left) > 1 else left[0]
        return said if isinstance(said, str) else json.dumps(said)

    with FaultyServer(answer=speak, **{"faults": (), **options}) as server:
        yield server


def models(
    server: FaultyServer, on_failure: OnFailure = "stop", prompts: str | None = None, **more: Any
) -> LLMEndpoints:
    fields: dict[str, Any] = {"model": "scripted", "base_url": server.url, "max_retries": 0, "timeout": 5.0} | more
    return LLMEndpoints(EndpointsConfig(**fields), on_failure, prompts)


def asked(server: FaultyServer) -> list[tuple[str, str]]:
    """System's and user's message of each request."""
    return [tuple(each["content"] for each in request["body"]["messages"][:2]) for request in server.asked]
