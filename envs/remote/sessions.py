"""Sessions of a server: each has an environment and numbered requests, and ends by itself when nothing is asked of it."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from skill_ttrl.envs.remote.hosted import Answer, Host, Lane, error_answer

MAX_REMEMBERED = 1000
"""Ended sessions whose reason is still known."""


class Refused(Exception):
    """Raised for a request that is not carried out.

    Args:
        status: HTTP status.
        message: reason, and what to do.
        more: further fields of the answer.
    """

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.more = status, more

    @property
    def answer(self) -> Answer:
        """The answer that states it."""
        return error_answer(self.status, str(self), "Refused", **self.more)


class Session:
    """An environment in use.

    Args:
        make: makes the host, in the session's own thread.
        ended: called when that thread has ended.
    """

    def __init__(self, make: Callable[[], Host], ended: Callable[[], None]) -> None:
        self.id = secrets.token_urlsafe(18)
        self.name = ""
        """Name that the client drew for the request that opened it."""
        self.used = time.monotonic()
        self._make = make
        self._host: Host | None = None
        self._lane = Lane(ended)
        self._lock = threading.Lock()
        self._number = -1
        self._request: tuple[str, tuple[Any, ...]] = ("", ())
        self._answer: Future[Answer] = Future()
        self._answer.set_result((200, ""))

    def ask(self, number: int, method: str, *arguments: Any) -> Future[Answer]:
        """Carry out a request, or find the answer to it if it was the last one.

        Raises:
            Refused: it has another number, or is another request of the same number.
        """
        with self._lock:
            self.used = time.monotonic()
            if number == self._number and (method, arguments) == self._request:
                return self._answer
            expected = self._number + 1
            if number != expected:
                other = " That number was another request." if number == self._number else ""
                raise Refused(
                    409,
                    f"Request {number} came where {expected} was expected.{other} A session has one client, which numbers its requests.",
                    expected=expected,
                )
            if not self._answer.done():
                raise Refused(409, f"Request {self._number} is still running.", expected=self._number)
            self._number, self._request = number, (method, arguments)
            self._answer = self._lane.submit(partial(self._call, method, arguments))
            return self._answer

    def is_idle(self, seconds: float) -> bool:
        """True if nothing was asked for so long."""
        return time.monotonic() - self.used > seconds

    def end(self) -> None:
        """Close the environment after the request that is running."""
        self._lane.submit(self._close)
        self._lane.end()

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Answer:
        self._host = self._host or self._make()
        answer: Answer = getattr(self._host, method)(*arguments)
        return answer

    def _close(self) -> Answer:
        if self._host is not None:
            self._host.close()
        return 200, ""


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
        self._named: dict[str, Session] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._threads = 0
        self._closed = threading.Event()
        threading.Thread(target=self._end_idle, daemon=True).start()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, name: str, make: Callable[[], Host], *arguments: Any) -> tuple[Session, Future[Answer]]:
        """Open a session and reset its environment; a name that has opened one finds it.

        Raises:
            Refused: no session is free.
        """
        with self._lock:
            session = self._named.get(name)
            if session is None:
                if self._threads >= self.most:
                    raise Refused(503, f"All {self.most} sessions are in use; more: --max-sessions.")
                self._threads += 1
                session = Session(make, self._thread_ended)
                self._open[session.id] = session
                if name:
                    session.name = name
                    self._named[name] = session
        answer = session.ask(0, "reset", *arguments)
        answer.add_done_callback(partial(self._end_failed, session.id))
        return session, answer

    def ask(self, session_id: str, number: int, method: str, *arguments: Any) -> Future[Answer]:
        """Carry out a request of a session; see `Session.ask`.

        Raises:
            Refused: there is no such session, or see `Session.ask`.
        """
        with self._lock:
            session, reason = self._open.get(session_id), self._ended.get(session_id)
        if session is None:
            if reason is not None:
                raise Refused(410, f"The session has ended: {reason}")
            raise Refused(404, "There is no such session: the server may have been started again.")
        answer = session.ask(number, method, *arguments)
        answer.add_done_callback(partial(self._end_failed, session_id))
        return answer

    def end(self, session_id: str, reason: str) -> bool:
        """End a session; False if there is none."""
        with self._lock:
            session = self._open.pop(session_id, None)
            if session is None:
                return False
            self._named.pop(session.name, None)
            self._ended[session_id] = reason
            while len(self._ended) > MAX_REMEMBERED:
                self._ended.popitem(last=False)
        session.end()
        return True

    def close(self) -> None:
        """End all sessions."""
        self._closed.set()
        for session_id in list(self._open):
            self.end(session_id, "the server is closed.")

    def _end_failed(self, session_id: str, answer: Future[Answer]) -> None:
        status, text = answer.result()
        if status >= 400:
            error = json.loads(text)["error"]
            self.end(session_id, f"its environment raised {error['type']}: {error['message']}")

    def _end_idle(self) -> None:
        while not self._closed.wait(min(5.0, self.timeout / 4)):
            for session in list(self._open.values()):
                if session.is_idle(self.timeout):
                    self.end(session.id, f"nothing was asked for {self.timeout:g} s (--session-timeout).")

    def _thread_ended(self) -> None:
        with self._lock:
            self._threads -= 1
