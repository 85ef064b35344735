"""One client for OpenAI's protocol: policy, teacher, merger, optimizer and embeddings ask remote models through it.

Each request is reserved in the budget, sent by the `openai` SDK with its own retries, and recorded with its answer in the ledger. A
request that the ledger's file answers is not sent. docs/endpoints.md describes all of it for users.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import BaseModel

from skill_ttrl.config import EndpointConfig, EndpointsConfig, Role
from skill_ttrl.errors import ConfigError, EndpointError, MissingDependencyError
from skill_ttrl.llm.backend import BackgroundEventLoop
from skill_ttrl.llm.openai.ledger import CountedRequest, Entry, Ledger, Usage, cost_of, counted_request, current_ledger
from skill_ttrl.llm.openai.replies import (
    Address,
    MalformedResponse,
    Reply,
    estimated,
    failure_of,
    find_address,
    instruction,
    read_body,
    read_embeddings,
    read_json,
    read_reply,
    repair,
    response_format,
    short,
    sound,
    tokens_said,
)
from skill_ttrl.llm.server_key import is_localhost
from skill_ttrl.sanitize import one_line
from skill_ttrl.types import Message, ToolCall, derive_seed

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Read = Callable[[Mapping[str, Any]], tuple[T, str, bool]]
"""An answer's body → what was wanted, the outcome for the ledger, and whether a resumed command is given the same answer."""

DECLINED = ("refusal", "filtered")
CHAT, EMBEDDINGS = "chat/completions", "embeddings"
BATCH_TEXTS = 32
"""Texts embedded by one request; small servers take no more."""
SEEDS = 1 << 31
"""Seeds are below this: some servers read 32 bits."""
MOST_BYTES = 64 << 20
"""Longest answer that is read, unpacked: many samples with their log-probs have a few MiB."""
PACKINGS = ("", "identity", "gzip", "deflate")
"""Ways of packing an answer that are asked for: what they make of one piece has a bound."""
AROUND_A_TEXT = 16
"""Most tokens that a chat template adds around a message, in addition to its role."""
AROUND_ALL = 128
"""Most tokens that a chat template adds around a conversation, e.g. a system message of its own."""


class Client:
    """Asks one model.

    Args:
        config: where it is and how it is asked.
        role: what it is asked for, in the ledger and in messages.
        ledger: where requests are recorded; None: the ledger of the caller's context when they begin (`ledger.track_usage`).
        key: a key that was handed in; None: that of the environment.
        api_version: of Azure's interface; None: `OPENAI_API_VERSION`.

    Raises:
        ConfigError: a key or an address is missing.
        MissingDependencyError: the package openai is not installed.
    """

    def __init__(
        self,
        config: EndpointConfig,
        role: Role,
        ledger: Ledger | None = None,
        *,
        key: str | None = None,
        api_version: str | None = None,
    ) -> None:
        self.config, self.role = config, role
        self._address = find_address(config, role, key, api_version)
        self._sdk = _connect(self._address, config, role)
        self._ledger = ledger
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._loop = BackgroundEventLoop(f"endpoints.roles.{role}")

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
        extra: Mapping[str, Any] | None = None,
    ) -> Reply:
        """`n` answers to a conversation; where the server gives fewer at a time, the missing ones are requested one by one.

        Args:
            messages: the conversation.
            n: answers.
            temperature: of the sampling; None: the config's, else the server's.
            top_p: None: the server's.
            max_tokens: longest answer; None: the config's.
            stop: texts that end an answer.
            seed: of the sampling, where the server knows seeds.
            extra: further fields of the request; one that is None is left out, also where the config names it.

        Raises:
            EndpointError: it came to nothing; `kind` says why.
            BudgetError: the budget is spent.
        """
        body = {
            "messages": _spoken(messages),
            "temperature": self.config.temperature if temperature is None else temperature,
            "max_completion_tokens": max_tokens or self.config.max_tokens,
            "top_p": top_p,
            "stop": list(stop) or None,
            "logprobs": self.config.logprobs or None,
        }

        async def request(count: int, number: int) -> Reply:
            own = seed if seed is None or not number else derive_seed(seed, "again", number)
            numbers = {"n": count if count > 1 else None, "seed": None if own is None else own % SEEDS}
            sent = self._sent({**body, **numbers}, extra)
            # What tells two samples apart is part of the request's digest, also where the server is not sent it.
            return await self._request(CHAT, sent, (own, number), _reply)

        async def whole() -> Reply:
            first = await request(n, 0)
            rest = await _all(request(1, number) for number in range(1, n - len(first.choices) + 1))
            choices = tuple(choice for reply in (first, *rest) for choice in reply.choices)[:n]
            return Reply(choices, sum((reply.usage for reply in rest), first.usage))

        return await self._loop.run(whole())

    async def json(self, messages: Sequence[Message], schema: type[M], *, repairs: int = 1) -> M:
        """One answer that fits `schema`, requested again up to `repairs` times with what was wrong where it does not.

        `extra_body` may name another `response_format` than the schema, or null for a server that knows none.

        Raises:
            EndpointError: it came to nothing; of kind `malformed` where no answer fitted, of kind `refusal` or `filtered`
                where there was none.
            BudgetError: the budget is spent.
        """
        asked = [*messages]
        if "response_format" in self.config.extra_body:  # nothing else tells the model
            asked.append(Message("user", instruction(schema)))
        for left in range(repairs, -1, -1):
            body = {
                "messages": _spoken(asked),
                "temperature": self.config.temperature,
                "max_completion_tokens": self.config.max_tokens,
                "response_format": response_format(schema),
            }
            going = self._request(CHAT, self._sent(body), (None, 0), partial(_fitting, schema, left))
            found, reply, problem = await self._loop.run(going)
            if found is not None:
                return found
            if reply.outcome in DECLINED:
                said = reply.choices[0].refusal or "the server's content filter cut the answer"
                raise EndpointError(self._message(f"declined to answer: {short(said)}"), reply.outcome)
            asked += [Message("assistant", reply.text), Message("user", repair(problem))]
        begins = f" Its last answer starts with: {reply.text[:120]!r}." if reply.text else ""
        raise EndpointError(
            self._message(f"returned no {schema.__name__} in {repairs + 1} answers: {problem}{begins}")
            + f" Try another model, or endpoints.roles.{self.role}.extra_body={{response_format: {{type: json_object}}}}.",
            "malformed",
        )

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text, in order, as the server gives them: not normalised.

        Raises:
            EndpointError: it came to nothing.
            BudgetError: the budget is spent.
        """

        async def vectors(part: list[str]) -> list[list[float]]:
            sent = self._sent({"input": part, "encoding_format": "float"})
            return await self._request(
                EMBEDDINGS, sent, (), lambda answer: (read_embeddings(answer, len(part)), "ok", True)
            )

        batches = [list(texts[start : start + BATCH_TEXTS]) for start in range(0, len(texts), BATCH_TEXTS)]
        found = await _all(self._loop.run(vectors(batch)) for batch in batches)
        return [vector for batch in found for vector in batch]

    def shut(self) -> None:
        """Cancel running requests and end the connections. Safe to call twice."""
        self._loop.close(self._sdk.close())

    def _sent(self, body: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The body as it is sent: with the config's own fields, then `extra`; those that are None are left out."""
        given = {name: value for name, value in body.items() if value is not None}
        fields = {**given, **self.config.extra_body, **(extra or {})}
        return dict(sound({name: value for name, value in fields.items() if value is not None}))

    async def _request(self, path: str, body: dict[str, Any], marks: tuple[Any, ...], read: Read[T]) -> T:
        """The result of `read` on the answer, which comes from the ledger's file where it is there.

        Args:
            path: of the interface.
            body: what is sent.
            marks: tell apart requests that are sent alike.
            read: raises `MalformedResponse` for an answer to be requested again.

        Raises:
            EndpointError: it came to nothing; `kind` says why.
            BudgetError: the budget is spent.
        """
        config, ledger = self.config, self._ledger or current_ledger()
        key = digest(self.role, config.model, path, {**body, "": marks})
        saved = ledger.take(key)
        with suppress(MalformedResponse):  # somebody has changed the file: requested anew
            if saved is not None:
                found, outcome, _ = read(saved)
                ledger.record(Entry(ledger.current_phase(), self.role, config.model, outcome, 0, cached=True))
                return found
        most = Usage(attempts=config.max_retries + 1) + (self._most(path, body) if ledger.bounded else Usage())
        counted = counted_request(self.role, config.model, most, ledger=ledger, prices=config, key=key)
        async with self._slots, counted as request:
            understood: list[tuple[tuple[T, str, bool], dict[str, Any]]] = []

            def understand(text: str) -> None:
                answer = read_body(text, self._address.scrubbed)
                request.tokens += tokens_said(answer)  # of one that cannot be used too: it is paid for
                understood.append((read(answer), answer))

            _sending.set((request, understand))
            try:
                sdk = self._sdk.with_options(max_retries=request.allowed - 1)
                await sdk.post(f"/{path}", body={"model": config.model, **body}, cast_to=str)
            except Exception as error:
                failure = failure_of(error, config, self.role, self._address, request.attempts)
                if failure is None:
                    raise
                raise failure from None
            (found, request.outcome, reusable), answer = understood[0]
            if not request.tokens.tokens:
                request.tokens = estimated(body, answer)
            request.answer = answer if reusable else None
        return found

    def _most(self, path: str, body: Mapping[str, Any]) -> Usage:
        """The most tokens and money that a request can take.

        A prompt's bytes are taken: no tokenizer that works on bytes makes more tokens than that.

        Raises:
            ConfigError: the body bounds no answer.
        """
        config, answer = self.config, 0
        messages, texts = body.get("messages") or (), body.get("input") or ()
        prompt = len(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        # A template surrounds messages; for plain texts a tokenizer adds its marks of a beginning and an end.
        prompt += (len(messages) + len(texts)) * AROUND_A_TEXT + (AROUND_ALL if messages else 0)
        if path != EMBEDDINGS:
            limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if isinstance(body.get(name), int)]
            if not limits:
                raise ConfigError(
                    f"endpoints.roles.{self.role}.extra_body removes the limit of an answer (max_completion_tokens) from requests, so a budget "
                    "cannot be enforced. Name another limit there (max_tokens), or set no budget."
                )
            answer = max(limits) * max(
                [1, *(body[name] for name in ("n", "best_of") if isinstance(body.get(name), int))]
            )
        most = Usage(tokens_in=prompt, tokens_out=answer)
        return replace(most, cost=cost_of(most, config) or 0.0)

    def _message(self, text: str) -> str:
        return f"endpoints.roles.{self.role}: {self.config.model!r} at {self.host} {one_line(text)}"


def make_client(config: EndpointsConfig, role: Role) -> Client:
    """The client of a role.

    Raises:
        ConfigError: the config has no such endpoint, or its key or address is missing.
        MissingDependencyError: the package openai is not installed.
    """
    own = config.of(role)
    if own is None:
        raise ConfigError(
            f"{role} needs a language model, but the config names none. Set at least endpoints.roles.{role}.model, and "
            f"endpoints.roles.{role}.base_url unless it is OpenAI's own; without `roles.{role}` they hold for all roles."
        )
    return Client(own, role)


def digest(*asked: Any) -> str:
    """SHA-256 of what is asked of whom."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def _connect(address: Address, config: EndpointConfig, role: Role) -> Any:
    """The SDK's client for an address. It reads no more of an answer than memory has room for, and waits no longer than
    `timeout` for the whole of it.

    Raises:
        ConfigError: a proxy or certificate that the environment names cannot be used.
        MissingDependencyError: the package openai is not installed.
    """
    try:
        import openai
    except ImportError:
        raise MissingDependencyError.for_extra(f"endpoints.roles.{role}", "openai") from None
    # The package of the SDK's client, already imported by it: httpx, later httpx2.
    http: Any = sys.modules[openai.DefaultAsyncHttpxClient.__bases__[0].__module__.partition(".")[0]]

    class Bounded(openai.DefaultAsyncHttpxClient):
        async def send(self, request: Any, **how: Any) -> Any:
            """Send it once: the SDK repeats a request, also one whose answer cannot be read, by sending it again."""
            counted, understand = _sending.get()
            counted.attempts += 1
            try:
                async with asyncio.timeout(config.timeout):  # the SDK's own begins again with every byte
                    response = await self._whole(request, how)
                if response.is_success:
                    understand(response.text)
                return response
            except TimeoutError:
                raise http.ReadTimeout("there was no answer in time", request=request) from None
            except MalformedResponse as error:
                raise http.DecodingError(str(error), request=request) from error

        async def _whole(self, request: Any, how: dict[str, Any]) -> Any:
            response = await super().send(request, **{**how, "stream": True})
            try:
                packing = response.headers.get("content-encoding", "").strip().lower()
                if packing not in PACKINGS:
                    raise MalformedResponse(f"its answer is compressed as {packing}, which was not requested")
                body = bytearray()
                async for piece in response.aiter_bytes():  # unpacked piece by piece: a small answer may be a large one
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise MalformedResponse(f"its answer has more than {MOST_BYTES >> 20} MiB")
            finally:
                await response.aclose()
            gone = ("content-encoding", "content-length", "transfer-encoding")
            headers = [pair for pair in response.headers.multi_items() if pair[0].lower() not in gone]
            return type(response)(response.status_code, headers=headers, content=bytes(body), request=request)

    name = urlsplit(address.base_url).hostname or ""
    near = f"[{name}]" if ":" in name else name
    try:
        connections = Bounded(
            timeout=config.timeout,
            headers={"accept-encoding": "gzip, deflate"},
            follow_redirects=False,  # a key must not travel on to another host
            # No proxy reaches this machine's own servers.
            mounts={f"all://{near}": None} if is_localhost(name) else None,
        )
    except Exception as error:  # whatever a proxy or a certificate of the environment makes of it
        raise ConfigError(
            f"endpoints.roles.{role}: the proxy or certificate settings of the environment do not work ({type(error).__name__}). "
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY must be http://HOST:PORT, SSL_CERT_FILE an existing file; NO_PROXY lists "
            "servers to reach without the proxy."
        ) from None
    common: dict[str, Any] = {"api_key": address.key, "timeout": config.timeout, "http_client": connections}
    if config.provider == "azure":
        return openai.AsyncAzureOpenAI(azure_endpoint=address.base_url, api_version=address.api_version, **common)
    return openai.AsyncOpenAI(base_url=address.base_url, **common)


def _reply(answer: Mapping[str, Any]) -> tuple[Reply, str, bool]:
    reply = read_reply(answer)
    return reply, reply.outcome, True


def _fitting(schema: type[M], left: int, answer: Mapping[str, Any]) -> tuple[tuple[M | None, Reply, str], str, bool]:
    """The part of an answer that fits the schema, else None, with what is wrong; `left` repairs may follow.

    A resumed run must not meet again the answer that ended it; one that is followed by a repair did not.
    """
    reply = read_reply(answer)
    value, wrong = read_json(reply.text, schema)
    outcome: str = reply.outcome
    if outcome == "tool_call":
        value, wrong = None, "a tool was called, but none is available. Write the JSON object as text."
    elif value is not None:
        outcome = "ok"
    elif outcome == "length":
        wrong = "it was cut off before its end. Be shorter."
    elif outcome == "ok":
        outcome = "malformed"
    return (value, reply, wrong), outcome, outcome == "ok" or (left > 0 and outcome not in DECLINED)


def _spoken(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation without empty turns, which servers refuse.

    Messages of one role around an empty turn are merged, since servers also refuse two of one role in a row.
    """
    said: list[dict[str, Any]] = []
    gap = False
    for each in messages:
        turn: dict[str, Any] = {"role": each.role, "content": each.content}
        if each.calls:
            turn |= {"content": each.content or None, "tool_calls": [*map(_called, each.calls)]}
        elif each.call is not None:
            turn["tool_call_id"] = each.call.id
        elif not each.content.strip():
            gap = True
            continue
        if gap and said and said[-1]["role"] == each.role and len(said[-1]) == len(turn) == 2:
            said[-1]["content"] += f"\n\n{each.content}"
        else:
            said.append(turn)
        gap = False
    return said or [{"role": each.role, "content": each.content} for each in messages]


def _called(call: ToolCall) -> dict[str, Any]:
    """A call as it is sent back; arguments that are no JSON are left out, since some servers parse them."""
    function = {"name": call.name or "none", "arguments": "{}" if call.error == "not_json" else call.arguments}
    return {"id": call.id, "type": "function", "function": function}


async def _all(asked: Iterable[Awaitable[T]]) -> list[T]:
    """All results. What is on its way is waited for even where one fails: it is paid for."""
    done = await asyncio.gather(*asked, return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each
    return cast(list[T], done)


_sending: ContextVar[tuple[CountedRequest, Callable[[str], None]]] = ContextVar("sending")
