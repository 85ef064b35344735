"""Requests that this project's client does not send itself, counted and bounded all the same: other clients, and commands."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from skill_ttrl.config import EndpointConfig
from skill_ttrl.errors import EndpointError
from skill_ttrl.llm.openai.budget import Spend
from skill_ttrl.llm.openai.ledger import Entry, Ledger, Tokens, cost_of, current_ledger, current_phase


class CountedRequest:
    """One request as the ledger counts it: reserved on entering, recorded on leaving; for `with` and `async with`.

    The block sets `tokens` and `outcome`; one that raises is recorded as failed.

    Args:
        role: what the model is asked for.
        model: its name.
        most: the most that it can take.
        ledger: where it is counted; None: the ledger of the caller's context.
        prices: of its tokens; None: their cost is unknown.

    Raises:
        BudgetError: on entering; the budget has no room for it.
    """

    def __init__(
        self, role: str, model: str, most: Spend, *, ledger: Ledger | None = None, prices: EndpointConfig | None = None
    ) -> None:
        self._ledger = ledger or current_ledger()
        self._entry = Entry(current_phase() or self._ledger.present_phase, role, model, "failed", 1)
        self._most, self._prices, self._hold = most, prices, self._ledger.hold()
        self.tokens, self.outcome = Tokens(), "ok"
        self._began = 0.0

    def __enter__(self) -> Self:
        if self._ledger.bounded:
            self._hold.reserve_blocking(self._most, self._entry.role)
        self._began = time.monotonic()
        return self

    async def __aenter__(self) -> Self:
        if self._ledger.bounded:
            await self._hold.reserve(self._most, self._entry.role)
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tokens, cost = self.tokens, 0.0 if not (self.tokens.prompt or self.tokens.answer) else None
        if self._prices is not None:
            cost = cost_of(tokens, self._prices)
        if error is not None:
            stopped = error.kind if isinstance(error, EndpointError) else "failed"
            self.outcome = stopped if isinstance(error, Exception) else "cancelled"
        over = self._hold.pay(Spend(tokens.prompt + tokens.answer, cost or 0.0, 1))
        entry = Entry(
            self._entry.phase,
            self._entry.role,
            self._entry.model,
            self.outcome,
            attempts=1,
            tokens_in=tokens.prompt,
            tokens_cached=tokens.cached,
            tokens_out=tokens.answer,
            cost=cost,
            seconds=round(time.monotonic() - self._began, 3),
            estimated=tokens.estimated,
            over_bound=over,
        )
        self._ledger.record(entry, self._hold)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
