"""Reservations: whatever is asked at once and in whatever order it ends, what is spent is never more than the budget."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.config import EndpointConfig
from skill_ttrl.errors import BudgetError
from skill_ttrl.llm.openai.bounds import RequestBounds
from skill_ttrl.llm.openai.budget import Spend
from skill_ttrl.llm.openai.ledger import REFUSED, Entry, Ledger

REQUEST = st.tuples(
    st.integers(1, 40),  # most tokens of an attempt
    st.lists(st.floats(0, 1), min_size=1, max_size=3),  # share of them that each attempt is billed at
    st.integers(0, 3),  # turns of the event loop that an attempt takes
    st.booleans(),  # cancelled in its last attempt
)


def entry(tokens: int, attempts: int) -> Entry:
    return Entry("p", "policy", "m", "ok", attempts, tokens_in=tokens, cost=tokens / 8)


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUEST, max_size=12), st.integers(1, 90), st.integers(1, 14), st.sampled_from([0, 2]))
def test_no_schedule_of_requests_within_their_bounds_exceeds_a_budget(
    requests: list[tuple[int, list[float], int, bool]], most_tokens: int, most_requests: int, loops: int
) -> None:
    ledger = Ledger(max_total_tokens=most_tokens, max_cost=most_tokens / 9, max_requests=most_requests)
    seen: list[Spend] = []

    async def request(most: int, shares: list[float], turns: int, cancelled: bool) -> bool:
        hold, paid, attempts = ledger.hold(), 0, 0
        try:
            for place, share in enumerate(shares):
                await hold.reserve(Spend(most, most / 8, 1), "policy")
                attempts += 1
                for _ in range(turns):
                    await asyncio.sleep(0)
                if cancelled and place == len(shares) - 1:
                    return True
                billed = int(most * share)
                paid += billed
                assert not hold.pay(Spend(billed, billed / 8, 1))
        except BudgetError:
            return False
        finally:
            if attempts:
                ledger.record(entry(paid, attempts), hold)
            seen.append(ledger.totals().spend)
        return True

    async def all_of(chosen: list[tuple[int, list[float], int, bool]]) -> None:
        async with asyncio.timeout(20):  # a schedule in which all wait would never end
            await asyncio.gather(*(request(*each) for each in chosen))

    if loops:
        with ThreadPoolExecutor(loops) as pool:
            list(pool.map(lambda place: asyncio.run(all_of(requests[place::loops])), range(loops)))
    else:
        asyncio.run(all_of(requests))
    for spent in seen:
        assert spent.tokens <= most_tokens and spent.requests <= most_requests and spent.cost <= most_tokens / 9


def test_a_request_waits_for_those_on_their_way_and_goes_when_they_took_less() -> None:
    ledger = Ledger(max_total_tokens=100)
    first, second = ledger.hold(), ledger.hold()
    first.reserve_blocking(Spend(90, 0, 1), "policy")
    begun = threading.Event()

    def wait() -> None:
        second.reserve_blocking(Spend(60, 0, 1), "policy")
        begun.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert not begun.wait(0.05)
    ledger.record(entry(40, 1), first)
    assert begun.wait(5)
    with pytest.raises(BudgetError, match=r"60 tokens are left and the next request could take 61\..*rollout\.max_new"):
        ledger.hold().reserve_blocking(Spend(61, 0, 1), "policy")  # at once: what is on its way cannot change it


def test_a_refusal_is_remembered_until_the_budget_is_raised(tmp_path: Path) -> None:
    usage = tmp_path / "usage.jsonl"
    ledger = Ledger(usage, max_total_tokens=100)
    ledger.record(entry(40, 1))
    ledger.check()
    with pytest.raises(BudgetError):
        ledger.hold().reserve_blocking(Spend(61, 0, 1), "optimizer")
    with pytest.raises(BudgetError, match="could take 61"):
        ledger.check()
    with pytest.raises(BudgetError, match=r"could take 61\..*optimize\.max_answer_tokens"):
        Ledger(usage, max_total_tokens=100).check()  # the next process
    Ledger(usage, max_total_tokens=101).check()
    assert not (tmp_path / REFUSED).exists()


def test_many_threads_are_refused_at_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "usage.jsonl", max_requests=1)
    ledger.record(entry(1, 1))

    def refused(place: int) -> str:
        with pytest.raises(BudgetError, match="No request is left") as said:
            ledger.hold().reserve_blocking(Spend(place, 0, 1), "optimizer")
        return str(said.value)

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(refused, range(40)))) == 40
    assert (tmp_path / REFUSED).is_file()


def test_bounds_hold_every_prompt_and_answer() -> None:
    config = EndpointConfig(model="m", price_in=1.0, price_cached=4.0, price_out=2.0)
    body = {"messages": [{"role": "user", "content": "é" * 50}], "max_completion_tokens": 10, "max_tokens": 30, "n": 3}
    most = RequestBounds(config, "policy").of(body, answers=True)
    prompt = most.tokens - 90
    assert prompt > 100 + 16 and most.requests == 1
    assert most.cost == pytest.approx((prompt * 4 + 90 * 2) / 1e6)
    vectors = RequestBounds(config, "embeddings").of({"input": ["a", "b" * 99]}, answers=False)
    assert 100 < vectors.tokens < 400
