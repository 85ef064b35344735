"""Sessions of a server: each has an environment, a thread that calls it and numbered requests, and ends when it is idle for too long."""

from __future__ import annotations

import json
import queue
import secrets
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import gymnasium

from skill_ttrl.envs.contract import close_env
from skill_ttrl.errors import EnvError
from skill_ttrl.signals import FAILURES

MAX_REMEMBERED = 1000
"""Ended sessions whose reason is still known."""
Answer = tuple[int, str]
"""HTTP status and JSON text."""
MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
_RESULT = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


def error_answer(status: int, error: BaseException | str, kind: str = "", **more: Any) -> Answer:
    """The answer that states an error; errors of foreign code are named with their type."""
    kind = kind or type(error).__name__
    return status, json.dumps({"error": {"type": kind, "message": str(error)}, **more})


class Refused(Exception):
    """Raised for a request that is not carried out.

    Args:
        status: HTTP status.
        message: reason, and what to do.
        more: further fields of the answer.
    """

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.answer = error_answer(status, message, "Refused", **more)


class Lane:
    """One thread that runs jobs in order. No executor: Python waits for its jobs at exit, and one of these may hang for ever."""

    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Answer], Callable[[], Answer]] | None] = queue.SimpleQueue()
        self._ended = ended
        threading.Thread(target=self._run, name="environment", daemon=True).start()

    def submit(self, job: Callable[[], Answer]) -> Future[Answer]:
        """Run a job after those before it."""
        answer: Future[Answer] = Future()
        self._jobs.put((answer, job))
        return answer

    def end(self) -> None:
        """End the thread after the jobs before."""
        self._jobs.put(None)

    def _run(self) -> None:
        try:
            while (entry := self._jobs.get()) is not None:
                answer, job = entry
                try:
                    answer.set_result(job())
                except BaseException as error:  # a bug of the server: the client gets an answer all the same
                    traceback.print_exc(file=sys.stderr)
                    answer.set_result(error_answer(500, error))
        finally:
            self._ended()


class Session:
    """An environment in use.

    Args:
        make: makes the environment, in the session's own thread.
        ended: called when that thread has ended.
    """

    def __init__(self, make: MakeEnv, ended: Callable[[], None]) -> None:
        self.id = secrets.token_urlsafe(18)
        self.name = ""
        """Name that the client drew for the request that opened it."""
        self.used = time.monotonic()
        self._make = make
        self._env: gymnasium.Env[Any, Any] | None = None
        self._lane = Lane(ended)
        self._lock = threading.Lock()
        self._number = -1
        self._request: tuple[str, dict[str, Any]] = ("", {})
        self._answer: Future[Answer] = Future()
        self._answer.set_result((200, ""))

    def ask(self, number: int, method: str, arguments: dict[str, Any]) -> Future[Answer]:
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

    def end(self) -> None:
        """Close the environment after the request that is running."""
        self._lane.submit(self._close)
        self._lane.end()

    def _call(self, method: str, arguments: dict[str, Any]) -> Answer:
        try:
            if self._env is None:
                self._env = self._make()
            found, names = getattr(self._env, method)(**arguments), _RESULT[method]
            if not isinstance(found, tuple) or len(found) != len(names):
                raise EnvError(f"The environment must return ({', '.join(names)}), found {type(found).__name__}.")
            return 200, json.dumps(dict(zip(names, found, strict=True)), default=_plain)
        except FAILURES as error:
            return error_answer(422, error)

    def _close(self) -> Answer:
        if self._env is not None:
            close_env(self._env)
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

    def open(self, name: str, make: MakeEnv, **arguments: Any) -> tuple[Session, Future[Answer]]:
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
        return session, self._ask(session, 0, "reset", arguments)

    def ask(self, session_id: str, number: int, method: str, **arguments: Any) -> Future[Answer]:
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
        return self._ask(session, number, method, arguments)

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

    def _ask(self, session: Session, number: int, method: str, arguments: dict[str, Any]) -> Future[Answer]:
        answer = session.ask(number, method, arguments)
        answer.add_done_callback(partial(self._end_failed, session.id))
        return answer

    def _end_failed(self, session_id: str, answer: Future[Answer]) -> None:
        status, text = answer.result()
        if status >= 400:
            error = json.loads(text)["error"]
            self.end(session_id, f"its environment raised {error['type']}: {error['message']}")

    def _end_idle(self) -> None:
        while not self._closed.wait(min(5.0, self.timeout / 4)):
            for session in list(self._open.values()):
                if time.monotonic() - session.used > self.timeout:
                    self.end(session.id, f"nothing was asked for {self.timeout:g} s (--session-timeout).")

    def _thread_ended(self) -> None:
        with self._lock:
            self._threads -= 1


def _plain(value: Any) -> Any:
    """Convert a number of NumPy for JSON."""
    if hasattr(value, "item"):
        return value.item()
    raise EnvError(f"The environment returned what JSON cannot write: {type(value).__name__}.")
