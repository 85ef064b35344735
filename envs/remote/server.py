"""HTTP server of an environment: its sessions, routes, token and bounds.

A session has an environment and numbered requests, and ends when it is idle for too long. Each connection has a thread, in which its requests
are carried out.
"""

from __future__ import annotations

import errno
import hmac
import json
import math
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import gymnasium
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skill_ttrl.envs.lookup import env_defaults, make_env, split_argument
from skill_ttrl.envs.remote.env import PROTOCOL, Description, Text
from skill_ttrl.envs.text_env import close_env
from skill_ttrl.errors import EnvError
from skill_ttrl.llm.server_key import is_localhost
from skill_ttrl.signals import FAILURES
from skill_ttrl.types import first_problem, to_json

SPLIT_PATTERN = r"^\w[\w.-]{0,63}$"
"""Names of splits that a client may send: none is a path."""
IDLE_SECONDS = 60.0
"""Time after which a connection that sends nothing is closed."""
MAX_BODY_BYTES = 4 << 20
MAX_SPLITS = 32
"""Splits whose tasks are listed for clients."""
Answer = tuple[int, str]
"""HTTP status and JSON text."""
MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
_RESULT = {"reset": ("observation", "info"), "step": ("observation", "reward", "terminated", "truncated", "info")}


class Request(BaseModel):
    """Base of the bodies: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class ResetRequest(Request):
    """Begins an episode; with the number 0 it opens the session, with an environment of its own."""

    step: int = Field(strict=True, ge=0)
    """Number of the request in its session."""
    seed: Annotated[int, Field(strict=True)] | None = None
    options: dict[str, Any] | None = None
    split: str | None = Field(None, pattern=SPLIT_PATTERN)
    """Split with which the environment is made, if it takes one."""


class StepRequest(Request):
    """Takes one step."""

    step: int = Field(strict=True, ge=1)
    """Number of the request in its session."""
    action: Text


Body = TypeVar("Body", bound=Request)


def error_answer(status: int, error: BaseException | str, kind: str = "Refused", **more: str | None) -> Answer:
    """The answer that states an error; errors of foreign code are named with their type."""
    return status, json.dumps({"error": {"type": kind, "message": str(error), **more}})


class Refused(Exception):
    """Raised for a request that is not carried out; has an HTTP status and the reason."""

    def __init__(self, status: int, message: str, kind: str = "Refused", **more: str | None) -> None:
        super().__init__(message)
        self.answer = error_answer(status, message, kind, **more)


class Session:
    """An environment in use; `make` makes it, at the first request."""

    def __init__(self, make: MakeEnv) -> None:
        self.used = time.monotonic()
        self._make = make
        self._env: gymnasium.Env[Any, Any] | None = None
        self._lock = threading.Lock()  # held while a request runs: the next one, or the same again, waits
        self._number = -1
        self._request: tuple[str, dict[str, Any]] = ("", {})
        self._answer: Answer = (200, "")

    def ask(self, number: int, method: str, arguments: dict[str, Any]) -> Answer:
        """Carry out a request, or find the answer to it if it was the last one.

        Raises:
            Refused: it has another number, or is another request of the same number.
        """
        self.used = math.inf
        try:
            with self._lock:
                if number == self._number and (method, arguments) == self._request:
                    return self._answer
                expected = self._number + 1
                if number != expected:
                    other = " That number was used for another request." if number == self._number else ""
                    raise Refused(
                        409,
                        f"Request {number} came where {expected} was expected.{other} A session has one client, which numbers its requests.",
                    )
                self._number, self._request = number, (method, arguments)
                self._answer = self._call(method, arguments)
                return self._answer
        finally:
            self.used = time.monotonic()

    def end(self) -> None:
        """Close the environment after the request that is running."""
        with self._lock:
            if self._env is not None:
                close_env(self._env)

    def _call(self, method: str, arguments: dict[str, Any]) -> Answer:
        try:
            if self._env is None:
                self._env = self._make()
            found, names = getattr(self._env, method)(**arguments), _RESULT[method]
            if not isinstance(found, tuple) or len(found) != len(names):
                raise EnvError(f"The environment must return ({', '.join(names)}), found {type(found).__name__}.")
            return 200, json.dumps(dict(zip(names, found, strict=True)), default=_plain)
        except FAILURES as error:
            return error_answer(422, error, type(error).__name__)


class Sessions:
    """All sessions of a server.

    Args:
        timeout: seconds without a request after which a session ends.
        most: sessions at once. One whose environment hangs counts until that returns.
    """

    def __init__(self, timeout: float, most: int) -> None:
        self.timeout, self.most = timeout, most
        self._lock = threading.Lock()
        self._open: dict[str, Session] = {}
        self._ending = 0
        """Sessions whose environments are not closed yet."""
        self._closed = threading.Event()
        threading.Thread(target=self._end_idle, daemon=True).start()

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, session_id: str, number: int, method: str, make: MakeEnv | None = None, **arguments: Any) -> Answer:
        """Carry out a request of a session; see `Session.ask`. With `make`, one that is not there is opened.

        Raises:
            Refused: there is no such session, none is free, or see `Session.ask`.
        """
        with self._lock:
            session = self._open.get(session_id)
            if session is None and make is not None:
                if len(self._open) + self._ending >= self.most:
                    raise Refused(503, f"All {self.most} sessions are in use; more: --max-sessions.")
                session = self._open[session_id] = Session(make)
        if session is None:
            raise Refused(
                410,
                "There is no such session: it was closed, its environment raised an error, nothing was asked of it for "
                f"{self.timeout:g} s (--session-timeout), or the server was restarted.",
            )
        answer = session.ask(number, method, arguments)
        if answer[0] >= 400:
            self.end(session_id)
        return answer

    def end(self, session_id: str) -> bool:
        """End a session; False if there is none. Its environment is closed in a thread, as it may hang."""
        with self._lock:
            session = self._open.pop(session_id, None)
            if session is None:
                return False
            self._ending += 1
        threading.Thread(target=self._end, args=(session,), daemon=True).start()
        return True

    def close(self) -> None:
        """End all sessions."""
        self._closed.set()
        for session_id in list(self._open):
            self.end(session_id)

    def _end(self, session: Session) -> None:
        try:
            session.end()
        finally:
            with self._lock:
                self._ending -= 1

    def _end_idle(self) -> None:
        while not self._closed.wait(min(5.0, self.timeout / 4)):
            for session_id, session in list(self._open.items()):
                if time.monotonic() - session.used > self.timeout:
                    self.end(session_id)


class JsonServer(ThreadingHTTPServer):
    """An HTTP server with one thread per connection."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error; a client that leaves in the middle of an answer is none."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class EnvServer(JsonServer):
    """Serves an environment.

    Args:
        name: see `resolve_env`.
        kwargs: arguments of every environment.
        host: to listen on.
        port: 0: any free one.
        token: of the clients; None: none is needed, and only requests to this machine by name are answered.
        session_timeout: seconds without a request after which a session ends.
        max_sessions: sessions at once.

    Raises:
        EnvError: there is no such environment or it cannot be made, the port is taken, or there is no such host here.
    """

    def __init__(
        self,
        name: str,
        kwargs: Mapping[str, Any],
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        *,
        session_timeout: float = 600.0,
        max_sessions: int = 256,
    ) -> None:
        self.name, self.kwargs, self.token = name, dict(kwargs), token
        self.description = _describe(name, self.kwargs)
        self._lock = threading.Lock()
        self._tasks: dict[str, Answer] = {}
        self.sessions = Sessions(session_timeout, max_sessions)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise EnvError(f"Port {port} of {host} is in use. Choose another; --port 0 uses a free one.") from None
            raise EnvError(f"Cannot listen on {host}, port {port}: {error}.") from None

    @property
    def address(self) -> str:
        """URL of the server."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if self.address_family == socket.AF_INET6 else f"http://{host!s}:{port}"

    def server_close(self) -> None:
        """End all sessions too."""
        self.sessions.close()
        super().server_close()

    def check_client(self, target: str, authorization: str, host: str) -> None:
        """Let a client in: one with the token, or without one from this machine.

        Args:
            target: path and query.
            authorization: header, or an empty text.
            host: header, or an empty text. A page of the web that names this machine otherwise is no client (DNS rebinding).

        Raises:
            Refused: it is not let in.
        """
        if self.token is not None:
            given = authorization.removeprefix("Bearer ").strip().encode("utf-8", "replace")
            if target != "/v1/health" and not hmac.compare_digest(given, self.token.encode()):
                raise Refused(401, "The token is missing or wrong; see the environment variable SKILLTTRL_ENV_TOKEN.")
        elif not is_localhost(re.sub(r":\d*$", "", host).lower().strip("[]")):
            raise Refused(403, f"A server without a token serves only this machine, not as {host[:80]!r}.")

    def answer(self, method: str, target: str, body: bytes) -> Answer:
        """Answer one request.

        Raises:
            Refused: it is not carried out.
        """
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=4)
        except ValueError as error:
            raise Refused(400, f"The address of the request cannot be read: {error}.") from None
        if method == "GET" and parts.path == "/v1/health":
            return 200, '{"status": "ok"}'
        if method == "GET" and parts.path == "/v1/environment":
            if "tasks" in query:
                return self._list_tasks(query["tasks"][0])
            return 200, self.description.model_dump_json()
        found = re.fullmatch(r"/v1/sessions/([\w-]{1,64})(?:/(reset|step))?", parts.path)
        if found and method == "DELETE" and found[2] is None:
            return 200, json.dumps({"ended": self.sessions.end(found[1])})
        if found and method == "POST" and found[2] == "step":
            step = _read(StepRequest, body)
            return self.sessions.ask(found[1], step.step, "step", action=step.action)
        if found and method == "POST" and found[2]:
            asked, make = _read(ResetRequest, body), None
            if not asked.step:
                split = {} if asked.split is None else split_argument(self.name, asked.split)
                if asked.split is not None and not split:
                    raise Refused(403, f"{self.name} takes no split.")
                make = partial(make_env, self.name, **{**self.kwargs, **split})
            return self.sessions.ask(found[1], asked.step, "reset", make, seed=asked.seed, options=asked.options)
        raise Refused(404, "There is no such route. This is the server of an environment (skillttrl envs serve).")

    def _list_tasks(self, split: str) -> Answer:
        if split and not re.fullmatch(SPLIT_PATTERN, split):
            raise Refused(400, f"{split[:80]!r} is not a valid name of a split.")
        with self._lock:
            if split in self._tasks:
                return self._tasks[split]
            if len(self._tasks) >= MAX_SPLITS:
                raise Refused(403, f"At most {MAX_SPLITS} splits are listed.")
            try:
                env = make_env(self.name, **{**self.kwargs, **(split_argument(self.name, split) if split else {})})
                try:
                    find = getattr(env.unwrapped, "tasks", None)
                    tasks = find(split or None) if callable(find) else None
                    listed = "null" if tasks is None else f"[{', '.join(map(to_json, tasks))}]"
                finally:
                    close_env(env)
            except FAILURES as error:  # it may pass
                return error_answer(422, error, type(error).__name__)
            text = f'{self.description.model_dump_json(exclude={"tasks"})[:-1]}, "tasks": {listed}}}'
            return self._tasks.setdefault(split, (200, text))


class JsonHandler(BaseHTTPRequestHandler):
    """Handler of one connection, whose bodies are JSON and must say their length."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "skillttrl", ""
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # headers and body in one packet
    timeout = IDLE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are the clients' private data."""

    def answer(self) -> Answer:
        """Answer one request; `read_body` has its body.

        Raises:
            Refused: it is not carried out.
        """
        raise NotImplementedError

    def read_body(self) -> bytes:
        """Read the body of a request.

        Raises:
            Refused: it is not JSON by its header (web pages cannot send JSON elsewhere unasked), has no length, or is longer than
                `MAX_BODY_BYTES`.
        """
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if self.command == "POST" and kind != "application/json":
            raise Refused(415, "A body is JSON: Content-Type: application/json.")
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            raise Refused(411, "A request needs a Content-Length.")
        if len(length) > 9 or int(length) > MAX_BODY_BYTES:
            raise Refused(413, f"A request has at most {MAX_BODY_BYTES:,} bytes.")
        body, self._unread = self.rfile.read(int(length)), False
        return body

    def do_GET(self) -> None:
        """Write the answer to one request."""
        self._unread, self.more_headers = True, dict[str, str]()
        try:
            status, text = self.answer()
        except Refused as error:
            self.close_connection |= self._unread
            status, text = error.answer
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # the client gets an answer, the server's terminal the traceback
            traceback.print_exc(file=sys.stderr)
            status, text = error_answer(500, f"The server failed ({type(error).__name__}); see its terminal.")
        content = text.encode("utf-8", "replace")
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        headers |= {"X-Content-Type-Options": "nosniff"} | ({"Connection": "close"} if self.close_connection else {})
        self.send_response(status)
        for name, value in (headers | self.more_headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_DELETE = do_GET


class _Handler(JsonHandler):
    server: EnvServer

    def answer(self) -> Answer:
        get = self.headers.get
        self.server.check_client(self.path, get("Authorization", ""), get("Host", ""))
        return self.server.answer(self.command, self.path, self.read_body())


def _describe(name: str, kwargs: Mapping[str, Any]) -> Description:
    env = make_env(name, **kwargs)
    try:
        own = env.unwrapped
        steps = getattr(own, "max_steps", None)
        if steps is None and env.spec is not None:
            steps = env.spec.max_episode_steps
        return Description(
            protocol=PROTOCOL,
            version=version("skill-ttrl"),
            env=env.spec.id if env.spec is not None else name,
            config_defaults=dict(env_defaults(name)),
            splits=list(getattr(own, "splits", ())),
            expensive=bool(getattr(own, "expensive", False)),
            max_steps=steps if isinstance(steps, int) else None,
            kwargs=json.loads(json.dumps(dict(kwargs), default=str)),
            takes_split=bool(split_argument(name, "")),
        )
    finally:
        close_env(env)


def _read(kind: type[Body], body: bytes) -> Body:
    """Read a body.

    Raises:
        Refused: it is no JSON, or not such a request.
    """
    try:
        return kind.model_validate(json.loads(body))
    except ValidationError as error:
        raise Refused(400, f"The body is no {kind.__name__}: {first_problem(error)}.") from None
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body is no JSON: {str(error)[:200]}.") from None


def _plain(value: Any) -> Any:
    """Convert a number of NumPy for JSON."""
    if hasattr(value, "item"):
        return value.item()
    raise EnvError(f"The environment returned a value that is not JSON-serializable: {type(value).__name__}.")
