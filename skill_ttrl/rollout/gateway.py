"""A server on loopback that speaks OpenAI's chat API in front of a sampler, and records the tokens of each call.

An agent program calls it like any model; the rollout reads what was sampled. A request that repeats an earlier call and its answer
extends the tokens of that call, which are not encoded again. Any other request begins a branch.

Each connection has a thread, which reads a request and writes its answer. All else happens in the event loop of the rollout, so that its
backend can batch the calls of many programs.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from skill_ttrl.envs.remote.server import Answer, JsonHandler, JsonServer, Refused
from skill_ttrl.errors import BudgetError, ConfigError, ModelError
from skill_ttrl.llm.backend import Backend, Request, Sampling, checked
from skill_ttrl.llm.chat import call_text, read_call
from skill_ttrl.llm.hand_over import AbandonedError
from skill_ttrl.llm.openai.replies import sound
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import Completion, Message, Step, ToolCall, derive_seed, first_problem

MAX_MESSAGES = 4096
"""Of one request."""
MAX_CALLS = 128
"""Calls of one rollout at the same time, and answers to one call (`n`)."""
MAX_WAITING = 256
"""Connections that wait for a request. Beyond it the one that has waited longest is closed, so that slow clients exclude no other."""
CHARS_A_TOKEN = 64
"""A prompt of more characters than this for each token that fits is not even encoded."""
POLL_S = 0.5
"""Seconds between two checks that a client is still connected."""
INVALID = "invalid_request_error"
MODEL = "policy"
"""Name by which programs ask for the model."""


def _text_of(content: Any) -> Any:
    """A message's content as one text; parts are lines, as in vLLM."""
    if not isinstance(content, list):
        return "" if content is None else content
    if any(not isinstance(part, dict) or not isinstance(part.get("text"), str) for part in content):
        raise ValueError("only text is taken, no images or other parts")
    return "\n".join(part["text"] for part in content)


class _Function(BaseModel):
    name: str
    arguments: str = ""


class _CallSaid(BaseModel):
    id: str = ""
    function: _Function


class _MessageSaid(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text_of)] = ""
    tool_calls: list[_CallSaid] | None = None
    tool_call_id: str | None = None


class _ToolFunction(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel):
    type: Literal["function"]
    function: _ToolFunction


class _TextFormat(BaseModel):
    type: Literal["text"]


class ChatRequest(BaseModel):
    """The fields of a request that count. Others are ignored: temperature and the like are the run's, and a tool cannot be forced."""

    model: str
    messages: Annotated[list[_MessageSaid], Field(min_length=1, max_length=MAX_MESSAGES)]
    n: Annotated[int, Field(ge=1, le=MAX_CALLS)] = 1
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[
        list[str], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop), Field(max_length=16)
    ] = []
    seed: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] = {}
    tools: list[_Tool] = []
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    logprobs: bool = False
    top_logprobs: Literal[0] = 0
    response_format: _TextFormat | None = None

    def conversation(self) -> tuple[Message, ...]:
        """The messages, each result with the call that it answers.

        Raises:
            Refused: a result answers no call.
        """
        found: list[Message] = []
        calls: dict[str | None, ToolCall] = {}
        for each in self.messages:
            made = tuple(map(_read, each.tool_calls or ())) if each.role == "assistant" else ()
            calls |= {call.id: call for call in made}
            if each.role == "tool" and each.tool_call_id not in calls:
                said = f"A message of the role 'tool' answers {each.tool_call_id!r}, which no earlier message calls."
                raise Refused(400, said, INVALID, param="messages", code=None)
            role = "system" if each.role == "developer" else each.role
            found.append(Message(role, each.content, made, calls[each.tool_call_id] if role == "tool" else None))
        return tuple(found)


def _read(said: _CallSaid) -> ToolCall:
    """A call, its arguments in our form of JSON: frameworks write them anew."""
    name, arguments = said.function.name, said.function.arguments or "{}"
    return replace(read_call(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'), id=said.id)


Key = tuple[str, str, tuple[tuple[str, str], ...]]


def _key(role: str, text: str, calls: Iterable[ToolCall]) -> Key:
    """A message as it is compared: without ids and the white space around it."""
    return role, text.strip(), tuple((call.name, call.arguments) for call in calls)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A call as later requests may repeat it."""

    tools: tuple[str, ...]
    keys: list[Key]
    answers: tuple[Key, ...]
    """The answer as it was sent, and the same with each stop text that may have been cut off."""
    call: Step


class Session:
    """The gateway of one rollout: an address and a key, and what was sampled."""

    def __init__(self, gateway: Gateway, url: str, seed: int) -> None:
        self.url = url
        """`OPENAI_BASE_URL` of the program."""
        self.key = secrets.token_urlsafe(24)
        """`OPENAI_API_KEY` of the program."""
        self.error: BaseException | None = None
        """A failure of the sampler that is not the program's: the budget is spent, a worker has died."""
        self._gateway, self._seed = gateway, seed
        self._recorded: list[_Recorded] = []
        self._branches: list[list[Step]] = []
        self._asked = self._called = 0
        self._closed = False
        self.running: set[Future[dict[str, Any]]] = set()

    @property
    def calls(self) -> list[Step]:
        """A step for each answer: the messages that are new since the call that it extends, the exact prompt tokens, the completion.

        They are in the order of time, but one that extends another directly follows it: a branch with a later call comes later.
        The completion's text is without the calls of tools that it holds.
        """
        return [call for branch in self._branches for call in branch]

    def close(self) -> None:
        """Answer no more requests, and cancel those that are running."""
        self._closed = True
        for each in list(self.running):
            each.cancel()

    def admits(self, key: str) -> bool:
        """True for the key of this session, while it is open."""
        return hmac.compare_digest(key.encode(), self.key.encode()) and not self._closed

    async def complete(self, asked: ChatRequest) -> dict[str, Any]:
        """Sample the answer to a request, in the rollout's event loop, and record it.

        Raises:
            Refused: it cannot be answered.
        """
        try:
            if self.error is None:
                return await self._complete(asked)
        except Refused:
            raise
        except (Exception, AbandonedError) as error:
            self.error = error
        if isinstance(self.error, BudgetError):
            raise Refused(429, str(self.error), "insufficient_quota", param=None, code="insufficient_quota")
        raise Refused(500, f"{type(self.error).__name__}: {self.error}", "server_error", param=None, code=None)

    async def _complete(self, asked: ChatRequest) -> dict[str, Any]:
        gateway, messages = self._gateway, asked.conversation()
        tools = tuple(each.model_dump_json(exclude_none=True) for each in asked.tools)
        keys = [_key(each.role, each.content, each.calls) for each in messages]
        prompt_ids, new, extended = self._prompt(messages, keys, tools)
        tokens = gateway.backend.count(messages) if prompt_ids is None else len(prompt_ids)
        room = gateway.check_length(tokens)
        if extended is not None:
            gateway.keep()
        stops = tuple(filter(None, asked.stop))
        how = replace(gateway.sampling, stop=tuple(dict.fromkeys((*gateway.sampling.stop, *stops))))
        limits = (asked.max_tokens, asked.max_completion_tokens, room, how.max_new_tokens)
        most = min(each for each in limits if each is not None)
        request = Request(messages, asked.n, prompt_ids, max_new_tokens=most, tools=tools)
        self._asked += 1
        seed = derive_seed(self._seed, *(("call", self._asked) if asked.seed is None else ("seed", asked.seed)))
        (generation,) = await gateway.backend.generate([request], how, seed=seed)
        done = [checked(each) for each in generation.completions]
        for each in done:
            if each.finish_reason == "error":
                raise Refused(500, each.error or "The model gave no answer.", "server_error", param=None, code=None)
        choices = []
        for each in done:
            text, calls, completion = self._read(each, asked, tools, stops, generation.prompt_ids)
            if not self._closed:
                seen = "\n\n".join(one.content for one in new)
                action = "".join(map(call_text, calls)) or completion.text
                call = Step(seen, action, 0.0, False, False, generation.prompt_ids, completion, calls=calls)
                self._add(call, extended)
                answers = tuple(_key("assistant", text + end, calls) for end in ("", *stops))
                self._recorded.append(_Recorded(tools, keys, answers, call))
            reason = "tool_calls" if calls else each.finish_reason
            logprobs = gateway.logprobs(each) if asked.logprobs else None
            choices.append({"message": _message(text, calls), "finish_reason": reason, "logprobs": logprobs})
        written = sum(each.num_sampled_tokens for each in done)
        usage = {"prompt_tokens": tokens, "completion_tokens": written, "total_tokens": tokens + written}
        return {"choices": [{"index": place} | each for place, each in enumerate(choices)], "usage": usage}

    def _add(self, call: Step, extended: Step | None) -> None:
        branch = next((each for each in self._branches if each[-1] is extended), [])
        self._branches = [*(each for each in self._branches if each is not branch), [*branch, call]]

    def _prompt(
        self, messages: tuple[Message, ...], keys: list[Key], tools: tuple[str, ...]
    ) -> tuple[tuple[int, ...] | None, Sequence[Message], Step | None]:
        """(the tokens of a prompt, the messages that are new in it, the call that it extends); no tokens for a backend that knows texts alone."""
        backend = cast(Any, self._gateway.backend)
        same = [
            each
            for each in reversed(self._recorded)
            if (end := len(each.keys)) < len(keys) - 1
            and (each.tools, each.keys) == (tools, keys[:end])
            and keys[end] in each.answers
        ]
        if same:
            longest = max(same, key=lambda each: len(each.keys))
            new, said = messages[len(longest.keys) + 1 :], longest.call
            before = cast(Completion, said.completion)
            with suppress(ConfigError, ModelError):  # the template does not only append
                later = None
                if all(each.call is not None for each in new):
                    later = backend.encode_results(new, before)
                elif len(new) == 1 and new[0].role != "assistant":
                    later = backend.encode_next(new[0], before)
                if later is not None:
                    return (*said.prompt_ids, *before.token_ids, *later), new, said
        limit, length = self._gateway.most_tokens, sum(len(each.content) for each in messages)
        if limit is not None and length > CHARS_A_TOKEN * limit:
            self._gateway.check_length(length // CHARS_A_TOKEN)
        try:
            return backend.encode(messages, *([tools] if tools else [])), messages, None
        except ModelError as error:
            raise Refused(400, str(error), INVALID, param="messages", code=None) from None

    def _read(
        self,
        completion: Completion,
        asked: ChatRequest,
        tools: tuple[str, ...],
        stops: Sequence[str],
        prompt_ids: tuple[int, ...],
    ) -> tuple[str, tuple[ToolCall, ...], Completion]:
        """(the text that is sent, the calls, the completion as it is recorded)."""
        cut = min((at for stop in stops if (at := completion.text.find(stop)) >= 0), default=None)
        text, calls = completion.text[:cut], completion.calls or ()
        if tools and asked.tool_choice != "none" and completion.calls is None:
            plain = replace(completion, text=text)
            text, calls = cast(Any, self._gateway.backend).tool_calls(plain, tools, prompt_ids)
        text += "".join(call_text(each) for each in calls if each.error)  # what is no JSON stays a text
        calls = tuple(each for each in calls if not each.error)[: None if asked.parallel_tool_calls else 1]
        named = []
        for call in calls:
            self._called += 1  # Mistral's templates want nine letters and digits
            named.append(replace(call, id=call.id or f"call{self._called:05}"))
        recorded = replace(completion, text=text if calls else completion.text, calls=None)
        return text, tuple(named), recorded


def _message(text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """An answer in the API's form."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["content"] = text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


class Gateway:
    """An HTTP server on loopback that speaks OpenAI's chat API in front of a sampler: an async context manager in a rollout's event loop.

    Args:
        backend: samples. One that is `blocking` comes in a `BatchingBackend`.
        sampling: how; requests can only shorten answers and add stop texts.
        max_prompt_tokens: a longer prompt is refused; None: any that the model can take.
    """

    def __init__(self, backend: Backend, sampling: Sampling, *, max_prompt_tokens: int | None = None) -> None:
        self.backend, self.sampling = backend, sampling
        self._max_model_len = getattr(backend, "max_model_len", None)
        self._max_prompt_tokens = max_prompt_tokens
        limits = (max_prompt_tokens, self._max_model_len and self._max_model_len - 1)
        self.most_tokens: int | None = min((each for each in limits if each is not None), default=None)
        """Longest prompt."""
        self._sessions: dict[str, Session] = {}

    async def __aenter__(self) -> Gateway:
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._stack, self._keeps = ExitStack(), False
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="gateway", daemon=True).start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for session in self._sessions.values():
            session.close()
        self._server.shutdown()
        self._server.server_close()
        self._stack.close()

    def session(self, seed: int) -> Session:
        """Open an address for one rollout; its random choices draw from `seed`."""
        name = str(len(self._sessions))
        url = f"http://127.0.0.1:{self._server.server_address[1]}/{name}/v1"
        return self._sessions.setdefault(name, Session(self, url, seed))

    def find(self, name: str) -> Session | None:
        """The session of an address; None: there is none."""
        return self._sessions.get(name)

    def ask(self, session: Session, asked: ChatRequest) -> Future[dict[str, Any]]:
        """Begin to answer a request in the event loop and context of the rollout, which holds its budget and place."""
        begin = asyncio.run_coroutine_threadsafe
        return self._context.copy().run(begin, session.complete(asked), self._loop)

    def keep(self) -> None:
        """Have the backend hold on to what it computes from now on: a conversation has grown. Single calls are faster without."""
        if not self._keeps:
            self._keeps = True
            self._stack.enter_context(getattr(self.backend, "keeping", nullcontext)())

    def check_length(self, tokens: int) -> int | None:
        """The most tokens that can follow a prompt of so many; None: any number.

        Raises:
            Refused: it is too long.
        """
        if self.most_tokens is not None and tokens > self.most_tokens:
            said = f"The prompt has {tokens} tokens, and at most {self.most_tokens} fit. Shorten the messages."
            raise Refused(400, said, INVALID, param="messages", code="context_length_exceeded")
        return None if self._max_model_len is None else self._max_model_len - tokens

    def logprobs(self, completion: Completion) -> dict[str, Any] | None:
        """The log-prob of each sampled token, in the API's form; None where the backend gives no tokens."""
        if not completion.token_ids:
            return None
        texts = cast(Any, self.backend).tokenizer.batch_decode([[token] for token in completion.token_ids])
        pairs = zip(texts, completion.logprobs, strict=False)
        rows = [
            {"token": text, "logprob": logprob, "bytes": [*text.encode()], "top_logprobs": []}
            for text, logprob in pairs
        ]
        return {"content": rows, "refusal": None}


class _Server(JsonServer):
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, None] = {}
        self._closed = False
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        self.await_request(request)
        super().process_request(request, client_address)

    def await_request(self, connection: socket.socket) -> None:
        """Note that a connection waits for a request; where too many do, the one that has waited longest is closed."""
        with self._lock:
            self._waiting[connection] = None
            places = list(self._waiting) if self._closed else list(self._waiting)[:-MAX_WAITING]
            for each in places:
                del self._waiting[each]
        for each in places:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def stop_waiting(self, connection: socket.socket) -> bool:
        """Note that a connection waits for the model, or has ended; False if it has been closed meanwhile."""
        with self._lock:
            return self._waiting.pop(connection, self) is None

    def server_close(self) -> None:
        """Close all connections that wait, too."""
        super().server_close()
        self._closed = True
        self.await_request(self.socket)


class _Handler(JsonHandler):
    server: _Server

    def finish(self) -> None:
        self.server.stop_waiting(self.connection)
        super().finish()

    def handle_one_request(self) -> None:
        super().handle_one_request()
        if not self.close_connection:
            self.server.await_request(self.connection)

    def answer(self) -> Answer:
        path = self.path.partition("?")[0]
        found = re.fullmatch(r"/(\d{1,9})/v1/(chat/completions|models(?:/(.*))?)", path)
        session = self.server.gateway.find(path.split("/", 2)[1]) if path.count("/") > 1 else None
        key = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if session is None or not session.admits(key):
            said = "The key is not that of this address, or its rollout has ended. A program gets both as OPENAI_BASE_URL and OPENAI_API_KEY."
            raise Refused(401, said, "authentication_error", param=None, code="invalid_api_key")
        body = self.read_body()
        if found is not None and self.command == "POST" and found[2] == "chat/completions":
            return self._chat(session, body)
        if found is not None and self.command == "GET" and found[2].startswith("models"):
            about = {"id": MODEL, "object": "model", "created": 0, "owned_by": "skill-ttrl"}
            if found[3] is None:
                return 200, json.dumps({"object": "list", "data": [about]})
            self._check_model(found[3])
            return 200, json.dumps(about)
        said = "There is no such route: there are chat/completions (POST) and models (GET)."
        raise Refused(404, said, INVALID, param=None, code="not_found")

    def _check_model(self, name: str) -> None:
        if name != MODEL:
            said = f"There is no model {name[:80]!r} here, only {MODEL!r}. A program gets its name as OPENAI_MODEL."
            raise Refused(404, said, INVALID, param="model", code="model_not_found")

    def _chat(self, session: Session, body: bytes) -> Answer:
        try:
            given = sound(parse_json(body))
            given = {name: value for name, value in given.items() if value is not None}
            asked = ChatRequest.model_validate(given)
        except ValidationError as error:
            field = str(error.errors()[0]["loc"][0])
            raise Refused(400, f"{first_problem(error)}.", INVALID, param=field, code=None) from None
        except (ValueError, AttributeError) as error:
            raise Refused(400, f"The body is no JSON object: {error}.", INVALID, param=None, code=None) from None
        self._check_model(asked.model)
        if len(session.running) >= MAX_CALLS:
            said = f"A program has at most {MAX_CALLS} calls at the same time."
            raise Refused(429, said, "requests", param=None, code="rate_limit_exceeded")
        if not self.server.stop_waiting(self.connection):
            raise ConnectionAbortedError
        answer = self._wait(session, asked)
        made = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": asked.model}
        if not asked.stream:
            return 200, json.dumps(made | {"object": "chat.completion"} | answer)
        self.more_headers = {"Content-Type": "text/event-stream"}
        return 200, _stream(made, answer, bool(asked.stream_options.get("include_usage")))

    def _wait(self, session: Session, asked: ChatRequest) -> dict[str, Any]:
        """Wait for the answer of the rollout's event loop; the request of a client that disconnects is cancelled."""
        future = self.server.gateway.ask(session, asked)
        session.running.add(future)
        try:
            while True:
                try:
                    return future.result(POLL_S)
                except TimeoutError:
                    if self._client_is_gone():
                        future.cancel()
                        raise ConnectionAbortedError from None
        except CancelledError:
            self.close_connection = True
            said = "The rollout of this address has ended."
            raise Refused(503, said, "server_error", param=None, code=None) from None
        except Refused as error:
            if error.answer[0] in (429, 500):  # another attempt would end the same way
                self.more_headers = {"x-should-retry": "false"}
            raise
        finally:
            session.running.discard(future)

    def _client_is_gone(self) -> bool:
        self.connection.settimeout(0)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.settimeout(self.timeout)


def _stream(made: dict[str, Any], answer: Mapping[str, Any], with_usage: bool) -> str:
    """A whole answer as server-sent events: samplers give no parts."""
    chunks: list[dict[str, Any]] = []
    for choice in answer["choices"]:
        delta = choice["message"]
        if "tool_calls" in delta:
            delta |= {"tool_calls": [{"index": place} | each for place, each in enumerate(delta["tool_calls"])]}
        said = {"index": choice["index"], "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}
        end = {"index": choice["index"], "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
        chunks += [{"choices": [said]}, {"choices": [end]}]
    if with_usage:
        chunks = [*({"usage": None} | each for each in chunks), {"choices": [], "usage": answer["usage"]}]
    events = [json.dumps(made | {"object": "chat.completion.chunk"} | each) for each in chunks]
    return "".join(f"data: {each}\n\n" for each in (*events, "[DONE]"))
