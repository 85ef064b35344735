"""The ledger: what was spent is added up once, survives a crash, and bounds what is spent next."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skill_ttrl.config import EndpointConfig, EndpointsConfig, load_config
from skill_ttrl.errors import BudgetError, ConfigError
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.ledger import (
    Entry,
    Ledger,
    Tokens,
    annotate_budget_error,
    cost_of,
    current_ledger,
    track_usage,
    usage_lines,
)
from skill_ttrl.runs.identity import config_differences


def entry(phase: str = "rl", role: str = "merger", outcome: str = "ok", cost: float | None = 0.5) -> Entry:
    return Entry(phase, role, "m", outcome, 2, tokens_in=10, tokens_cached=4, tokens_out=5, cost=cost)


@pytest.mark.parametrize("bound", [{"max_cost": 1.0}, {"max_total_tokens": 30}, {"max_requests": 4}])
def test_a_spent_budget_says_so(bound: dict[str, float]) -> None:
    ledger = Ledger(None, **bound)  # type: ignore[arg-type]  # either of the two
    ledger.record(entry())
    ledger.check()
    ledger.record(entry())
    assert ledger.exhausted
    with pytest.raises(BudgetError, match=r"30 tokens in 2 requests, cost 1, with endpoints\.max"):
        ledger.check()


def test_the_ledger_belongs_to_the_context_that_opened_it() -> None:
    async def now() -> Ledger:
        return current_ledger()

    async def in_a_notebook() -> Ledger:
        return wait_for(now())  # a loop is running: the work goes to a thread

    with track_usage(None, EndpointsConfig()) as ledger:
        assert wait_for(now()) is ledger and asyncio.run(in_a_notebook()) is ledger
        with ThreadPoolExecutor() as pool:
            assert pool.submit(current_ledger).result() is not ledger


def test_prices_are_per_million_tokens() -> None:
    config = EndpointConfig(model="m", price_in=2.0, price_cached=0.5, price_out=8.0)
    assert cost_of(Tokens(1_000_000, 400_000, 500_000), config) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.5 * 8)
    assert cost_of(Tokens(1_000_000, 400_000, 0), EndpointConfig(model="m", price_in=2.0)) == pytest.approx(2.0)
    assert cost_of(Tokens(5, 0, 5), EndpointConfig(model="m", price_in=0)) == 0.0
    assert cost_of(Tokens(5, 0, 5), EndpointConfig(model="m")) is None


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


def test_budgets_and_limits_may_change_when_a_run_goes_on_and_the_model_may_not() -> None:
    base = {"endpoints": {"merger": {"model": "a", "price_out": 1.0}, "max_cost": 1.0}}
    saved = load_config(base)
    loose = ["endpoints.max_cost=2", "endpoints.merger.timeout=5", "endpoints.merger.price_in=3"]
    loose += ["endpoints.merger.base_url=http://127.0.0.1:9/v1", "endpoints.merger.api_version=x"]
    assert config_differences(saved, load_config(base, loose)) == []
    found = config_differences(saved, load_config(base, ["endpoints.merger.model=b"]))
    assert found == ['endpoints.merger.model "a" there, "b" here']


def test_a_report_has_a_line_for_all_and_for_each() -> None:
    ledger = Ledger()
    assert usage_lines(ledger.report()) == []
    ledger.record(entry())
    assert usage_lines(ledger.report()) == ["API usage: 1 requests; 10 tokens in, 5 out; cost 0.5"]
    ledger.record(entry(role="teacher", outcome="dropped"))
    assert usage_lines(ledger.report())[1:] == [
        "rl, merger: 1 requests; 10 tokens in, 5 out; cost 0.5",
        "rl, teacher: 1 requests, 1 failed; 10 tokens in, 5 out; cost 0.5",
    ]


def test_a_bound_on_costs_needs_a_price() -> None:
    with pytest.raises(ConfigError, match=r"endpoints: max_cost .*price_in"):
        load_config("quickstart", ["endpoints.merger.model=m", "endpoints.max_cost=1"])
    load_config("quickstart", ["endpoints.merger.model=m", "endpoints.max_cost=1", "endpoints.merger.price_in=0.4"])
