"""HTTP to the server of an environment: repeats what was lost, and believes no answer that is not of its form."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from skill_ttrl.envs.http_client import HttpConnections
from skill_ttrl.errors import EnvError, SplitError

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 3.0
MAX_ANSWER_BYTES = 4 << 20
"""Longest answer that is read."""
MAX_TASKS_BYTES = 32 << 20
"""Longest answer with the tasks of a split."""
_LATER = {
    502: "a proxy without its server",
    503: "all sessions or connections are in use",
    504: "a proxy without its server",
}
"""Statuses after which a request is repeated."""


class SessionEnded(EnvError):
    """The session of a request is not there any more."""


class EnvClient(HttpConnections):
    """Requests to one server.

    Args:
        url: like `http://127.0.0.1:3000`.
        token_env: environment variable with the token; where it is not set none is sent.
        timeout: seconds within which a whole answer, or word that the request is running, must arrive.
        answer_timeout: seconds after which a request that is still running is given up.
        retry_seconds: time during which a request that gets no answer is repeated, with pauses that double.

    Raises:
        EnvError: `url` is no URL of a server.
    """

    def __init__(self, url: str, token_env: str, timeout: float, retry_seconds: float, answer_timeout: float) -> None:
        super().__init__(url, "url names the server of an environment", timeout)
        self.token_env, self.retry_seconds, self.answer_timeout = token_env, retry_seconds, answer_timeout

    def ask(self, method: str, path: str, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request until it is answered; the server does nothing twice, because the body has a number.

        Args:
            method: GET, POST or DELETE.
            path: on the server.
            what: purpose, for messages.
            body: JSON; None: none.

        Raises:
            SessionEnded: the session is not there any more.
            EnvError: no answer came in time, or an error.
        """
        content = None if body is None else _encode(body, what)
        began = heard = time.monotonic()
        pause, requests = FIRST_PAUSE_S, 0
        while True:
            requests += 1
            try:
                status, text = self._once(method, path, content)
            except ConnectionError as error:
                lost = str(error)
            else:
                if status == 202:
                    heard, pause = time.monotonic(), FIRST_PAUSE_S
                    if heard - began > self.answer_timeout:
                        raise EnvError(
                            f"{self.url}: {what} is still running after {self.answer_timeout:g} s (env.kwargs.answer_timeout)."
                        )
                    time.sleep(min(0.001 * requests, 0.1))  # a server that waits before it says so costs nothing here
                    continue
                if status not in _LATER:
                    return self._read(status, text, what)
                lost = f"status {status}: {_LATER[status]}"
            if time.monotonic() - heard > self.retry_seconds:
                raise EnvError(
                    f"{self.url} gave no answer to {what} in {self.retry_seconds:g} s ({requests} requests): {lost}. Check that "
                    "`skillttrl envs serve` runs there and what it prints; then restart the episode with reset."
                )
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)

    def _once(self, method: str, path: str, content: bytes | None) -> tuple[int, bytes]:
        token = os.environ.get(self.token_env, "").strip()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if not token.isascii():
            raise EnvError(f"The token in ${self.token_env} must be ASCII text.")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        limit = MAX_TASKS_BYTES if "?tasks=" in path else MAX_ANSWER_BYTES
        status, _, answer = self.send(method, path, content, headers, limit)
        return status, answer

    def _read(self, status: int, text: bytes, what: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
            if status == 200 and isinstance(found, dict):
                return found
            kind, message = str(found["error"]["type"]), str(found["error"]["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise EnvError(
                f"{self.url} answered {what} with status {status} and no JSON of this protocol: {text[:80]!r}. Is it a server of "
                "`skillttrl envs serve ENV`?"
            ) from None
        if status == 422 and kind in ("EnvError", "SplitError"):
            raise {"EnvError": EnvError, "SplitError": SplitError}[kind](message)
        if status == 422:
            raise EnvError(f"The environment at {self.url} raised {kind}: {message}")
        if status == 401:
            message += f" This client sends that of ${self.token_env}{'' if os.environ.get(self.token_env) else ', which is not set'}."
        raise (SessionEnded if status in (404, 410) else EnvError)(f"{self.url} refused {what}: {message}")


def _encode(body: dict[str, Any], what: str) -> bytes:
    """Write a body as JSON; numbers of NumPy become plain ones."""
    try:
        return json.dumps(body, default=lambda value: value.item()).encode()
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise EnvError(f"What is sent for {what} must be plain data that JSON can write: {error}.") from None
