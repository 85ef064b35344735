"""The ledger: what was spent is added up once, survives a crash, and bounds what is spent next."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.config import EndpointConfig, load_config
from skill_ttrl.errors import BudgetError, ConfigError
from skill_ttrl.llm.openai.client import CHAT, EMBEDDINGS, Client
from skill_ttrl.llm.openai.ledger import (
    CountedRequest,
    Entry,
    Ledger,
    Usage,
    annotate_budget_error,
    cost_of,
    counted_request,
)


def entry(phase: str = "rl", role: str = "merger", outcome: str = "ok", cost: float | None = 0.5) -> Entry:
    return Entry(phase, role, "m", outcome, 2, tokens_in=10, tokens_out=5, cost=cost)


@pytest.mark.parametrize("bound", [{"max_cost": 1.0}, {"max_total_tokens": 30}, {"max_requests": 4}])
def test_a_spent_budget_says_so(bound: dict[str, float]) -> None:
    ledger = Ledger(None, **bound)  # type: ignore[arg-type]  # either of the two
    ledger.record(entry())
    ledger.check()
    ledger.record(entry())
    with pytest.raises(BudgetError, match=r"30 tokens in 2 requests, cost 1, with endpoints\.max"):
        ledger.check()


def test_prices_are_per_million_tokens() -> None:
    config = EndpointConfig(model="m", price_in=2.0, price_out=8.0)
    assert cost_of(Usage(tokens_in=1_000_000, tokens_out=500_000), config) == pytest.approx(2 + 0.5 * 8)
    assert cost_of(Usage(tokens_in=1_000_000), EndpointConfig(model="m", price_in=2.0)) == pytest.approx(2.0)
    assert cost_of(Usage(tokens_in=5, tokens_out=5), EndpointConfig(model="m", price_in=0)) == 0.0
    assert cost_of(Usage(tokens_in=5, tokens_out=5), EndpointConfig(model="m")) is None


def test_a_spent_budget_counts_what_was_still_on_its_way() -> None:
    ledger = Ledger(max_total_tokens=15)
    ledger.record(entry())
    with pytest.raises(BudgetError) as refused:
        ledger.check()
    ledger.record(entry())  # it was on its way
    with (
        pytest.raises(BudgetError, match=r"30 tokens in 2 requests, cost 1, with .*=15\. Go on\."),
        annotate_budget_error("Go on."),
    ):
        raise refused.value


def paid(answer: dict[str, int], key: str = "k") -> Entry:
    return Entry("rl", "merger", "m", "ok", 1, tokens_in=10, cost=0.5, key=key, answer=answer)


def test_paid_answers_are_given_once_each_to_the_next_process_until_they_are_settled(tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    first = Ledger(file)
    for answer in ({"a": 1}, {"a": 2}):
        first.record(paid(answer))
    assert first.take("k") is None, "a process that asks twice wants two answers"
    file.write_bytes(file.read_bytes() + b'{"phase": "rl", "key": "k", "ans')
    ledger = Ledger(file)
    assert ledger.unsettled == 2 and ledger.totals().cost == 1.0
    assert [ledger.take("k") for _ in range(3)] == [{"a": 1}, {"a": 2}, None]
    ledger.settle()
    ledger.settle()
    ledger.record(paid({"a": 3}, "later"))
    again = Ledger(file)
    assert (again.take("k"), again.take("later"), again.unsettled, again.totals().cost) == (None, {"a": 3}, 1, 1.5)
    assert len(file.read_text().splitlines()) == 4, "what was settled once is not settled again"


def test_a_bound_on_costs_needs_a_price() -> None:
    with pytest.raises(ConfigError, match=r"endpoints: max_cost .*price_in"):
        load_config("quickstart", ["endpoints.model=m", "endpoints.max_cost=1"])
    load_config("quickstart", ["endpoints.model=m", "endpoints.max_cost=1", "endpoints.roles.merger.price_in=0.4"])


REQUEST = st.tuples(
    st.integers(1, 40),  # most tokens
    st.floats(0, 1),  # share of them that is billed
    st.integers(1, 3),  # attempts that are wanted
    st.integers(0, 3),  # turns of the event loop that it takes
    st.sampled_from(["", "fails", "cancelled", "never sent"]),
)
PRICED = EndpointConfig(model="m", price_in=1e6 / 8)


def reserved(
    ledger: Ledger, tokens: int = 0, requests: int = 1, role: str = "policy"
) -> AbstractAsyncContextManager[CountedRequest]:
    return counted_request(
        role, "m", Usage(attempts=requests, tokens_in=tokens, cost=tokens / 8), ledger=ledger, prices=PRICED
    )


async def spend(ledger: Ledger, tokens: int, requests: int = 1, attempts: int = 1) -> int:
    async with reserved(ledger, tokens, requests) as request:
        request.attempts, request.tokens = attempts, Usage(tokens_in=tokens)
        return request.allowed


@given(st.lists(REQUEST, max_size=12), st.integers(1, 90), st.integers(1, 14), st.sampled_from([0, 2]))
def test_no_schedule_of_requests_within_their_bounds_exceeds_a_budget(
    requests: list[tuple[int, float, int, int, str]], most_tokens: int, most_requests: int, loops: int
) -> None:
    ledger = Ledger(max_total_tokens=most_tokens, max_cost=most_tokens / 9, max_requests=most_requests)
    seen: list[Usage] = []

    async def request(most: int, share: float, attempts: int, turns: int, end: str) -> None:
        try:
            async with reserved(ledger, most, attempts) as asked:
                for _ in range(turns):
                    await asyncio.sleep(0)
                asked.attempts, asked.tokens = (
                    (asked.allowed if end != "never sent" else 0),
                    Usage(tokens_in=int(most * share)),
                )
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
        asyncio.run(spend(ledger, 60))
        begun.set()

    async def first_of_two() -> None:
        async with reserved(ledger, 90) as first:
            threading.Thread(target=wait, daemon=True).start()
            assert not begun.wait(0.05)
            first.attempts, first.tokens = 1, Usage(tokens_in=40)

    asyncio.run(first_of_two())
    assert begun.wait(5)
    with pytest.raises(BudgetError, match=r"could take 61 .*rollout\.max_new"):
        asyncio.run(spend(ledger, 61))  # at once: what is on its way cannot change it


def test_as_many_attempts_are_allowed_as_requests_are_left_and_many_threads_are_refused_at_once() -> None:
    ledger = Ledger(max_requests=3)
    assert asyncio.run(spend(ledger, 0, requests=7, attempts=2)) == 3
    assert asyncio.run(spend(ledger, 0, requests=7)) == 1

    def refused(place: int) -> str:
        with pytest.raises(BudgetError, match="The budget is spent") as said:
            asyncio.run(spend(ledger, place))
        return str(said.value)

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(refused, range(40)))) == 40


def test_bounds_hold_every_prompt_and_answer() -> None:
    fields: dict[str, Any] = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "price_in": 4.0}
    client = Client(EndpointConfig(**fields, price_out=2.0), "policy")
    body = {"messages": [{"role": "user", "content": "é" * 50}], "max_completion_tokens": 10, "max_tokens": 30, "n": 3}
    most = client._most(CHAT, body)
    prompt = most.tokens - 90
    assert prompt > 100 + 16 and most.cost == pytest.approx((prompt * 4 + 90 * 2) / 1e6)
    assert 100 < client._most(EMBEDDINGS, {"input": ["a", "b" * 99]}).tokens < 400
