"""The budget of a command: what each request could take at most is reserved before it is sent, so the budget is never exceeded.

A request that does not fit waits while others are on their way, since they may take less than was reserved for them. Where none is,
it is refused. Safe to use from several threads and event loops at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass

from skill_ttrl.errors import BudgetError

LONGEST = {"policy": "rollout.max_new_tokens", "optimizer": "optimize.max_answer_tokens"}
"""Settings of the longest answer, where it is not that of the endpoint."""
ROUNDING = 1e-9
"""Relative error of sums of costs."""


@dataclass(frozen=True, slots=True)
class Spend:
    """Amounts that a budget bounds."""

    tokens: int = 0
    """Of prompts and answers."""
    cost: float = 0.0
    """By the config's prices; 0 where there are none."""
    requests: int = 0
    """Requests sent, repeated attempts included."""

    def __add__(self, other: Spend) -> Spend:
        return Spend(self.tokens + other.tokens, self.cost + other.cost, self.requests + other.requests)

    def exceeds(self, other: Spend) -> bool:
        """True if it is more than `other` in tokens or cost."""
        return self.tokens > other.tokens or self.cost > other.cost * (1 + ROUNDING)


@dataclass(frozen=True, slots=True)
class Limits:
    """Most that may be spent; None: no bound."""

    tokens: int | None = None
    cost: float | None = None
    requests: int | None = None

    def __bool__(self) -> bool:
        return any(bound is not None for bound in (self.tokens, self.cost, self.requests))

    def allow(self, spend: Spend) -> bool:
        """True if `spend` is within every bound."""
        within = (
            self.tokens is None or spend.tokens <= self.tokens,
            self.requests is None or spend.requests <= self.requests,
        )
        return all(within) and (self.cost is None or spend.cost <= self.cost)

    def reached_by(self, spend: Spend) -> bool:
        """True if nothing is left of one of the bounds."""
        pairs = (spend.tokens, self.tokens), (spend.cost, self.cost), (spend.requests, self.requests)
        return any(bound is not None and amount >= bound for amount, bound in pairs)


class Budget:
    """Reservations against limits.

    Args:
        limits: most that may be spent.
        refuse: makes the error of a request that does not fit, from the most that it could take and the role that asks.
    """

    def __init__(self, limits: Limits, refuse: Callable[[Spend, str], BudgetError]) -> None:
        self.limits = limits
        self.spent = Spend()
        """By requests that have ended."""
        self._refuse = refuse
        self._lock = threading.Lock()
        self._holds: set[Hold] = set()
        self._waiting: list[Future[None]] = []

    def add(self, spent: Spend, hold: Hold | None = None) -> None:
        """Count a request that has ended, and give back what was reserved for it."""
        with self._lock:
            self.spent += spent
            if hold is not None:
                self._holds.discard(hold)
            self._wake()

    def _reserve(self, hold: Hold, most: Spend, role: str) -> Future[None] | None:
        """Reserve `most` for `hold`: None where it fits, else what ends when it may fit.

        Raises:
            BudgetError: it does not fit, and nothing that is on its way can change that.
        """
        with self._lock:
            paid = sum((each.paid for each in self._holds | {hold}), self.spent)
            reserved = [each.most for each in self._holds if each.most is not None]
            if self.limits.allow(sum(reserved, paid + most)):
                hold.most = most
                self._holds.add(hold)
                return None
            if reserved and self.limits.allow(paid + most):
                waiting: Future[None] = Future()
                self._waiting.append(waiting)
                return waiting
        raise self._refuse(most, role)

    def _pay(self, hold: Hold, spent: Spend) -> None:
        with self._lock:
            hold.paid, hold.most = hold.paid + spent, None
            self._wake()

    def _wake(self) -> None:
        """Let everybody who waits look again."""
        woken, self._waiting = self._waiting, []
        for each in woken:
            try:
                each.set_result(None)
            except InvalidStateError:  # cancelled meanwhile
                continue


class Hold:
    """The share of one request in a budget: what its attempts were billed, and what is reserved for the one on its way."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.paid = Spend()
        self.most: Spend | None = None

    async def reserve(self, most: Spend, role: str) -> None:
        """Reserve the most that the next attempt can take, as soon as it fits.

        Raises:
            BudgetError: it does not fit.
        """
        while (waiting := self._budget._reserve(self, most, role)) is not None:
            await asyncio.wrap_future(waiting)

    def reserve_blocking(self, most: Spend, role: str) -> None:
        """`reserve` for a thread without an event loop."""
        while (waiting := self._budget._reserve(self, most, role)) is not None:
            waiting.result()

    def release(self) -> None:
        """Give back what is reserved for a request that was never sent."""
        self._budget.add(Spend(), self)

    def pay(self, spent: Spend) -> bool:
        """Count an attempt that was answered in the place of what was reserved for it; True if it took more than that."""
        over = self.most is not None and spent.exceeds(self.most)
        self._budget._pay(self, spent)
        return over


def budget_text(
    limits: Limits, spent: Spend, facts: tuple[int, str, int, int], refused: tuple[Spend, str] | None
) -> str:
    """The message of a spent budget.

    Args:
        limits: the budget.
        spent: what of it is spent.
        facts: requests answered by a server, their cost in words, those billed beyond what they could take, and saved answers.
        refused: the most that a refused request could take, and its role; None: none was refused.
    """
    sent, cost, beyond, saved = facts
    bounds = {"max_cost": limits.cost, "max_total_tokens": limits.tokens, "max_requests": limits.requests}
    shown = " and ".join(f"endpoints.{name}={bound:.12g}" for name, bound in bounds.items() if bound is not None)
    found = (
        f"The budget is spent: {spent.tokens:,} tokens in {sent:,} request{'s' * (sent != 1)}, {cost}, with {shown}."
    )
    if refused is not None:
        found += f" {_refusal(limits, spent, *refused)}"
    if beyond:
        found += (
            f" {beyond:,} of the requests were billed at more than they could take by what was asked: the server counts otherwise, "
            "or does not keep to the longest answer."
        )
    if saved:
        found += f" {saved:,} paid answers that are part of nothing finished are saved, and are not paid again."
    return found


def _refusal(limits: Limits, spent: Spend, most: Spend, role: str) -> str:
    """Say how much is left, how much the request could take, and how to go on."""
    short = []
    if limits.tokens is not None and spent.tokens + most.tokens > limits.tokens:
        short.append(
            f"{max(0, limits.tokens - spent.tokens):,} tokens are left and the next request could take {most.tokens:,}"
        )
    if limits.cost is not None and spent.cost + most.cost > limits.cost:
        left = max(0.0, limits.cost - spent.cost)
        short.append(f"a cost of {left:.4g} is left and the next request could take {most.cost:.4g}")
    answers = bool(short) and role not in ("", "embeddings", "command")
    if limits.requests is not None and spent.requests + most.requests > limits.requests:
        short.append("no request is left")
    longest = LONGEST.get(role, f"endpoints.{role}.max_tokens")
    lower = f" The longest answer is reserved: a new run with a lower {longest} gets further." if answers else ""
    said = "; ".join(short)
    return f"{said[:1].upper()}{said[1:]}. Raise the budget.{lower}"


def cost_text(cost: float | None, unpriced: int, requests: int) -> str:
    """`cost 0.5`, or what is known of it: of `requests`, so many have no price."""
    if not unpriced:
        return f"cost {cost or 0.0:.4g}"
    if not cost:
        return "cost unknown (no price is set)"
    return f"cost at least {cost:.4g} ({unpriced:,} of {requests:,} requests have no price)"
