"""The optimizer's model is counted stage by stage and bounded, whoever's client asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from pathlib import Path
from typing import Any

from skill_ttrl.config import EndpointsConfig
from skill_ttrl.llm.openai.ledger import track_usage
from skill_ttrl.optimize.calls import EndpointChat
from tests.faulty_server import FaultyServer


def optimizer(server: FaultyServer, **budget: Any) -> EndpointsConfig:
    return EndpointsConfig.model_validate({"roles": {"optimizer": {"model": "m", "base_url": server.url}}, **budget})


def test_stages_that_ask_at_once_are_counted_apart(tmp_path: Path) -> None:
    with FaultyServer([]) as server, track_usage(tmp_path / "usage.jsonl", optimizer(server)) as ledger:
        with closing(EndpointChat(optimizer(server))) as chat, ledger.phase("optimize"), ThreadPoolExecutor(4) as pool:
            stages = ["analyst_error", "analyst_success"] * 5
            work = [
                pool.submit(copy_context().run, chat, "be brief", "why?", max_tokens=9, stage=stage) for stage in stages
            ]
            replies = [each.result() for each in work]
        assert {each["body"]["max_completion_tokens"] for each in server.asked} == {9}
    assert all(reply.text.startswith("why?") and reply.prompt_tokens and reply.completion_tokens for reply in replies)
    by = ledger.report()["by"]
    assert {stage: by[stage]["optimizer"]["requests"] for stage in by} == {"analyst_error": 5, "analyst_success": 5}
