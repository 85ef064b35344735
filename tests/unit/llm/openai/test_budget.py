"""Reservations: whatever is asked at once and in whatever order it ends, what is spent is never more than the budget."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.config import EndpointConfig
from skill_ttrl.errors import BudgetError
from skill_ttrl.llm.openai.client import CHAT, EMBEDDINGS, Client
from skill_ttrl.llm.openai.ledger import CountedRequest, Ledger, Spend, Tokens, Totals

REQUEST = st.tuples(
    st.integers(1, 40),  # most tokens
    st.floats(0, 1),  # share of them that is billed
    st.integers(1, 3),  # attempts that are wanted
    st.integers(0, 3),  # turns of the event loop that it takes
    st.sampled_from(["", "fails", "cancelled", "never sent"]),
)
PRICED = EndpointConfig(model="m", price_in=1e6 / 8)


def reserved(ledger: Ledger, tokens: int = 0, requests: int = 1, role: str = "policy") -> CountedRequest:
    return CountedRequest(role, "m", Spend(tokens, tokens / 8, requests), ledger=ledger, prices=PRICED)


def spend(ledger: Ledger, tokens: int, role: str = "policy") -> None:
    with reserved(ledger, tokens, role=role) as request:
        request.attempts, request.tokens = 1, Tokens(tokens)


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUEST, max_size=12), st.integers(1, 90), st.integers(1, 14), st.sampled_from([0, 2]))
def test_no_schedule_of_requests_within_their_bounds_exceeds_a_budget(
    requests: list[tuple[int, float, int, int, str]], most_tokens: int, most_requests: int, loops: int
) -> None:
    ledger = Ledger(max_total_tokens=most_tokens, max_cost=most_tokens / 9, max_requests=most_requests)
    seen: list[Totals] = []

    async def request(most: int, share: float, attempts: int, turns: int, end: str) -> None:
        try:
            async with reserved(ledger, most, attempts) as asked:
                for _ in range(turns):
                    await asyncio.sleep(0)
                asked.attempts, asked.tokens = (asked.allowed if end != "never sent" else 0), Tokens(int(most * share))
                if end in ("fails", "cancelled"):
                    raise asyncio.CancelledError if end == "cancelled" else ValueError
        except (BudgetError, ValueError, asyncio.CancelledError):
            pass
        seen.append(ledger.totals())

    async def all_of(chosen: list[tuple[int, float, int, int, str]]) -> None:
        async with asyncio.timeout(20):  # a schedule in which all wait would never end
            await asyncio.gather(*(request(*each) for each in chosen))

    if loops:
        with ThreadPoolExecutor(loops) as pool:
            list(pool.map(lambda place: asyncio.run(all_of(requests[place::loops])), range(loops)))
    else:
        asyncio.run(all_of(requests))
    for spent in seen:
        assert spent.tokens <= most_tokens and spent.attempts <= most_requests and spent.cost <= most_tokens / 9


def test_a_request_waits_for_those_on_their_way_and_goes_when_they_took_less() -> None:
    ledger, begun = Ledger(max_total_tokens=100), threading.Event()

    def wait() -> None:
        spend(ledger, 60)
        begun.set()

    thread = threading.Thread(target=wait, daemon=True)
    with reserved(ledger, 90) as first:
        thread.start()
        assert not begun.wait(0.05)
        first.attempts, first.tokens = 1, Tokens(40)
    assert begun.wait(5)
    with pytest.raises(BudgetError, match=r"could take 61 .*rollout\.max_new"):
        spend(ledger, 61)  # at once: what is on its way cannot change it


def test_as_many_attempts_are_allowed_as_requests_are_left_and_many_threads_are_refused_at_once() -> None:
    ledger = Ledger(max_requests=3)
    with reserved(ledger, requests=7) as first:
        assert first.allowed == 3
        first.attempts = 2
    with reserved(ledger, requests=7) as second:
        assert second.allowed == 1
        second.attempts = 1

    def refused(place: int) -> str:
        with pytest.raises(BudgetError, match="The budget is spent") as said:
            spend(ledger, place)
        return str(said.value)

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(refused, range(40)))) == 40


def test_bounds_hold_every_prompt_and_answer() -> None:
    fields: dict[str, Any] = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "price_in": 1.0, "price_cached": 4.0}
    client = Client(EndpointConfig(**fields, price_out=2.0), "policy")
    body = {"messages": [{"role": "user", "content": "é" * 50}], "max_completion_tokens": 10, "max_tokens": 30, "n": 3}
    most = client._most(CHAT, body)
    prompt = most.tokens - 90
    assert prompt > 100 + 16 and most.cost == pytest.approx((prompt * 4 + 90 * 2) / 1e6)
    assert 100 < client._most(EMBEDDINGS, {"input": ["a", "b" * 99]}).tokens < 400
