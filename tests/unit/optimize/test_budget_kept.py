"""A whole optimization under a budget of requests, tokens or money: never exceeded, also by requests at once, and gone on with later."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.compat.clients import BaseLLMClient, metered
from skill_ttrl.compat.env_rollouts import ClientChat
from skill_ttrl.config import EndpointConfig
from skill_ttrl.errors import BudgetError
from skill_ttrl.llm.openai.ledger import Ledger
from tests.rule_optimizer import ScriptedOptimizer
from tests.rule_runs import RuleRun

PRICES = EndpointConfig(model="scripted", price_in=1.0, price_out=4.0)
"""For a million tokens."""
SMALL: dict[str, Any] = {"epochs": 2, "batch_size": 20, "minibatch_size": 4, "max_answer_tokens": 600}
OPTIONS = {"skillopt": SMALL, "gepa": {**SMALL, "engine_options": {"iterations": 12}}}


class Client(BaseLLMClient):
    """A scripted model behind skillrl's interface; it counts how many ask at once."""

    model = "scripted"

    def __init__(self) -> None:
        self.scripted, self.at_once, self.most = ScriptedOptimizer(seed=6), 0, 0
        self._lock = threading.Lock()

    def chat(
        self, *, system: str, user: str, max_completion_tokens: int = 4096, **how: Any
    ) -> tuple[str, dict[str, int]]:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(0.001)
        reply = self.scripted(system, user, max_tokens=max_completion_tokens, stage=how["stage"])
        with self._lock:
            self.at_once -= 1
        return reply.text, {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}


def run(engine: str, path: Path | None, ledger: Ledger) -> tuple[RuleRun, Client, str | None]:
    client = Client()
    chat = ClientChat(metered(client, ledger, PRICES))
    made = RuleRun(engine, 6, (40, 8, 0), path, chat, workers=6)
    try:
        return made, client, made(**OPTIONS[engine]).state.best
    except BudgetError:
        return made, client, None


@pytest.mark.parametrize("engine", ["skillopt", "gepa"])
def test_a_budget_is_never_exceeded_and_a_larger_one_goes_on(engine: str, tmp_path: Path) -> None:
    free = Ledger()
    _, client, best = run(engine, None, free)
    spent = free.totals()
    assert best is not None and spent.cost and spent.attempts == len(client.scripted.calls)
    assert client.most > 1 or engine == "gepa"
    bounds: list[dict[str, Any]] = [{"max_requests": count} for count in (1, 4, 9)]
    bounds += [{"max_total_tokens": spent.tokens // part} for part in (2, 3)]
    bounds += [{"max_cost": spent.cost / part} for part in (2, 3)]
    for place, bound in enumerate(bounds):
        path, ledger = tmp_path / f"journal-{place}", Ledger(**bound)
        _, first, ended = run(engine, path, ledger)
        found = ledger.totals()
        assert ended is None, bound
        assert found.attempts == len(first.scripted.calls) <= bound.get("max_requests", 10**9)
        assert found.tokens <= bound.get("max_total_tokens", 10**9) and (found.cost or 0) <= bound.get(
            "max_cost", 10**9
        )
        _, rest, resumed = run(engine, path, Ledger())
        assert resumed == best
        assert len(first.scripted.calls) + len(rest.scripted.calls) == len(client.scripted.calls)  # none twice
