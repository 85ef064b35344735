"""One request to a remote model, from its budget to its line in the ledger.

Bounds how many requests run at once, repeats them where that may help (`failures`), answers from the disk what was paid before
(`cache`), and records every request once, however it ends (`ledger`). The SDK's own retries are off: they know neither the
budget nor the pauses that a server asks of all requests, and they would hide what was paid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from skill_ttrl.config import EndpointConfig, Role
from skill_ttrl.errors import BudgetError, EndpointError
from skill_ttrl.llm.openai.address import find_address
from skill_ttrl.llm.openai.bounds import RequestBounds
from skill_ttrl.llm.openai.budget import Hold, Spend
from skill_ttrl.llm.openai.cache import AnswerCache
from skill_ttrl.llm.openai.connection import connect
from skill_ttrl.llm.openai.failures import Failure, MalformedResponse, explained, failure_of, pause_before, until_reset
from skill_ttrl.llm.openai.ledger import Entry, Ledger, Tokens, cost_of, current_ledger, current_phase
from skill_ttrl.llm.openai.replies import Reply, estimated, read_body, tokens_said

T = TypeVar("T")
Read = Callable[[dict[str, Any]], tuple[T, Tokens, str]]
"""A body → what was wanted, its tokens, and the outcome for the ledger."""
CHAT, COMPLETIONS, EMBEDDINGS = "chat/completions", "completions", "embeddings"


class Transport:
    """The connection to one model. See `Client` for the arguments and errors."""

    def __init__(self, config: EndpointConfig, role: Role, ledger: Ledger | None, key: str | None) -> None:
        self.config, self.role = config, role
        self.address = find_address(config, role, key)
        self.sdk = connect(self.address, config, role)
        self._ledger = ledger
        self._bounds = RequestBounds(config, role)
        self._cache = AnswerCache(config.cache) if config.cache is not None else None
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._random = Random()  # jitter is to differ from one process to the next
        self._not_before = 0.0

    @property
    def ledger(self) -> Ledger:
        """The ledger that was handed in, else that of the caller's context."""
        return self._ledger or current_ledger()

    def key(self, path: str, body: Mapping[str, Any], marks: tuple[Any, ...]) -> str:
        """The name of a saved answer; `marks` tell apart requests that are sent alike."""
        return AnswerCache.key(self.address.base_url, self.config.model, path, {**body, "": marks})

    async def request(
        self, path: str, body: dict[str, Any], key: str, read: Read[T], useful: Callable[[str], bool] = lambda _: True
    ) -> tuple[T, bool]:
        """Parsed reply, and True where it came from the disk.

        The answer is saved under the name `key`. `read` raises `MalformedResponse` for one to be repeated; `useful` decides by the
        outcome whether a paid answer is saved for a process that asks the same again.

        Raises:
            EndpointError: it came to nothing; `kind` says why.
            BudgetError: the budget is spent.
        """
        ledger = self.ledger
        entry = Entry(current_phase() or ledger.present_phase, self.role, self.config.model, "cancelled", 0)
        saved = ledger.paid.take(key) if ledger.paid is not None else None
        if saved is None and self._cache is not None:
            saved = self._cache.get(key)
        with suppress(MalformedResponse):  # somebody has changed the file: asked for anew
            if saved is not None:
                found, _, outcome = read(saved)
                ledger.record(replace(entry, outcome=outcome, cached=True))
                return found, True
        async with self._slots:
            most = self._bounds.of(body, answers=path != EMBEDDINGS) if ledger.bounded else None
            sending = _Sending(ledger.hold(), most, self.config)
            try:
                found, raw = await self._attempt_all(path, body, read, sending)
            except BudgetError:
                sending.refused = not sending.attempts  # what was never sent is no request
                raise
            finally:
                if not sending.refused:
                    ledger.record(sending.entry(entry), sending.hold)
        if ledger.paid is not None and useful(sending.outcome):
            ledger.paid.put(key, raw)
        if self._cache is not None and sending.outcome in ("ok", "length"):  # another may be a better one tomorrow
            self._cache.put(key, raw)
        return found, False

    async def _attempt_all(
        self, path: str, body: dict[str, Any], read: Read[T], sending: _Sending
    ) -> tuple[T, dict[str, Any]]:
        """Send until there is an answer; what was read, and the answer itself."""
        while True:
            while (left := self._not_before - time.monotonic()) > 0:  # the server said that nothing remains until then
                await asyncio.sleep(left + self._random.uniform(0.0, 0.1 * left))
            await sending.begin(self.role)
            raw: dict[str, Any] = {}
            try:
                raw = await self._send(path, body)
                found, tokens, outcome = read(raw)
            except Exception as error:
                failure = failure_of(error, self.address)
                if failure is None:
                    raise
                sending.pay(tokens_said(raw))  # an answer of no use is paid for all the same
                sending.outcome = failure.kind
                await self._pause(sending.attempts, failure)
                continue
            if not (tokens.prompt or tokens.answer):
                tokens = estimated(body, found.texts if isinstance(found, Reply) else [])
            sending.pay(tokens)
            sending.outcome = outcome
            return found, raw

    async def _send(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One attempt; the body of the answer."""
        kind = {CHAT: self.sdk.chat.completions, COMPLETIONS: self.sdk.completions, EMBEDDINGS: self.sdk.embeddings}
        named = {name: body[name] for name in ("messages", "prompt", "input", "encoding_format") if name in body}
        rest = {name: value for name, value in body.items() if name not in named}
        async with asyncio.timeout(self.config.timeout):  # the SDK's own begins again with every byte
            answer = await kind[path].with_raw_response.create(model=self.config.model, **named, extra_body=rest)
        self._hold_off(until_reset(answer.headers))
        return read_body(answer.text, self.address.scrubbed)

    def _hold_off(self, seconds: float | None) -> None:
        """Send nothing for so long: other requests are not to run into the same limit."""
        if seconds is not None:
            self._not_before = max(self._not_before, time.monotonic() + min(seconds, self.config.max_retry_wait))

    async def _pause(self, attempt: int, failure: Failure) -> None:
        """Wait before the next attempt.

        Raises:
            EndpointError: there is none.
        """
        config = self.config
        wait = pause_before(attempt + 1, failure.wait, config.max_retry_wait, self._random)
        if not failure.retryable or attempt > config.max_retries or wait is None:
            raise EndpointError(explained(failure, self.role, config, self.address, attempt), failure.kind) from None
        self._hold_off(failure.wait)
        await asyncio.sleep(wait)


class _Sending:
    """Totals of the attempts of one request so far, and its share of the budget."""

    def __init__(self, hold: Hold, most: Spend | None, config: EndpointConfig) -> None:
        self.hold, self._most, self._config = hold, most, config
        self.attempts, self.spent, self.outcome = 0, Tokens(), "cancelled"
        self.refused = self._over = False
        self._began = time.monotonic()

    async def begin(self, role: Role) -> None:
        """Begin an attempt, as soon as the budget has room for it.

        Raises:
            BudgetError: it has none.
        """
        if self._most is not None:
            await self.hold.reserve(self._most, role)
        self.attempts, self.outcome = self.attempts + 1, "cancelled"

    def pay(self, tokens: Tokens) -> None:
        """Count what an attempt was billed."""
        self.spent += tokens
        over = self.hold.pay(Spend(tokens.prompt + tokens.answer, cost_of(tokens, self._config) or 0.0, 1))
        self._over = self._over or over

    def entry(self, begun: Entry) -> Entry:
        return replace(
            begun,
            outcome=self.outcome,
            attempts=self.attempts,
            tokens_in=self.spent.prompt,
            tokens_cached=self.spent.cached,
            tokens_out=self.spent.answer,
            cost=cost_of(self.spent, self._config),
            seconds=round(time.monotonic() - self._began, 3),
            estimated=self.spent.estimated,
            over_bound=self._over,
        )
