"""One client for OpenAI's protocol: whoever asks a model behind an address (policy, teacher, merger, embeddings) asks here.

It bounds how many requests are on their way, sends them again where that may help (`failures`), reads what servers make of
the protocol (`replies`), keeps answers on disk where the config says so (`answer_cache`), and puts every request down once,
however it ends (`usage`). docs/endpoints.md says all of it for users.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, TypeVar

from pydantic import BaseModel

from skill_ttrl.config import EndpointConfig, EndpointsConfig, Role
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.openai.address import connect, find_address
from skill_ttrl.llm.openai.cache import AnswerCache
from skill_ttrl.llm.openai.failures import (
    Failure,
    MalformedResponse,
    explained,
    failure_of,
    pause_before,
    printable,
    short,
    until_reset,
)
from skill_ttrl.llm.openai.ledger import Entry, Ledger, Tokens, cost_of, current_ledger
from skill_ttrl.llm.openai.loop import BackgroundEventLoop
from skill_ttrl.llm.openai.replies import (
    Reply,
    estimated,
    read_body,
    read_chat,
    read_completion,
    read_embeddings,
    sound,
    tokens_said,
)
from skill_ttrl.llm.openai.structured import instruction, read_json, repair, response_format
from skill_ttrl.types import Message, derive_seed

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

CHAT, COMPLETIONS, EMBEDDINGS = "chat/completions", "completions", "embeddings"
BATCH_TEXTS = 32
"""Texts embedded by one request; small servers take no more."""
SEEDS = 1 << 31
"""Seeds are below this: some servers read 32 bits."""
Read = Callable[[dict[str, Any]], tuple[Any, Tokens, str]]
"""A body → what was wanted, its tokens, and the outcome for the ledger."""


class Client:
    """Asks one model.

    Args:
        config: where it is and how it is asked.
        role: what it is asked for, in the ledger and in messages.
        ledger: where requests are put down; None: the ledger that is open when they begin (`usage.track_usage`).
        key: a key that was handed in; None: that of the environment.

    Raises:
        ConfigError: a key or an address is missing.
        MissingDependencyError: the package openai is not installed.
    """

    def __init__(
        self, config: EndpointConfig, role: Role, ledger: Ledger | None = None, *, key: str | None = None
    ) -> None:
        self.config = config
        self.role = role
        self._address = find_address(config, role, key)
        self._sdk = connect(self._address, config, role)
        self._ledger = ledger
        self._cache = AnswerCache(config.cache) if config.cache is not None else None
        self._loop = BackgroundEventLoop(f"endpoints.{role}")
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._random = Random()  # jitter is to differ from one process to the next
        self._not_before = 0.0
        # Times in a row that one answer came where more were asked for; after two, one is asked at a time.
        self._gave_one = 0

    def __repr__(self) -> str:
        return f"Client({self.role}: {self.config.model!r} at {self.host})"

    @property
    def host(self) -> str:
        """Host and port of the server."""
        return self._address.host

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int = 1,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        seed: int | None = None,
        logprobs: bool | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Reply:
        """`n` answers to a conversation. Where the server gives fewer at a time, the missing ones are asked for.

        Args:
            messages: the conversation.
            n: answers.
            temperature: None: the config's, else the server's own.
            top_p: None: the server's own.
            max_tokens: longest answer; None: the config's.
            stop: texts that end an answer.
            seed: of the sampling, where the server knows seeds.
            logprobs: ask for log-probs; None: as the config says.
            extra: further fields of the request; one that is None is left out of it, also where the config names it.

        Raises:
            EndpointError: it came to nothing; `kind` says why.
            BudgetError: the budget is spent.
        """
        body: dict[str, Any] = {"messages": [{"role": each.role, "content": each.content} for each in messages]}
        body |= self._sampling(temperature, top_p, max_tokens, stop)
        if self.config.logprobs if logprobs is None else logprobs:
            body["logprobs"] = True
        return await self._loop.run(self._answers(CHAT, body, n, seed, extra, read_chat))

    async def complete(
        self,
        prompt: str,
        *,
        n: int = 1,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        seed: int | None = None,
        logprobs: bool | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Reply:
        """`n` continuations of a text, by the completions interface; otherwise as `chat`."""
        body: dict[str, Any] = {"prompt": prompt}
        body |= self._sampling(temperature, top_p, max_tokens, stop, "max_tokens")
        if self.config.logprobs if logprobs is None else logprobs:
            body["logprobs"] = 1
        return await self._loop.run(self._answers(COMPLETIONS, body, n, seed, extra, read_completion))

    async def json(self, messages: Sequence[Message], schema: type[M], *, repairs: int = 1) -> M:
        """One answer that fits `schema`, asked for as `config.structured` says and, where it does not fit, asked for again.

        Args:
            messages: the conversation; what form the answer is to have is added to it.
            schema: what the answer must be.
            repairs: how often a model that gave something else is told what was wrong with it.

        Raises:
            EndpointError: it came to nothing; of kind `malformed` where no answer fitted, of kind `refusal` or `filtered`
                where there was none.
            BudgetError: the budget is spent.
        """
        form = response_format(self.config, schema)
        asked = [*messages]
        if form is None or form["type"] == "json_object":  # nothing else tells the model
            asked.append(Message("user", instruction(schema)))
        problem = ""
        for left in range(repairs, -1, -1):
            held: list[tuple[M | None, str]] = []

            def judge(reply: Reply, held: list[tuple[M | None, str]] = held) -> str:
                held.append(_judged(reply, schema))
                return "ok" if held[-1][0] is not None else _blame(reply)

            def useful(outcome: str, left: int = left) -> bool:
                """A resumed run must not meet again the answer that ended it; one that is followed by a repair did not."""
                return outcome == "ok" or (left > 0 and outcome not in ("refusal", "filtered"))

            body: dict[str, Any] = {"messages": [{"role": each.role, "content": each.content} for each in asked]}
            body |= self._sampling(None, None, None, ())
            if form is not None:
                body["response_format"] = form
            reply = await self._loop.run(self._answers(CHAT, body, 1, None, None, read_chat, judge, useful))
            found, problem = held[-1]
            if found is not None:
                return found
            if reply.outcome in ("refusal", "filtered"):
                said = reply.refusal or "a filter of the server's cut the answer"
                raise EndpointError(self._told(f"declined to answer: {short(said)}"), reply.outcome)
            asked += [*([Message("assistant", reply.text)] if reply.text else []), Message("user", repair(problem))]
        begins = f" Its last answer begins: {reply.text[:120]!r}." if reply.text else ""
        raise EndpointError(
            self._told(f"gave no {schema.__name__} in {repairs + 1} answers: {problem}{begins}")
            + f" Try another endpoints.{self.role}.structured (it is {self.config.structured!r}) or another model.",
            "malformed",
        )

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text, in order, as the server gives them: not normalised.

        Raises:
            EndpointError: it came to nothing.
            BudgetError: the budget is spent.
        """
        batches = [list(texts[start : start + BATCH_TEXTS]) for start in range(0, len(texts), BATCH_TEXTS)]
        found = await _all(partial(self._loop.run, self._vectors(batch)) for batch in batches)
        return [vector for batch in found for vector in batch]

    async def close(self) -> None:
        """End what is on its way, and the connections. Safe to call twice."""
        self.shut()

    def shut(self) -> None:
        """`close` for callers without an event loop."""
        self._loop.close(self._sdk.close())

    def _sampling(
        self,
        temperature: float | None,
        top_p: float | None,
        max_tokens: int | None,
        stop: Sequence[str],
        limit_field: str | None = None,
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "temperature": self.config.temperature if temperature is None else temperature,
            "top_p": top_p,
            limit_field or self.config.token_limit_field: max_tokens or self.config.max_tokens,
            "stop": list(stop) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    async def _answers(
        self,
        path: str,
        body: dict[str, Any],
        n: int,
        seed: int | None,
        extra: Mapping[str, Any] | None,
        read: Callable[[Mapping[str, Any]], Reply],
        judge: Callable[[Reply], str] = lambda reply: reply.outcome,
        useful: Callable[[str], bool] = lambda outcome: True,
    ) -> Reply:
        """`n` choices, by one request where the server can, else by several; those of a `useful` outcome are saved once paid."""

        def understood(found: dict[str, Any]) -> tuple[Reply, Tokens, str]:
            reply = read(found)
            return reply, reply.usage, judge(reply)

        def question(count: int, number: int) -> tuple[dict[str, Any], str]:
            own = seed if seed is None or not number else derive_seed(seed, "again", number)
            asked = {**body, **({"n": count} if count > 1 else {})}
            if own is not None:
                asked["seed"] = own % SEEDS
            asked = {**asked, **self.config.extra_body, **(extra or {})}
            sent = sound({name: value for name, value in asked.items() if value is not None})
            # What tells two samples apart is part of a saved answer's name, also where the server is not sent it.
            return sent, self._key(path, sent, (own, number))

        async def ask(count: int, number: int) -> Reply:
            found, cached = await self._request(path, *question(count, number), understood, useful)
            reply: Reply = replace(found, cached=cached)
            return reply

        one_by_one = self._gave_one > 1
        paid = self._open_ledger.paid
        if n > 1 and paid:  # what was paid for was asked in one of the two ways, perhaps not in the one of now
            one_by_one = question(n, 0)[1] not in paid and (one_by_one or question(1, 1)[1] in paid)
        replies = [] if n > 1 and one_by_one else [await ask(n, 0)]
        missing = n - sum(len(reply.choices) for reply in replies)
        if replies and n > 1:
            self._gave_one = self._gave_one + 1 if len(replies[0].choices) == 1 else 0
        replies += await _all(partial(ask, 1, number) for number in range(1, missing + 1))
        choices = tuple(choice for reply in replies for choice in reply.choices)[:n]
        return Reply(choices, sum((reply.usage for reply in replies), Tokens()), all(reply.cached for reply in replies))

    async def _vectors(self, texts: list[str]) -> list[list[float]]:
        def understood(found: dict[str, Any]) -> tuple[list[list[float]], Tokens, str]:
            return *read_embeddings(found, len(texts)), "ok"

        body = {"input": texts, "encoding_format": "float", **self.config.extra_body}
        sent = {name: value for name, value in body.items() if value is not None}
        sent = sound(sent)
        vectors, _ = await self._request(EMBEDDINGS, sent, self._key(EMBEDDINGS, sent, ()), understood)
        found: list[list[float]] = vectors
        return found

    @property
    def _open_ledger(self) -> Ledger:
        return self._ledger or current_ledger()

    def _key(self, path: str, body: Mapping[str, Any], marks: tuple[Any, ...]) -> str:
        return AnswerCache.key(self._address.base_url, self.config.model, path, {**body, "": marks})

    async def _request(
        self,
        path: str,
        body: dict[str, Any],
        key: str,
        read: Read,
        useful: Callable[[str], bool] = lambda outcome: True,
    ) -> tuple[Any, bool]:
        """One request from its beginning to its line in the ledger; what was read, and whether it came from the disk."""
        ledger = self._open_ledger
        entry = Entry(ledger.present_phase, self.role, self.config.model, "cancelled", 0)
        saved = ledger.paid.take(key) if ledger.paid is not None else None
        if saved is None and self._cache is not None:
            saved = self._cache.get(key)
        with suppress(MalformedResponse):  # somebody has changed the file: asked for anew
            if saved is not None:
                found, _, outcome = read(saved)
                ledger.record(replace(entry, outcome=outcome, cached=True))
                return found, True
        async with self._slots:
            ledger.check()
            began, spent = time.monotonic(), Tokens()
            attempt = 0
            try:
                while True:
                    await self._ready()
                    attempt += 1
                    raw: dict[str, Any] = {}
                    try:
                        raw = await self._send(path, body)
                        found, tokens, outcome = read(raw)
                        break
                    except Exception as error:
                        failure = failure_of(error, self._address)
                        if failure is None:
                            raise
                        spent += tokens_said(raw)  # an answer of no use is paid for all the same
                        entry = replace(entry, outcome=failure.kind)
                        await self._pause(attempt, failure)
                        entry = replace(entry, outcome="cancelled")
                if not (tokens.prompt or tokens.answer):
                    tokens = estimated(body, found.texts if isinstance(found, Reply) else [])
                entry, spent = replace(entry, outcome=outcome), spent + tokens
            finally:
                ledger.record(
                    replace(
                        entry,
                        attempts=attempt,
                        tokens_in=spent.prompt,
                        tokens_cached=spent.cached,
                        tokens_out=spent.answer,
                        cost=cost_of(spent, self.config),
                        seconds=round(time.monotonic() - began, 3),
                        estimated=spent.estimated,
                    )
                )
        if ledger.paid is not None and useful(outcome):
            ledger.paid.put(key, raw)
        if self._cache is not None and outcome in ("ok", "length"):  # another outcome may be a better one tomorrow
            self._cache.put(key, raw)
        return found, False

    async def _send(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One attempt; the body of the answer."""
        kind = {CHAT: self._sdk.chat.completions, COMPLETIONS: self._sdk.completions, EMBEDDINGS: self._sdk.embeddings}
        named = {name: body[name] for name in ("messages", "prompt", "input", "encoding_format") if name in body}
        rest = {name: value for name, value in body.items() if name not in named}
        async with asyncio.timeout(self.config.timeout):  # the SDK's own begins again with every byte
            answer = await kind[path].with_raw_response.create(model=self.config.model, **named, extra_body=rest)
        reset = until_reset(answer.headers)
        if reset is not None:
            self._hold_off(reset)
        return read_body(answer.text, self._address.scrubbed)

    async def _ready(self) -> None:
        """Wait until the server's limits are reset, where it said that nothing remains."""
        while (left := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(left + self._random.uniform(0.0, 0.1 * left))

    def _hold_off(self, seconds: float) -> None:
        self._not_before = max(self._not_before, time.monotonic() + min(seconds, self.config.max_wait))

    async def _pause(self, attempt: int, failure: Failure) -> None:
        """Wait before the next attempt.

        Raises:
            EndpointError: there is none.
        """
        config = self.config
        wait = pause_before(attempt + 1, failure.wait, config.max_wait, self._random)
        if not failure.retryable or attempt > config.max_retries or wait is None:
            raise EndpointError(explained(failure, self.role, config, self._address, attempt), failure.kind) from None
        if failure.wait is not None:
            self._hold_off(failure.wait)  # the others are not to run into the same limit
        await asyncio.sleep(wait)

    def _told(self, text: str) -> str:
        return f"endpoints.{self.role}: {self.config.model!r} at {self.host} {printable(text)}"


def make_client(config: EndpointsConfig, role: Role, ledger: Ledger | None = None) -> Client:
    """The client of a role.

    Raises:
        ConfigError: the config has no such endpoint, or its key or address is missing.
        MissingDependencyError: the package openai is not installed.
    """
    own = config.of(role)
    if own is None:
        raise ConfigError(
            f"A language model was asked for as {role}, but the config has no endpoints.{role}. Set at least "
            f"endpoints.{role}.model, and endpoints.{role}.base_url where it is not OpenAI's own."
        )
    return Client(own, role, ledger)


def _judged(reply: Reply, schema: type[M]) -> tuple[M | None, str]:
    if reply.outcome == "tool_call":
        return None, "a tool was called, but there are none. Write the JSON object as text."
    found, problem = read_json(reply.text, schema)
    if found is None and reply.outcome == "length":
        problem = "it was cut off before its end. Be shorter."
    return found, problem


def _blame(reply: Reply) -> str:
    return reply.outcome if reply.outcome in ("refusal", "filtered", "tool_call", "empty", "length") else "malformed"


async def _all(asking: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """All results. What is on its way is waited for even where one fails: it is paid for."""
    done = await asyncio.gather(*(ask() for ask in asking), return_exceptions=True)
    found: list[T] = []
    for each in done:
        if isinstance(each, BaseException):
            raise each
        found.append(each)
    return found
