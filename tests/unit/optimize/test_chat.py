"""The optimizer's model is counted stage by stage and bounded, whoever's client asks."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.compat.clients import BaseLLMClient, metered
from skill_ttrl.compat.env_rollouts import ClientChat
from skill_ttrl.config import EndpointConfig, EndpointsConfig
from skill_ttrl.errors import BudgetError, ConfigError
from skill_ttrl.llm.openai.ledger import CountedRequest, Ledger, Spend, track_usage
from skill_ttrl.optimize.calls import Calls, Journal
from skill_ttrl.optimize.chat import EndpointChat
from skill_ttrl.optimize.loop import optimize
from skill_ttrl.optimize.reflection.llm_optimizer import LLMOptimizer
from skill_ttrl.prompts.templates import Templates
from tests.faulty_server import FaultyServer
from tests.unit.optimize.test_loop import CONFIG, TASK, World, run


def optimizer(server: FaultyServer, **budget: Any) -> EndpointsConfig:
    return EndpointsConfig.model_validate({"optimizer": {"model": "m", "base_url": server.url}, **budget})


def test_stages_that_ask_at_once_are_counted_apart(tmp_path: Path) -> None:
    with FaultyServer([]) as server, track_usage(tmp_path / "usage.jsonl", optimizer(server)) as ledger:
        with EndpointChat(optimizer(server)) as chat, ledger.phase("optimize"), ThreadPoolExecutor(4) as pool:
            stages = ["analyst_error", "analyst_success"] * 5
            work = [
                pool.submit(copy_context().run, chat, "be brief", "why?", max_tokens=9, stage=stage) for stage in stages
            ]
            replies = [each.result() for each in work]
        assert {each["body"]["max_completion_tokens"] for each in server.asked} == {9}
    assert all(reply.text.startswith("why?") and reply.prompt_tokens and reply.completion_tokens for reply in replies)
    by = ledger.report()["by"]
    assert {stage: by[stage]["optimizer"]["requests"] for stage in by} == {"analyst_error": 5, "analyst_success": 5}


def test_no_other_role_stands_in_for_a_missing_optimizer() -> None:
    teacher = EndpointsConfig.model_validate({"teacher": {"model": "m", "base_url": "http://127.0.0.1:9/v1"}})
    with pytest.raises(ConfigError, match=r"no endpoints\.optimizer.*endpoints\.optimizer\.model"):
        EndpointChat(teacher)


class Own(BaseLLMClient):
    """A client of a user's that tells its tokens, or none."""

    model = "own"

    def __init__(self, usage: dict[str, Any], text: str = "four") -> None:
        self.usage, self.text, self.calls = usage, text, 0

    def chat(self, *, system: str, user: str, **how: Any) -> tuple[str, dict[str, Any]]:
        self.calls += 1
        time.sleep(0.01)
        if self.text == "fails":
            raise ValueError(self.text)
        return self.text, self.usage


def test_a_client_of_the_user_s_is_counted_and_bounded() -> None:
    prices = EndpointConfig(model="own", price_in=1e6, price_out=2e6)
    ledger, own = Ledger(max_requests=6, max_cost=1300.0), Own({"prompt_tokens": 7, "completion_tokens": 3})
    client = metered(own, ledger, prices)
    assert metered(client, ledger) is client
    how: dict[str, Any] = {"system": "s", "user": "u", "max_completion_tokens": 500}
    with ThreadPoolExecutor(8) as pool:  # each could cost 1,162, so they go one after the other
        asked = [pool.submit(client.chat, **how, stage="merge_final") for _ in range(9)]
        ended = [each.exception() for each in asked]
    assert ended.count(None) == own.calls == 6 and all(isinstance(each, BudgetError | None) for each in ended)
    part = ledger.report()["by"]["merge_final"]["optimizer"]
    assert (part["requests"], part["tokens_in"], part["tokens_out"], part["cost"]) == (6, 42, 18, 78.0)


def test_what_a_client_does_not_say_is_estimated_and_a_failure_is_a_request() -> None:
    ledger = Ledger(max_total_tokens=2000)
    metered(Own({}), ledger).chat(system="abcd", user="efgh", max_completion_tokens=99)
    with pytest.raises(ValueError, match="fails"):
        metered(Own({}, "fails"), ledger).chat(system="abcd", user="efgh", max_completion_tokens=99)
    totals = ledger.totals()
    assert (totals.requests, totals.failed, totals.tokens, totals.unpriced) == (2, 1, 3, 1)


def test_an_optimization_stops_before_it_exceeds_its_budget_and_goes_on_with_more(tmp_path: Path) -> None:
    class Client(BaseLLMClient):
        def chat(self, *, system: str, user: str, **how: Any) -> tuple[str, dict[str, Any]]:
            return world.answer(user, str(how["stage"])), {"prompt_tokens": len(user) // 4, "completion_tokens": 40}

    world, whole = World(), World()
    said: list[str] = []
    ended: list[int] = []
    run(whole)
    for budget in (2, 5, 9, 99):
        ledger = Ledger(tmp_path / "usage.jsonl", max_requests=budget)
        calls = Calls(ClientChat(metered(Client(), ledger)), world, Journal(tmp_path / "journal.jsonl"), seed=1)
        optimizer = LLMOptimizer(calls, CONFIG, Templates(base="optimize"))
        try:
            found = optimize(TASK, "", CONFIG, calls, optimizer, seed=1)
            break
        except BudgetError as error:
            said.append(str(error))
            ended.append(ledger.totals().attempts)
    assert ended == [2, 5, 9] and "endpoints.max_requests=9" in said[-1] and found.state.best_score == 1.0
    assert ledger.totals().attempts == whole.requests == ledger.totals().requests  # nothing was paid for twice
    assert {"analyst", "merge"} <= set(ledger.report()["by"])


async def _ask(ledger: Ledger) -> None:
    async with CountedRequest("policy", "command:solve", Spend(requests=1), ledger=ledger) as request:
        request.attempts = 1


def test_a_command_is_a_request() -> None:
    ledger = Ledger(max_requests=1)
    asyncio.run(_ask(ledger))
    assert ledger.totals().attempts == 1 and ledger.report()["cost"] == 0.0
    with pytest.raises(BudgetError, match=r"1 request, .*max_requests=1\. No request is left"):
        asyncio.run(_ask(ledger))
