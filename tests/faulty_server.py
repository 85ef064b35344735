"""A really started server of OpenAI's protocol that fails as often as it is told to, and counts what it delivered.

It answers chat, completions and embeddings by itself (`scripted`, for tests only). Each request draws, with a seed, whether it is hit by a fault; the faults come each in turn. What was handed out
whole with status 200 is in `delivered`, so that a client's ledger can be held against it.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from skill_ttrl.storage.jsonl import read_jsonl

REFUSED = {"408": 408, "409": 409, "429": 429, "500": 500, "502": 502, "503": 503}
FAULTS = (
    *REFUSED, "drop before the answer", "drop in the answer", "slow", "truncated JSON", "empty", "refusal", "length",
    "malformed content", "tool call", "one of n",
)  # fmt: skip
Answer = Callable[[Mapping[str, Any], random.Random], Any]
"""(request, draws) → the text of one choice, or the fields of its message."""


def echo(body: Mapping[str, Any], draw: random.Random) -> str:
    """The last message again, with a number drawn: samples differ."""
    return f"{body['messages'][-1]['content']} <answer>{draw.randint(0, 9)}</answer>"


def requests_in(usage: Path) -> list[dict[str, Any]]:
    """The requests of a ledger's file."""
    return [row for row in read_jsonl(usage) if "settled" not in row]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # many connect at once; one that is not taken would wait a second for its next try

    def handle_error(self, request: object, client_address: object) -> None:
        """Be quiet: clients under test hang up in the middle of a reply, and that is theirs to report."""


class FaultyServer:
    """A server on a free port of this machine; a context manager.

    Args:
        faults: which faults there are; each hit takes the next of them.
        rate: share of requests that are hit.
        seed: of the draws.
        answer: writes the texts.
        slow: seconds that a slow answer takes.
        retry_after: what a refusal says.
        first: bodies or statuses for the first requests, before anything is drawn: (status, headers, body).
    """

    def __init__(
        self,
        faults: Sequence[str] = FAULTS,
        rate: float = 0.3,
        *,
        seed: int = 0,
        answer: Answer = echo,
        slow: float = 1.0,
        retry_after: str = "0.01",
        first: Sequence[tuple[int, Mapping[str, str], Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.asked: list[dict[str, Any]] = []
        """Path, headers and body of every request that came."""
        self.delivered: Counter[str] = Counter()
        """Whole answers of status 200: how many, and their tokens."""
        self.hit: Counter[str] = Counter()
        """How often each fault was injected."""
        self.busiest = 0
        """Most requests that were here at once."""
        self.refuse_about = ""
        """Requests that hold this text are answered with 400."""
        self.refuses: Callable[[Mapping[str, Any]], str] = lambda body: ""
        """Why a request is answered with 400; empty: it is not."""
        self.dimension = 4
        """Numbers of a vector."""
        self._here = 0
        self._faults, self._rate = itertools.cycle(faults or ("none",)), rate if faults else 0.0
        self._draw, self._answer = random.Random(seed), answer
        self._slow, self._retry_after, self._first = slow, retry_after, list(first)
        self._headers = dict(headers or {})
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """What a client is given as base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                self._send(200, {"object": "list", "data": []})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                path = urlsplit(self.path).path
                with outer._lock:
                    outer.asked.append({"path": self.path, "headers": dict(self.headers.items()), "body": body})
                    outer._here += 1
                    outer.busiest = max(outer.busiest, outer._here)
                    first = outer._first.pop(0) if outer._first else None
                    hit = first is None and outer._draw.random() < outer._rate
                    fault = next(outer._faults) if hit else ""
                    if outer.refuse_about and outer.refuse_about in json.dumps(body):
                        first = 400, {}, {"error": {"message": f"nothing about {outer.refuse_about}"}}
                    if why := outer.refuses(body):
                        first = 400, {}, {"error": {"message": why}}
                    outer.hit[fault] += bool(fault)
                    draw = random.Random(outer._draw.random())
                try:
                    if first is not None:
                        status, headers, content = first
                        self._send(status, content, headers)
                    else:
                        self._respond(path, body, fault, draw)
                finally:
                    with outer._lock:
                        outer._here -= 1

            def _respond(self, path: str, body: dict[str, Any], fault: str, draw: random.Random) -> None:
                if fault in REFUSED:
                    headers = {"retry-after": outer._retry_after}
                    self._send(REFUSED[fault], {"error": {"message": f"injected {fault}", "code": fault}}, headers)
                    return
                if fault == "drop before the answer":
                    self._drop()
                    return
                if fault == "slow":
                    time.sleep(outer._slow)
                if fault == "one of n":
                    body = {**body, "n": 1}
                answer = outer._scripted(path, body, draw)
                if isinstance(answer, tuple):  # the engine refused
                    self._send(*answer)
                    return
                if "choices" in answer:
                    for choice in answer["choices"]:
                        spoil(choice, fault)
                self._send(200, answer, outer._headers, fault)

            def _drop(self) -> None:
                """End the connection with a reset, as a crash does."""
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True

            def _send(
                self, status: int, content: Any, headers: Mapping[str, str] | None = None, fault: str = ""
            ) -> None:
                text = content if isinstance(content, str | bytes) else json.dumps(content)
                data = text if isinstance(text, bytes) else text.encode()
                whole = fault not in ("truncated JSON", "drop in the answer", "slow", "drip")
                try:
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    sent = data[: len(data) // 2] if fault in ("truncated JSON", "drop in the answer") else data
                    self.send_header("content-length", str(len(sent if fault == "truncated JSON" else data)))
                    for name, value in (headers or {}).items():
                        self.send_header(name, value)
                    self.end_headers()
                    if whole and status == 200 and isinstance(content, dict) and "usage" in content:
                        outer._count(content["usage"])  # before the client can look
                    for start in range(0, len(sent), 1 if fault == "drip" else max(1, len(sent))):
                        self.wfile.write(sent[start : start + 1] if fault == "drip" else sent)
                        self.wfile.flush()
                        if fault == "drip":
                            time.sleep(outer._slow / 10)
                except OSError:  # the client has given up waiting
                    self.close_connection = True
                    return
                if fault == "drop in the answer":
                    self._drop()

        return Handler

    def _scripted(self, path: str, body: dict[str, Any], draw: random.Random) -> dict[str, Any]:
        found = scripted(path, body, self._answer, draw)
        for row in found.get("data", []):
            row["embedding"] = (row["embedding"] * 2)[: self.dimension]
        return found

    def _count(self, usage: Mapping[str, int]) -> None:
        with self._lock:
            self.delivered["answers"] += 1
            self.delivered["prompt"] += usage["prompt_tokens"]
            self.delivered["answer"] += usage.get("completion_tokens", 0) or 0


def scripted(path: str, body: Mapping[str, Any], answer: Answer, draw: random.Random) -> dict[str, Any]:
    """An answer of the protocol's shape; a token is a word."""
    if path.endswith("/embeddings"):
        rows = [{"index": place, "embedding": vector_of(text)} for place, text in enumerate(body["input"])]
        words = sum(len(text.split()) for text in body["input"])
        return {"data": rows[::-1], "usage": {"prompt_tokens": words, "total_tokens": words}}
    messages = [answer(body, draw) for _ in range(body.get("n", 1))]
    messages = [{"content": each} if isinstance(each, str) else each for each in messages]
    texts = [each["content"] or "" for each in messages]
    choices = []
    for place, text in enumerate(texts):
        logprobs: Any = None
        if body.get("logprobs"):
            logprobs = {"content": [{"logprob": -0.5} for _ in text.split()]}
        message = {"role": "assistant", **messages[place]}
        choices.append({"index": place, "finish_reason": "stop", "logprobs": logprobs, "message": message})
    asked = body["messages"]
    usage = {
        "prompt_tokens": sum(len(str(each["content"]).split()) for each in asked),
        "completion_tokens": sum(len(text.split()) for text in texts),
    }
    return {"object": "chat.completion", "choices": choices, "usage": usage}


def spoil(choice: dict[str, Any], fault: str) -> None:
    """Make of a sound choice what some servers and models give."""
    message = choice["message"]
    if fault == "length":
        choice["finish_reason"] = "length"
    elif fault == "empty":
        message["content"] = ""
    elif fault == "refusal":
        message.update(content=None, refusal="I cannot help with that.")
    elif fault == "malformed content":
        message["content"] = '{"title": "unfinished'
    elif fault == "tool call":
        call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        message.update(content=None, tool_calls=[call])
        choice["finish_reason"] = "tool_calls"


def vector_of(text: str) -> list[float]:
    """Four numbers that depend on the text alone."""
    draw = random.Random(text)
    return [draw.uniform(-1, 1) for _ in range(4)]


NOWHERE = "model.path=/no/such/model"
"""A model of one's own that must never be looked at."""


def at(server: FaultyServer, *more: str) -> list[str]:
    """Settings that name the server."""
    settings = [f"endpoints.base_url={server.url}", NOWHERE, *more]
    return [word for setting in settings for word in ("--set", setting)]
