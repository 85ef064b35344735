"""One client for OpenAI's protocol: policy, teacher, merger and embeddings ask remote models through it.

`transport` sends the requests; here they are made, and the answers understood (`replies`, `structured`). docs/endpoints.md
describes all of it for users.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack, cast

from pydantic import BaseModel

from skill_ttrl.config import EndpointConfig, EndpointsConfig, Role
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.event_loop import BackgroundEventLoop
from skill_ttrl.llm.openai.failures import printable, short
from skill_ttrl.llm.openai.ledger import Ledger, Tokens
from skill_ttrl.llm.openai.replies import Reply, read_chat, read_completion, read_embeddings, sound
from skill_ttrl.llm.openai.structured import instruction, read_json, repair, response_format
from skill_ttrl.llm.openai.transport import CHAT, COMPLETIONS, EMBEDDINGS, Transport
from skill_ttrl.types import Message, derive_seed

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

BATCH_TEXTS = 32
"""Texts embedded by one request; small servers take no more."""
SEEDS = 1 << 31
"""Seeds are below this: some servers read 32 bits."""


class AskOptions(TypedDict, total=False):
    """How to sample. What is left out, or None, is as the config says, else as the server does it."""

    n: int
    """Answers; 1 where it is left out. Where the server gives fewer at a time, the missing ones are asked for."""
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    """Longest answer."""
    stop: Sequence[str]
    """Texts that end an answer."""
    seed: int | None
    """Of the sampling, where the server knows seeds."""
    logprobs: bool | None
    """Ask for log-probs."""
    extra: Mapping[str, Any] | None
    """Further fields of the request; one that is None is left out of it, also where the config names it."""


class Client:
    """Asks one model.

    Args:
        config: where it is and how it is asked.
        role: what it is asked for, in the ledger and in messages.
        ledger: where requests are recorded; None: the ledger of the caller's context when they begin (`ledger.track_usage`).
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
        self._transport = Transport(config, role, ledger, key)
        self._loop = BackgroundEventLoop(f"endpoints.{role}")
        # Times in a row that one answer came where more were asked for; after two, one is asked at a time.
        self._gave_one = 0

    def __repr__(self) -> str:
        return f"Client({self.role}: {self.config.model!r} at {self.host})"

    @property
    def host(self) -> str:
        """Host and port of the server."""
        return self._transport.address.host

    async def chat(self, messages: Sequence[Message], **how: Unpack[AskOptions]) -> Reply:
        """`n` answers to a conversation.

        Raises:
            EndpointError: it came to nothing; `kind` says why.
            BudgetError: the budget is spent.
        """
        return await self._loop.run(self._answers(CHAT, _said(messages), read_chat, how))

    async def complete(self, prompt: str, **how: Unpack[AskOptions]) -> Reply:
        """`n` continuations of a text, by the completions interface; otherwise as `chat`."""
        return await self._loop.run(self._answers(COMPLETIONS, {"prompt": prompt}, read_completion, how))

    async def json(self, messages: Sequence[Message], schema: type[M], *, repairs: int = 1) -> M:
        """One answer that fits `schema`, asked for as `config.structured` says, and again up to `repairs` times where it does not.

        What form the answer is to have is added to the conversation; a repeated request names what was wrong with the answer.

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
                if held[-1][0] is not None:
                    return "ok"
                return "malformed" if reply.outcome == "ok" else reply.outcome

            def useful(outcome: str, left: int = left) -> bool:
                """A resumed run must not meet again the answer that ended it; one that is followed by a repair did not."""
                return outcome == "ok" or (left > 0 and outcome not in ("refusal", "filtered"))

            body = {**_said(asked), "response_format": form}
            reply = await self._loop.run(self._answers(CHAT, body, read_chat, {"logprobs": False}, judge, useful))
            found, problem = held[-1]
            if found is not None:
                return found
            if reply.outcome in ("refusal", "filtered"):
                said = reply.choices[0].refusal or "a filter of the server's cut the answer"
                raise EndpointError(self._message(f"declined to answer: {short(said)}"), reply.outcome)
            asked += [*([Message("assistant", reply.text)] if reply.text else []), Message("user", repair(problem))]
        begins = f" Its last answer begins: {reply.text[:120]!r}." if reply.text else ""
        raise EndpointError(
            self._message(f"gave no {schema.__name__} in {repairs + 1} answers: {problem}{begins}")
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
        """Cancel running requests and end the connections. Safe to call twice."""
        self.shut()

    def shut(self) -> None:
        """`close` for callers without an event loop."""
        self._loop.close(self._transport.sdk.close())

    def _sampling(self, path: str, how: AskOptions) -> dict[str, Any]:
        config, temperature = self.config, how.get("temperature")
        limit_field = "max_tokens" if path == COMPLETIONS else config.token_limit_field
        wanted = config.logprobs if how.get("logprobs") is None else how["logprobs"]
        return {
            "temperature": config.temperature if temperature is None else temperature,
            "top_p": how.get("top_p"),
            limit_field: how.get("max_tokens") or config.max_tokens,
            "stop": list(how.get("stop", ())) or None,
            "logprobs": None if not wanted else 1 if path == COMPLETIONS else True,
        }

    async def _answers(
        self,
        path: str,
        body: dict[str, Any],
        read: Callable[[Mapping[str, Any]], Reply],
        how: AskOptions,
        judge: Callable[[Reply], str] = lambda reply: reply.outcome,
        useful: Callable[[str], bool] = lambda outcome: True,
    ) -> Reply:
        """`n` choices, by one request where the server can, else by several; those of a `useful` outcome are saved once paid."""
        n, seed = how.get("n", 1), how.get("seed")
        body = _without_none({**body, **self._sampling(path, how)})

        def understood(found: dict[str, Any]) -> tuple[Reply, Tokens, str]:
            reply = read(found)
            return reply, reply.usage, judge(reply)

        def question(count: int, number: int) -> tuple[dict[str, Any], str]:
            own = seed if seed is None or not number else derive_seed(seed, "again", number)
            asked = {**body, **({"n": count} if count > 1 else {}), **({} if own is None else {"seed": own % SEEDS})}
            sent = sound(_without_none({**asked, **self.config.extra_body, **(how.get("extra") or {})}))
            # What tells two samples apart is part of a saved answer's name, also where the server is not sent it.
            return sent, self._transport.key(path, sent, (own, number))

        async def ask(count: int, number: int) -> Reply:
            found, cached = await self._transport.request(path, *question(count, number), understood, useful)
            return replace(found, cached=cached)

        one_by_one = self._gave_one > 1
        paid = self._transport.ledger.paid
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

        sent = sound(_without_none({"input": texts, "encoding_format": "float", **self.config.extra_body}))
        key = self._transport.key(EMBEDDINGS, sent, ())
        return (await self._transport.request(EMBEDDINGS, sent, key, understood))[0]

    def _message(self, text: str) -> str:
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


def _said(messages: Sequence[Message]) -> dict[str, Any]:
    return {"messages": [{"role": each.role, "content": each.content} for each in messages]}


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


async def _all(asking: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """All results. What is on its way is waited for even where one fails: it is paid for."""
    done = await asyncio.gather(*(ask() for ask in asking), return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each
    return cast(list[T], done)
