"""Responses of OpenAI-compatible servers as plain data. Fields that a server omits are tolerated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from skill_ttrl.llm.openai.failures import MalformedResponse
from skill_ttrl.llm.openai.ledger import Tokens
from skill_ttrl.storage.jsonl import parse_json

Outcome = Literal["ok", "length", "empty", "refusal", "filtered", "tool_call"]
BYTES_A_TOKEN = 4
"""Where nobody counts tokens."""
MOST_TOKENS = 10**9
"""A server that says that one answer took more is not believed."""
LARGEST = 1e30
"""Numbers beyond it are neither a log-prob nor part of a vector."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer."""

    text: str
    """Empty if the model returned no text, refused or called a tool."""
    finish_reason: str
    """In the server's word: "stop", "length", …"""
    outcome: Outcome
    """"length": cut off; "refusal": the model declined; "filtered": a filter of the server's cut it; "tool_call": a tool was
    called though none was offered."""
    logprobs: tuple[float, ...] | None = None
    """Of each token, in nats; None where the server gives none."""
    refusal: str | None = None
    """Refusal message of the model; None if it did not refuse."""
    stopped_at: str | None = None
    """Stop text that ended the answer, if the server reports it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answers to one question; the properties are those of the first."""

    choices: tuple[Choice, ...]
    usage: Tokens = field(default_factory=Tokens)
    cached: bool = False
    """True if it came from the disk and cost nothing."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts, in order."""
        return tuple(choice.text for choice in self.choices)

    @property
    def text(self) -> str:
        """The first text."""
        return self.choices[0].text

    @property
    def outcome(self) -> Outcome:
        """Outcome of the first choice that is not "ok"; "ok" if all are."""
        return next((choice.outcome for choice in self.choices if choice.outcome != "ok"), "ok")


def read_body(text: str, scrubbed: Callable[[str], str] = str) -> dict[str, Any]:
    """The object that a body spells.

    `scrubbed` takes secrets out of texts as they are after reading: JSON can spell a sign in many ways.

    Raises:
        MalformedResponse: it is no JSON object.
    """
    try:
        body = sound(parse_json(text), scrubbed)
    except ValueError as error:
        raise MalformedResponse(f"its answer is no JSON ({error})") from None
    if not isinstance(body, dict):
        raise MalformedResponse(f"its answer is no JSON object, but {type(body).__name__}")
    return body


def sound(value: Any, scrubbed: Callable[[str], str] = str) -> Any:
    """A value of JSON with each text in it made fit for files and servers, names of fields included: half of a surrogate pair,
    which JSON can spell and UTF-8 cannot, becomes U+FFFD. `scrubbed` takes secrets out.
    """
    if isinstance(value, str):
        whole = value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return scrubbed(whole)
    if isinstance(value, list):
        return [sound(each, scrubbed) for each in value]
    if isinstance(value, dict):
        return {sound(name, scrubbed): sound(each, scrubbed) for name, each in value.items()}
    return value


def read_reply(body: Mapping[str, Any]) -> Reply:
    """The reply that a chat completion or a text completion holds.

    Raises:
        MalformedResponse: it has no choices, or they are of another shape.
    """
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(each, Mapping) for each in choices):
        error = body.get("error")  # some servers send one with status 200
        said = f"; it says: {_inner(error, 'message') or error}" if error else ""
        raise MalformedResponse(f"its answer has no choices{said}")
    return Reply(tuple(map(_choice, choices)), tokens_said(body))


def read_embeddings(body: Mapping[str, Any], count: int) -> tuple[list[list[float]], Tokens]:
    """The vectors of `count` texts, in order.

    Raises:
        MalformedResponse: there are more or fewer, they differ in length, or they are no finite numbers.
    """
    data = body.get("data")
    if not isinstance(data, list) or not all(isinstance(each, Mapping) for each in data):
        raise MalformedResponse("its answer has no list `data`")
    found = {each.get("index", place): each.get("embedding") for place, each in enumerate(data)}
    if sorted(found, key=str) != sorted(range(count), key=str):
        raise MalformedResponse(f"it returned {len(data)} vectors for {count} texts")
    vectors = [found[place] for place in range(count)]
    for vector in vectors:
        if not isinstance(vector, list) or not vector or not all(_finite(value) for value in vector):
            raise MalformedResponse("a vector is no list of finite numbers")
    if len({len(vector) for vector in vectors}) > 1:
        raise MalformedResponse("its vectors differ in length")
    return [[float(value) for value in vector] for vector in vectors], tokens_said(body)


def tokens_said(body: Mapping[str, Any]) -> Tokens:
    """Read the token usage of a body, even of one that is otherwise unusable; zero tokens if the usage is missing or invalid."""
    usage = body.get("usage")
    if not isinstance(usage, Mapping):
        return Tokens()
    prompt, answer = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    cached = _count(_inner(usage, "prompt_tokens_details", "cached_tokens"))
    if prompt is None or answer is None:
        return Tokens()
    return Tokens(prompt, min(cached or 0, prompt), answer)


def estimated(asked: Mapping[str, Any], texts: Sequence[str]) -> Tokens:
    """Tokens of a request whose server counts none."""
    prompt = json.dumps(asked.get("messages") or asked.get("prompt") or asked.get("input") or "", ensure_ascii=False)
    return Tokens(tokens_in_text(prompt), 0, sum(map(tokens_in_text, texts)), estimated=True)


def tokens_in_text(text: str) -> int:
    """About how many tokens a text has."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / BYTES_A_TOKEN)


def _choice(choice: Mapping[str, Any]) -> Choice:
    message, refusal, called = choice.get("message"), None, False
    if isinstance(message, Mapping):
        text, refusal = _text_of(message.get("content")), str(message["refusal"]) if message.get("refusal") else None
        called = bool(message.get("tool_calls") or message.get("function_call"))
        entries = _inner(choice, "logprobs", "content")
        scores = [_inner(entry, "logprob") for entry in entries] if isinstance(entries, list) else None
    elif isinstance(choice.get("text"), str):
        text, scores = choice["text"], _inner(choice, "logprobs", "token_logprobs")
    else:
        raise MalformedResponse("a choice has neither a message nor a text")
    reason = str(choice.get("finish_reason") or "stop")
    outcome: Outcome = "ok"
    if reason == "content_filter":
        outcome = "filtered"
    elif refusal is not None:
        outcome = "refusal"
    elif called or reason in ("tool_calls", "function_call"):
        outcome = "tool_call"
    elif reason == "length":
        outcome = "length"
    elif not text:
        outcome = "empty"
    logprobs = None
    if isinstance(scores, list) and all(_finite(each) for each in scores):  # half a list says nothing of the whole
        logprobs = tuple(float(each) for each in scores)
    stopped = choice.get("stop_reason")
    return Choice(text, reason, outcome, logprobs, refusal, stopped if isinstance(stopped, str) else None)


def _text_of(content: Any) -> str:
    """A message's content: a text, nothing, or parts of which the texts count."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    raise MalformedResponse(f"a message's content is {type(content).__name__}")


def _inner(value: Any, *names: str) -> Any:
    """A field of a field; None where one of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _finite(value: Any) -> bool:
    """Compared, not converted: an integer of JSON may be too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _count(value: Any) -> int | None:
    """0 where nothing is said; None where what is said is no count."""
    if value is None:
        return 0
    return int(value) if _finite(value) and 0 <= value <= MOST_TOKENS else None
