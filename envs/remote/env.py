"""`SkillTTRL/Remote-v0`: an environment that runs on another machine or in another process.

Its client repeats what was lost, and believes no answer that is not of its form. The messages between it and the server of
`skillttrl envs serve` are JSON:

| request | body | answer |
|---|---|---|
| `GET /v1/health` | | `status` |
| `GET /v1/environment` | | `Description`; with `?tasks=SPLIT` its `tasks` too |
| `POST /v1/sessions/ID/reset` | `ResetRequest` | `observation`, `info` |
| `POST /v1/sessions/ID/step` | `StepRequest` | `observation`, `reward`, `terminated`, `truncated`, `info` |
| `DELETE /v1/sessions/ID` | | `ended` |

A client draws the ID of its session. Requests of a session are numbered: the reset that opens it is 0, each reset or step after it one more. The server keeps the last answer:
the same request again, with the same number, gets that answer, and nothing is done twice. Any other number is refused with 409, and
the message names the expected one. A number is never used again in a session, so that a request that arrives late cannot act in a later episode.

An answer comes when it is there, however long a step takes. Status 401: token; 403: not allowed; 410: there is no such session; 422: the
environment raised an error; 503: no session is free. Errors are `{"error": {"type": ..., "message": ...}}`.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from skill_ttrl.envs.lookup import SHORT_NAMES
from skill_ttrl.envs.text_env import TextEnv, check_action
from skill_ttrl.errors import EnvError, SplitError
from skill_ttrl.trust import clean_address
from skill_ttrl.types import Task, first_problem

PROTOCOL = 2
"""Version of these messages; a client refuses a server of another one."""
TOKEN_ENV = "SKILLTTRL_ENV_TOKEN"
"""Environment variable with the token, at the server and at its clients."""
REMOTE_ENV_ID = "SkillTTRL/Remote-v0"
CONNECT_S = 30.0
"""Longest time in seconds to connect."""
KEEPALIVE_S = 10
"""Seconds of silence after which a server's machine is probed, and between two probes."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 3.0
MAX_ANSWER_BYTES, MAX_TASKS_BYTES = 4 << 20, 32 << 20
"""Longest answer that is read: any, and one with the tasks of a split."""
_LATER = {503: "all sessions are in use"} | dict.fromkeys((502, 504), "a proxy without its server")
"""Statuses after which a request is repeated."""


def _is_text(value: Any) -> Any:
    """Check for a `str`. Pydantic's own check refuses halves of characters (lone surrogates), which an action may hold."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


Text = Annotated[Any, AfterValidator(_is_text)]


class Start(BaseModel):
    """Answer to a reset."""

    observation: Text
    info: dict[str, Any]


class Outcome(BaseModel):
    """Answer to a step."""

    observation: Text
    reward: Annotated[int, Field(strict=True, ge=-(10**9), le=10**9)] | Annotated[float, Field(allow_inf_nan=False)]
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Description(BaseModel):
    """Served environment, and the attributes of its class that commands read."""

    protocol: int
    version: str
    """Version of this package at the server."""
    env: str
    """Id by which the server makes it."""
    config_defaults: dict[str, Any]
    splits: list[str]
    expensive: bool
    max_steps: int | None
    """Longest episode, if the environment states one."""
    kwargs: dict[str, Any]
    """Arguments that it is made with at the server."""
    takes_split: bool
    tasks: list[Task] | None = None
    """Tasks of the split that was named; null: every seed is a task."""


Message = TypeVar("Message", bound=BaseModel)


class SessionEnded(EnvError):
    """The session of a request is not there any more."""


class EnvClient:
    """Requests to one server, over one connection, with the token of `$SKILLTTRL_ENV_TOKEN` where it is set.

    A pickled copy and a forked process connect again when needed.

    Args:
        url: like `http://127.0.0.1:3000`; nothing may follow the port.
        answer_timeout: seconds within which a whole answer must arrive.
        retry_seconds: time during which a request that gets no answer is repeated, with pauses that double.

    Raises:
        EnvError: `url` is no URL of a server.
    """

    _connection: http.client.HTTPConnection | None = None
    _process = 0
    """Id of the process that connected."""

    def __init__(self, url: str, retry_seconds: float, answer_timeout: float) -> None:
        try:
            parts = urlsplit(clean_address(url))
            plain = parts.hostname and parts.path in ("", "/") and not parts.query + parts.fragment and parts.port != 0
        except ValueError:
            plain = False
        if not plain or "@" in parts.netloc or parts.scheme not in ("http", "https"):
            raise EnvError(
                f"url must be the address of an environment server like http://127.0.0.1:3000, found {str(url)[:200]!r}."
            )
        self.url, self._host, self._secure = f"{parts.scheme}://{parts.netloc}", parts.netloc, parts.scheme == "https"
        self.retry_seconds, self.timeout = retry_seconds, answer_timeout

    def __del__(self) -> None:
        self.close()  # an environment that is dropped without `close` leaves no connection open

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None and self._process == os.getpid():  # a forked one holds its parent's
            self._connection.close()
        self._connection = None

    def ask(
        self, method: str, path: str, what: str, body: dict[str, Any] | None = None, patience: float | None = None
    ) -> dict[str, Any]:
        """Send a request until it is answered; the server does nothing twice, because the body has a number.

        Args:
            method: GET, POST or DELETE.
            path: on the server.
            what: purpose, for messages.
            body: JSON; None: none.
            patience: in place of `retry_seconds`; None: these.

        Raises:
            SessionEnded: the session is not there any more.
            EnvError: no answer came in time, or an error.
        """
        token = os.environ.get(TOKEN_ENV, "").strip()
        if not (token.isascii() and token.isprintable()):
            raise EnvError(f"The token in ${TOKEN_ENV} must be ASCII text.")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            try:
                content = json.dumps(body, default=lambda value: value.item()).encode()  # of numbers of NumPy
            except (TypeError, ValueError, AttributeError, RecursionError) as error:
                raise EnvError(f"The data for {what} must be JSON-serializable: {error}.") from None
        patience = self.retry_seconds if patience is None else patience
        began, broken = time.monotonic(), 0.0
        pause, requests = FIRST_PAUSE_S, 0
        while True:
            requests += 1
            try:
                status, text = self._send(method, path, content, headers)
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() - began >= self.timeout:
                    raise EnvError(
                        f"{self.url}: {what} has no answer after {self.timeout:g} s (env.kwargs.answer_timeout)."
                    ) from None
                lost = str(error)[:200] or type(error).__name__
            else:
                if status not in _LATER:
                    return self._read(status, text, what)
                lost = f"status {status}: {_LATER[status]}"
            broken = broken or time.monotonic()
            if time.monotonic() - broken > patience:
                raise EnvError(
                    f"{self.url} gave no answer to {what} in {patience:g} s ({requests} requests): {lost}. Check that "
                    "`skillttrl envs serve` runs there and what it prints; then restart the episode with reset."
                )
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)

    def _send(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """Send one request and read its whole answer; an answer that comes byte by byte ends at the deadline too."""
        # A forked process connects anew: else two processes would read each other's answers.
        if self._connection is None or self._process != os.getpid():
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection, self._process = kind(self._host), os.getpid()
        connection, watch, whole = self._connection, threading.Timer(self.timeout, self._hang_up), False
        try:
            if connection.sock is None:
                connection.timeout = min(self.timeout, CONNECT_S)
                try:
                    connection.connect()
                except OSError as error:
                    raise ConnectionError(f"nothing answers there ({error})") from None
                sock: Any = connection.sock
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if hasattr(socket, "TCP_KEEPIDLE"):  # finds a machine that is gone while an answer is waited for
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
            connection.sock.settimeout(self.timeout)
            watch.daemon = True
            watch.start()
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            limit = MAX_TASKS_BYTES if "?tasks=" in path else MAX_ANSWER_BYTES
            too_long = (response.length or 0) > limit
            found = response.read(limit + 1 if response.length is None or too_long else None)
            if too_long or len(found) > limit:
                raise EnvError(f"{self.url} answers with more than {limit >> 20} MiB.")
            whole = response.isclosed()
            return response.status, found
        finally:
            watch.cancel()
            if not whole:
                self.close()

    def _hang_up(self) -> None:
        sock = self._connection and self._connection.sock
        if sock:
            with suppress(OSError):  # it has just been closed
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _read(self, status: int, text: bytes, what: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
            if status == 200 and isinstance(found, dict):
                return found
            kind, message = str(found["error"]["type"]), str(found["error"]["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise EnvError(
                f"{self.url} answered {what} with status {status} and no JSON of this protocol: {text[:80]!r}. Is it running `skillttrl envs serve ENV`?"
            ) from None
        if status == 422:  # the environment's own error
            own = {"EnvError": EnvError, "SplitError": SplitError}.get(kind)
            raise own(message) if own else EnvError(f"The environment at {self.url} raised {kind}: {message}")
        if status == 401:
            message += f" This client sends the token in ${TOKEN_ENV}{'' if os.environ.get(TOKEN_ENV) else ', which is not set'}."
        raise (SessionEnded if status == 410 else EnvError)(f"{self.url} refused {what}: {message}")


class RemoteEnv(TextEnv):
    """Environment on a server of `skillttrl envs serve`, with its observations, rewards, infos and tasks.

    Any environment that is registered here runs remotely when it is made with `url` (`make_env("alfworld", url=...)`), and keeps its
    name, defaults and scripted agents. `SkillTTRL/Remote-v0` is for one that only the server has.

    A lost request is repeated with its number, so that the server takes each step once. A server that stays away is an `EnvError`; the
    next `reset` begins in a new session. A pickle holds the session: the unpickled copy continues it, and the
    original must not be used after that.

    Args:
        url: of the server, like `http://127.0.0.1:3000`.
        env: name of the environment that must be served there; None: any.
        split: with which the environment is made, if it takes one.
        answer_timeout: seconds that a step or reset may take.
        retry_seconds: time for which a lost request is repeated.
        kwargs: arguments of the environment: those that the server has too.

    Raises:
        EnvError: there is no such server, or it serves another environment.
    """

    elsewhere = True
    """It computes in another process, so that others may be called meanwhile; see `rollout.rollout`."""

    def __init__(
        self,
        url: str | None = None,
        env: str | None = None,
        split: str | None = None,
        retry_seconds: float = 15.0,
        answer_timeout: float = 600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        for name, value in (("retry_seconds", retry_seconds), ("answer_timeout", answer_timeout)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
                raise EnvError(f"{name} must be a number of seconds above 0, found {value!r:.60}.")
        if url is None:
            raise EnvError(f"{REMOTE_ENV_ID} needs the url of a server: --set env.kwargs.url=http://HOST:PORT.")
        self._split, self._kwargs = split, kwargs
        self._client = EnvClient(url, float(retry_seconds), float(answer_timeout))
        self._session, self._number = "", 0
        found = _read(Description, self._client.ask("GET", "/v1/environment", "its environment"), self._client.url)
        self._check(found, env)
        self.served = found
        self.splits, self.expensive, self.max_steps = tuple(found.splits), found.expensive, found.max_steps

    @classmethod
    def served_defaults(cls, **kwargs: Any) -> Mapping[str, Any]:
        """`config_defaults` of the environment at `url`; empty without one. Raises as the environment itself."""
        if kwargs.get("url") is None:
            return {}
        env = cls(**kwargs)
        env.close()
        return env.served.config_defaults

    def tasks(self, split: str | None = None) -> list[Task] | None:
        """The tasks of a split at the server, or of the environment's own split; see `TextEnv.tasks`."""
        path = f"/v1/environment?tasks={quote(split or self._split or '', safe='')}"
        found = self._client.ask("GET", path, f"the tasks of the split {split!r}" if split else "its tasks")
        return _read(Description, found, self._client.url).tasks

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode, in the session of the one before where that is still there.

        Raises:
            EnvError: the server gives no answer, or the environment raises.
        """
        super().reset(seed=seed)
        for _ in range(2):
            if not self._session:
                self._session, self._number = uuid.uuid4().hex, -1
            try:
                start = self._ask(Start, "reset", seed=seed, options=options, split=self._split)
                return start.observation, start.info
            except SessionEnded:  # it was not used for too long: another one
                if self._number < 0:
                    raise
        raise AssertionError

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one step, once.

        Raises:
            EnvError: `action` is no `str`, there was no `reset` before, the server gives no answer, or the environment raises.
        """
        check_action(REMOTE_ENV_ID, action)
        if not self._session:
            raise EnvError("step was called before reset, or after an error that ended the episode.")
        try:
            found = self._ask(Outcome, "step", action=action)
        except SessionEnded as error:
            raise EnvError(f"{error} The episode is lost; reset starts another.") from None
        return found.observation, found.reward, found.terminated, found.truncated, found.info

    def close(self) -> None:
        """End the session, where the server is there; `reset` begins another."""
        session, self._session = self._session, ""
        if session:
            with suppress(EnvError):  # it ends by itself when nothing is asked of it
                self._client.ask("DELETE", f"/v1/sessions/{session}", "the end of a session", patience=0.0)
        self._client.close()

    def _check(self, found: Description, env: str | None) -> None:
        where = self._client.url
        if found.protocol != PROTOCOL:
            raise EnvError(
                f"{where} speaks version {found.protocol} of the protocol (skill-ttrl {found.version}), this client {PROTOCOL}: install the "
                "same version of skill-ttrl on both."
            )
        wanted = None if env is None else SHORT_NAMES.get(env, env).rpartition(":")[2]
        if wanted is not None and wanted != found.env.rpartition(":")[2]:
            raise EnvError(
                f"{where} serves {found.env}, not {wanted}. Set env.id to its environment, or use another server."
            )
        given = self._kwargs.items()
        if other := [name for name, value in given if name not in found.kwargs or found.kwargs[name] != value]:
            raise EnvError(
                f"{where} serves {found.env} with the arguments {found.kwargs}, which a client cannot change, found "
                f"{', '.join(f'{name[:80]}={self._kwargs[name]!r:.80}' for name in other[:5])}. Set them where the server is started "
                "(--env-data, --set env.kwargs.NAME=VALUE)."
            )
        if not found.takes_split:
            self._split = None

    def _ask(self, kind: type[Message], method: str, **fields: Any) -> Message:
        session, number = self._session, self._number + 1
        what = f"request {number} ({method}) of session {session}"
        try:
            found = self._client.ask("POST", f"/v1/sessions/{session}/{method}", what, {"step": number, **fields})
        except EnvError:
            self._session = ""  # where it stands is unknown, or it has ended
            raise
        self._number = number
        return _read(kind, found, self._client.url)


def _read(kind: type[Message], found: dict[str, Any], url: str) -> Message:
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise EnvError(f"{url} returned an invalid {kind.__name__}: {first_problem(error)}.") from None
