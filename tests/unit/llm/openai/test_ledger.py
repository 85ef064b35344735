"""The ledger: what was spent is added up once, survives a crash, and bounds what is spent next."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skill_ttrl.config import EndpointConfig, EndpointsConfig, load_config
from skill_ttrl.errors import BudgetError, ConfigError, RunFolderError
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import AnswerCache, digest
from skill_ttrl.llm.openai.ledger import (
    SAME,
    Entry,
    Ledger,
    Tokens,
    annotate_budget_error,
    cost_of,
    current_ledger,
    track_usage,
    usage_lines,
    when_spent,
)
from skill_ttrl.runs.identity import config_differences


def entry(phase: str = "rl", role: str = "merger", outcome: str = "ok", cost: float | None = 0.5) -> Entry:
    return Entry(phase, role, "m", outcome, 2, tokens_in=10, tokens_cached=4, tokens_out=5, cost=cost)


def test_totals_are_those_of_the_file_also_after_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    first = Ledger(file)
    for each in (entry(), entry(outcome="timeout"), entry("evaluate", "policy")):
        first.record(each)
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"phase": "rl", "ro')
    again = Ledger(file)
    assert file.read_bytes() == whole
    assert again.report() == first.report()
    assert (again.totals().requests, again.totals().failed, again.totals().tokens) == (3, 1, 45)
    assert again.report()["by"]["evaluate"]["policy"]["requests"] == 1


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "usage.jsonl").write_text('{"phase": "rl", "spent": 3}\n')
    with pytest.raises(RunFolderError, match=r"usage.jsonl:1 is no line of a ledger"):
        Ledger(tmp_path / "usage.jsonl")


@pytest.mark.parametrize("bound", [{"max_cost": 1.0}, {"max_total_tokens": 30}, {"max_requests": 4}])
def test_a_spent_budget_says_so(bound: dict[str, float]) -> None:
    ledger = Ledger(None, **bound)  # type: ignore[arg-type]  # either of the two
    ledger.record(entry())
    ledger.check()
    ledger.record(entry())
    assert ledger.exhausted
    with pytest.raises(BudgetError, match=r"30 tokens in 2 requests, cost 1, with endpoints\.max"):
        ledger.check()


def test_phases_are_nested() -> None:
    ledger = Ledger()
    with ledger.phase("rl"):
        with ledger.phase("evaluate"):
            assert ledger.present_phase == "evaluate"
        assert ledger.present_phase == "rl"
    assert ledger.present_phase == "other"


def test_accounting_goes_on_from_the_file_and_ends(tmp_path: Path) -> None:
    before = current_ledger()
    file = tmp_path / "usage.jsonl"
    with track_usage(file, EndpointsConfig()) as ledger:
        assert current_ledger() is ledger
        assert not file.exists()  # begins with the first request
        ledger.record(entry())
    with track_usage(file, EndpointsConfig(max_cost=0.4)) as ledger:
        assert ledger.exhausted
    assert current_ledger() is before


def test_the_ledger_belongs_to_the_context_that_opened_it() -> None:
    async def now() -> Ledger:
        return current_ledger()

    async def in_a_notebook() -> Ledger:
        return wait_for(now())  # a loop is running: the work goes to a thread

    with track_usage(None, EndpointsConfig()) as ledger:
        assert wait_for(now()) is ledger and asyncio.run(in_a_notebook()) is ledger
        with ThreadPoolExecutor() as pool:
            assert pool.submit(current_ledger).result() is not ledger


def test_a_budget_error_says_what_was_kept() -> None:
    with pytest.raises(BudgetError, match=r"spent\. Kept in X\."), annotate_budget_error("Kept in X."):
        raise BudgetError("It is spent.")


def test_prices_are_per_million_tokens() -> None:
    config = EndpointConfig(model="m", price_in=2.0, price_cached=0.5, price_out=8.0)
    assert cost_of(Tokens(1_000_000, 400_000, 500_000), config) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.5 * 8)
    assert cost_of(Tokens(1_000_000, 400_000, 0), EndpointConfig(model="m", price_in=2.0)) == pytest.approx(2.0)
    assert cost_of(Tokens(5, 0, 5), EndpointConfig(model="m", price_in=0)) == 0.0
    assert cost_of(Tokens(5, 0, 5), EndpointConfig(model="m")) is None


def test_a_cost_that_is_not_known_is_not_said_to_be_nothing() -> None:
    ledger = Ledger(max_total_tokens=30)
    ledger.record(entry(cost=None))
    assert usage_lines(ledger.report())[0].endswith("cost unknown (no price is set)")
    assert ledger.report()["cost"] is None and ledger.report()["unpriced"] == 1
    ledger.record(entry())
    assert usage_lines(ledger.report())[0].endswith("cost at least 0.5 (1 of 2 requests have no price)")
    assert ledger.report()["cost"] == 0.5


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


def test_programs_are_no_models_behind_addresses() -> None:
    ledger = Ledger()
    for outcome in ("ok", "timeout"):
        ledger.record(Entry("rollout", "command", "agent", outcome, 1, cost=None))
    assert usage_lines(ledger.report()) == ["programs started: 2, 1 failed"]
    ledger.record(entry("analyst", "optimizer"))
    assert usage_lines(ledger.report()) == [
        "API usage: 1 requests; 10 tokens in, 5 out; cost 0.5",
        "programs started: 2, 1 failed",
    ]


def test_kept_answers_are_told_apart_by_all_that_was_asked(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers")
    asked = {"messages": [{"role": "user", "content": "x"}], "seed": 1}
    keys = {
        digest("h", "m", "chat/completions", asked),
        digest("h", "m", "chat/completions", {**asked, "seed": 2}),
        digest("h", "m2", "chat/completions", asked),
        digest("h2", "m", "chat/completions", asked),
        digest("h", "m", "completions", asked),
    }
    assert len(keys) == 5
    key = digest("h", "m", "chat/completions", dict(reversed(asked.items())))
    assert key in keys
    assert cache.get(key) is None
    cache.put(key, {"choices": []})
    assert cache.get(key) == {"choices": []}
    next((tmp_path / "answers").rglob("*.json")).write_text('{"choices": [')
    assert cache.get(key) is None


def test_a_bound_on_costs_needs_a_price() -> None:
    with pytest.raises(ConfigError, match=r"endpoints: max_cost .*price_in"):
        load_config("quickstart", ["endpoints.merger.model=m", "endpoints.max_cost=1"])
    load_config("quickstart", ["endpoints.merger.model=m", "endpoints.max_cost=1", "endpoints.merger.price_in=0.4"])


def test_a_spent_budget_is_raised_and_only_what_is_kept_continues() -> None:
    raised = "Raise the budget (endpoints.max_total_tokens, endpoints.max_cost or endpoints.max_requests)"
    assert when_spent(f"3 lines are kept. {SAME}") == (
        f"3 lines are kept. {raised}, then run the same command again: it continues."
    )
    assert when_spent("nothing is saved") == f"nothing is saved {raised}."
