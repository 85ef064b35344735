"""A budget against a really started server: what could exceed it is not sent, and what a server bills beyond it is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from skill_ttrl.errors import BudgetError
from skill_ttrl.llm.openai.client import Client
from skill_ttrl.llm.openai.ledger import Ledger
from skill_ttrl.llm.openai.replies import Reply
from tests.faulty_server import FaultyServer
from tests.integration.test_openai_client import ASK, ask, client


def test_a_server_that_bills_more_than_it_was_asked_for_is_counted() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 900}
    greedy: tuple[int, Mapping[str, str], Any] = 200, {}, {"choices": [{"message": {"content": "x"}}], "usage": usage}
    ledger = Ledger(max_total_tokens=800)
    with FaultyServer([], first=[greedy]) as server:
        ask(client(server, ledger), lambda asked: asked.chat(ASK, max_tokens=200))
        with pytest.raises(BudgetError, match=r"spent: 909 tokens in 1 request, .*max_total_tokens=800"):
            ask(client(server, ledger), lambda asked: asked.chat(ASK, max_tokens=200))
        assert len(server.asked) == 1
    assert ledger.totals().tokens == 909


def test_no_retry_of_any_request_exceeds_the_budget() -> None:
    """Faults, retries and requests at once: what reaches the server is what is counted, and never more than the budget."""
    ledger = Ledger(max_requests=30)
    with FaultyServer(["500", "429", "drop before the answer", "truncated JSON"], rate=0.5, seed=4) as server:

        async def many(asked: Client) -> list[Any]:
            return await asyncio.gather(*(asked.chat(ASK) for _ in range(60)), return_exceptions=True)

        found = ask(client(server, ledger, max_concurrency=8, max_retries=3), many)
        assert len(server.asked) == ledger.totals().attempts == 30
    assert any(isinstance(each, BudgetError) for each in found)
    assert sum(isinstance(each, Reply) for each in found) == server.delivered["answers"] > 0
