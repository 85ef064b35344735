"""Responses of OpenAI-compatible servers as plain data. Fields that a server omits are tolerated."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from skill_ttrl.config import EndpointConfig, Role
from skill_ttrl.config.backends import plain_address
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.openai.ledger import Usage
from skill_ttrl.llm.server_key import found_key
from skill_ttrl.sanitize import one_line
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import ToolCall, json_content

OPENAI = "https://api.openai.com/v1"
AZURE_VERSION = "2024-12-01-preview"
"""Version of Azure's interface where neither the caller nor `OPENAI_API_VERSION` names one."""
NO_KEY = "none"
"""Sent where a server of one's own asks for no key."""
HIDDEN = "[key]"
SHORTEST_KEY = 6
"""A shorter one is a word such as `none` or `EMPTY`, and no secret."""


@dataclass(frozen=True)
class Address:
    """One model's server."""

    base_url: str
    host: str
    key: str = field(repr=False)
    api_version: str | None = None
    key_variable: str = ""

    @property
    def is_open(self) -> bool:
        """True if no key is sent."""
        return self.key == NO_KEY

    def scrubbed(self, text: str) -> str:
        """The text without the key."""
        return text.replace(self.key, HIDDEN) if len(self.key) >= SHORTEST_KEY else text


def find_address(config: EndpointConfig, role: Role, key: str | None = None, api_version: str | None = None) -> Address:
    """The address of a role's model; `key` and `api_version` come before those of the environment.

    Raises:
        ConfigError: a key or an address is missing; the message names the variable that would hold it.
    """
    azure = config.provider == "azure"
    variable = "AZURE_OPENAI_ENDPOINT" if azure else "OPENAI_BASE_URL"
    base_url = config.base_url or _address_in(variable) or ("" if azure else OPENAI)
    if not base_url:
        raise ConfigError(
            f"endpoints.roles.{role} uses Azure but has no address. Set endpoints.roles.{role}.base_url=https://NAME.openai.azure.com, "
            f"or the environment variable {variable}."
        )
    version = api_version or os.environ.get("OPENAI_API_VERSION", "").strip() or AZURE_VERSION if azure else None
    key_variable = config.api_key_env or ("AZURE_OPENAI_API_KEY" if azure else "OPENAI_API_KEY")
    own = found_key(base_url) if config.api_key_env is None and not azure else ""
    key = (key or own or os.environ.get(key_variable, "")).strip()
    host = urlsplit(base_url).netloc
    if not key:
        if azure or config.api_key_env is not None or host == urlsplit(OPENAI).netloc:
            raise ConfigError(
                f"endpoints.roles.{role} ({config.model!r} at {host}) needs a key, but the environment variable {key_variable} is not set. "
                f"Set it, or name another with endpoints.roles.{role}.api_key_env."
            )
        key = NO_KEY
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"The environment variable {key_variable} does not hold a key: it contains spaces or characters that are not printable ASCII."
        )
    return Address(base_url, host, key, version, key_variable)


def _address_in(variable: str) -> str:
    found = os.environ.get(variable, "").strip()
    try:
        return found and plain_address(found)
    except (ValueError, ValidationError) as error:
        raise ConfigError(f"The environment variable {variable} is not a usable address: {error}.") from None


LONGEST = 400
"""Most characters of a server's message that are shown."""
STATUS = {
    **{401: "unauthorized", 402: "quota", 403: "forbidden", 404: "not_found"},
    **{408: "timeout", 409: "server_error", 429: "rate_limited"},
}
EMPTY_ACCOUNT = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
"""Codes of a 429 that no pause cures; OpenAI tells the SDK not to retry them."""
FATAL_KINDS = frozenset({"unauthorized", "forbidden", "not_found", "quota", "unreachable", "redirected"})
"""Kinds of failure that would affect every request, not only this one."""

_CHECK = "Check that {here} suits this server: logprobs, extra_body (a field that is null there is not sent), and the length of the prompt."
_LATER = "Try again later, or raise {here}.max_retries ({config.max_retries})."
_KEY = "Check the key in the environment variable {address.key_variable}, and that it has access to this model."
_MESSAGES = {
    "unauthorized": ("does not accept the key", _KEY),
    "forbidden": ("denies access to this key", _KEY),
    "not_found": ("was not found", "Check {what} and {here}.base_url ({address.base_url})."),
    "refused": ("refused the request", _CHECK),
    "quota": ("has no credit left", "Add credit, or name another model; the same command then continues."),
    "rate_limited": ("is limiting the rate of requests", _LATER),
    "server_error": ("failed", _LATER),
    "timeout": ("did not answer", "Raise {here}.timeout ({config.timeout:g} s), or lower {here}.max_concurrency."),
    "dropped": ("dropped the connection", _LATER),
    "unreachable": (
        "cannot be reached",
        "Check that the server runs and that {here}.base_url ({address.base_url}) is right.",
    ),
    "unreadable": ("returned an answer that cannot be read", _LATER),
    "redirected": ("redirects to another address, where keys are not sent", "Set {here}.base_url to that address."),
}
"""Description of each kind of failure, and its remedy."""


class MalformedResponse(ValueError):
    """An answer that is no JSON, or lacks what it must have."""


def failure_of(
    error: Exception, config: EndpointConfig, role: Role, address: Address, attempts: int
) -> EndpointError | None:
    """The user's error for an exception of the SDK; None for an exception that is a bug in this program."""
    import openai

    status, parameter = None, ""
    cause = error.__cause__ or error
    if isinstance(cause.__cause__, MalformedResponse):
        kind, said = "unreadable", str(cause)
    elif isinstance(error, openai.APIStatusError):
        stated = error.body if isinstance(error.body, Mapping) else {"message": error.body}
        said = str(stated.get("message") or stated.get("detail") or error.response.text)
        code, status = stated.get("code") or stated.get("type"), error.status_code
        other = "redirected" if status < 400 else "server_error" if status >= 500 else "refused"
        kind = "quota" if status == 429 and code in EMPTY_ACCOUNT else STATUS.get(status, other)
        parameter = f"{stated.get('param') or ''}"
    elif isinstance(error, openai.APITimeoutError):
        kind, said = "timeout", "there was no answer in time"
    elif isinstance(error, openai.APIConnectionError):
        kind = "unreachable" if type(cause).__name__ == "ConnectError" else "dropped"
        said = f"{type(cause).__name__}: {cause}".rstrip(": ")
    elif isinstance(error, UnicodeDecodeError):
        kind, said = "unreadable", "its answer is not text"
    else:
        return None
    said, parameter = short(address.scrubbed(said)), short(address.scrubbed(parameter)) if parameter else ""
    found, remedy = _MESSAGES[kind]
    if kind in ("unauthorized", "forbidden") and address.is_open:
        remedy = "No key was sent: set the environment variable {address.key_variable}, or {here}.api_key_env."
    what = "the deployment's name and the version" if config.provider == "azure" else "the model's name"
    text = [
        f"endpoints.roles.{role}: {config.model!r} at {address.host} {found}{f' ({status})' if status else ''}"
        f"{f', {attempts} times' if attempts > 1 else ''}: {said.rstrip('.')}.",
        f"It names the field {parameter!r}." if parameter else "",
        remedy.format(here=f"endpoints.roles.{role}", config=config, address=address, what=what),
    ]
    return EndpointError(" ".join(filter(None, text)), kind)


def short(text: str) -> str:
    """Return a server's message as one printable line, cut to `LONGEST` characters."""
    return one_line(text, LONGEST) or "no message"


Outcome = Literal["ok", "length", "empty", "refusal", "filtered", "tool_call"]
BYTES_A_TOKEN = 4
"""Where nobody counts tokens."""
MOST_TOKENS = 10**9
"""A server that says that one answer took more is not believed."""
CALLS = ("tool_calls", "function_call")
"""Fields of a message, and reasons of its end, where a tool was called."""
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
    """"length": cut off; "refusal": the model declined; "filtered": a filter of the server's cut it; "tool_call": the model
    called a tool."""
    logprobs: tuple[float, ...] | None = None
    """Of each token, in nats; None where the server gives none."""
    refusal: str | None = None
    """Refusal message of the model; None if it did not refuse."""
    stopped_at: str | None = None
    """Stop text that ended the answer, if the server reports it."""
    thought: str = ""
    """What the server gives apart from the text, as `reasoning_content` or `reasoning`."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of tools, each with an id."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answers to one question; the properties are those of the first."""

    choices: tuple[Choice, ...]
    usage: Usage = field(default_factory=Usage)

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
        raise MalformedResponse(f"its answer is not JSON ({error})") from None
    if not isinstance(body, dict):
        raise MalformedResponse(f"its answer is not a JSON object, but {type(body).__name__}")
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
    """The reply that a chat completion holds.

    Raises:
        MalformedResponse: it has no choices, or they are of another shape.
    """
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(each, Mapping) for each in choices):
        error = body.get("error")  # some servers send one with status 200
        said = f"; it says: {_inner(error, 'message') or error}" if error else ""
        raise MalformedResponse(f"its answer has no choices{said}")
    return Reply(tuple(map(_choice, choices)), tokens_said(body))


def read_embeddings(body: Mapping[str, Any], count: int) -> list[list[float]]:
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
            raise MalformedResponse("a vector is not a list of finite numbers")
    if len({len(vector) for vector in vectors}) > 1:
        raise MalformedResponse("its vectors differ in length")
    return [[float(value) for value in vector] for vector in vectors]


def tokens_said(body: Mapping[str, Any]) -> Usage:
    """Read the token usage of a body, even of one that is otherwise unusable; zero tokens if the usage is missing or invalid."""
    counts = [_inner(body, "usage", name) or 0 for name in ("prompt_tokens", "completion_tokens")]
    if not all(_finite(count) and 0 <= count <= MOST_TOKENS for count in counts):
        return Usage()
    return Usage(tokens_in=int(counts[0]), tokens_out=int(counts[1]))


def estimated(asked: Mapping[str, Any], answer: Mapping[str, Any]) -> Usage:
    """Tokens of a request and its answer whose server counts none."""
    said = [asked.get("messages") or asked.get("input") or "", *asked.get("tools", [])]
    choices = read_reply(answer).choices if "choices" in answer else ()
    texts = [each for choice in choices for each in (choice.text, *(call.arguments for call in choice.calls))]
    tokens_in = sum(tokens_in_text(json.dumps(each, ensure_ascii=False)) for each in said)
    return Usage(tokens_in=tokens_in, tokens_out=sum(map(tokens_in_text, texts)))


def tokens_in_text(text: str) -> int:
    """About how many tokens a text has."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / BYTES_A_TOKEN)


def _choice(choice: Mapping[str, Any]) -> Choice:
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise MalformedResponse("a choice has no message")
    text, reason = _text_of(message.get("content")), str(choice.get("finish_reason") or "stop")
    refusal = str(message["refusal"]) if message.get("refusal") else None
    outcome: Outcome = "ok"
    if reason == "content_filter":
        outcome = "filtered"
    elif refusal is not None:
        outcome = "refusal"
    elif any(message.get(name) for name in CALLS) or reason in CALLS:
        outcome = "tool_call"
    elif reason == "length":
        outcome = "length"
    elif not text:
        outcome = "empty"
    entries, logprobs = _inner(choice, "logprobs", "content"), None
    if isinstance(entries, list):
        scores = [_inner(entry, "logprob") for entry in entries]
        if all(map(_finite, scores)):  # half a list says nothing of the whole
            logprobs = tuple(map(float, scores))
    stopped = choice.get("stop_reason")
    thoughts = (message.get(name) for name in ("reasoning_content", "reasoning"))
    thought = next((each for each in thoughts if isinstance(each, str)), "")
    called = message.get("tool_calls")
    calls = tuple(read_call(each, place) for place, each in enumerate(called if isinstance(called, list) else ()))
    stopped_at = stopped if isinstance(stopped, str) else None
    return Choice(text, reason, outcome, logprobs, refusal, stopped_at, thought, calls)


def read_call(call: Any, place: int) -> ToolCall:
    """A call of a tool as a server writes it; what is no JSON object is answered with an error (`not_json`)."""
    name, given = (_inner(call, "function", field) for field in ("name", "arguments"))
    written = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
    made = ToolCall(name if isinstance(name, str) else "", written or "{}", str(_inner(call, "id") or f"call_{place}"))
    try:
        return made if isinstance(parse_json(made.arguments), dict) else replace(made, error="not_json")
    except ValueError:
        return replace(made, error="not_json")


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


T = TypeVar("T", bound=BaseModel)

MOST_STARTS = 64
"""Places of an answer at which JSON is looked for."""
LONGEST_PROBLEM = 800
"""Most characters of a description of an answer's errors."""
# One way to read it: \s* would take n² for n line breaks.
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)


def response_format(schema: type[BaseModel]) -> dict[str, Any]:
    """The field of a request that asks for the schema, as OpenAI's strict mode wants it."""
    import openai

    strict = openai.pydantic_function_tool(schema)["function"]
    return {
        "type": "json_schema",
        "json_schema": {"name": schema.__name__, "strict": True, "schema": strict["parameters"]},
    }


def instruction(schema: type[BaseModel]) -> str:
    """Prompt text that requires an answer in the form of the schema."""
    wanted = json.dumps(schema.model_json_schema(), ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{wanted}"


def repair(problem: str) -> str:
    """Message to a model whose answer could not be used."""
    return f"That answer cannot be used: {problem}\nAnswer again, with the corrected JSON object and nothing else."


def read_json(text: str, schema: type[T]) -> tuple[T | None, str]:
    """The first object in a text that fits the schema, and where there is none what is wrong.

    Fenced blocks come first, then the text itself from each brace on. A schema with `from_list` is handed lists too, where
    there is no object: one of objects, from a bracket that stands before every brace to where it ends. Nothing is evaluated.
    """
    text = json_content(text)
    problem, pieces = "", [*_FENCE.findall(text), text]
    values = [value for piece in pieces for value in _values(piece, "{")]
    if getattr(schema, "from_list", False):
        values += [value for piece in pieces for value in _lists(piece)]
    for value in values:
        try:
            return schema.model_validate(value), ""
        except ValidationError as error:
            # The outermost object is the one that was meant; a list comes after objects that were none.
            problem = _explained(error) if isinstance(value, list) else problem or _explained(error)
    return None, problem or "there is no JSON object in it."


def _values(text: str, sign: str, end: int | None = None) -> list[Any]:
    """The values of JSON that begin with a sign before `end`, one behind the other."""
    decoder, found, at = json.JSONDecoder(), list[Any](), 0
    for _ in range(MOST_STARTS):
        at = text.find(sign, at, end)
        if at < 0:
            break
        try:
            value, at = decoder.raw_decode(text, at)
            found.append(value)
        except (ValueError, RecursionError):
            at += 1
    return found


def _lists(text: str) -> list[Any]:
    """Lists of objects that stand in no object: of an answer that was cut off, no inner list is taken for the whole."""
    brace = text.find("{")
    lists = _values(text, "[", brace if brace >= 0 else None)
    return [each for each in lists if all(isinstance(part, dict) for part in each)]


def _explained(error: ValidationError) -> str:
    problems = [f"{'.'.join(map(str, each['loc'])) or 'the object'}: {each['msg']}" for each in error.errors()]
    return "; ".join(problems)[:LONGEST_PROBLEM] + "."
