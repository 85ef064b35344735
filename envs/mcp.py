"""Tools of MCP servers (Model Context Protocol), by the official SDK: the extra `mcp`.

Every environment has its own session with a server: with a process that is started here (stdio), or with an address (streamable HTTP). A new episode gets a new session, unless nothing was called in the last one. All sessions live in one event loop in
a thread of its own. Names, descriptions, schemas and results are untrusted: they are bounded and escaped.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from functools import cache, partial
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import Any, TypeVar, cast

import psutil

from skill_ttrl.envs.tools import Tool
from skill_ttrl.errors import EnvError, MissingDependencyError
from skill_ttrl.sanitize import escape, one_line

T = TypeVar("T")
START_S = 60.0
"""Longest wait for each answer while a session begins, and for the list of tools."""
STOP_S = 10.0
MAX_TOOLS = 100
MAX_TEXT = 2000
"""Most characters of a text in a tool's description."""
MARK = "SKILLTTRL_MCP_SESSION"
"""Environment variable of a started server and of its children, by which they are found and ended."""
CLOSED, TIMED_OUT = -32000, -32001
"""Codes of the SDK's own errors."""


class McpClient:
    """A server as one environment uses it.

    Args:
        server: the command that starts it, or its address.
        timeout_s: longest call.

    Raises:
        EnvError: it does not start.
        MissingDependencyError: the SDK is not installed.
    """

    def __init__(self, server: str | Sequence[str], timeout_s: float) -> None:
        if find_spec("mcp") is None:
            raise MissingDependencyError.for_extra("An MCP server in agent.tools", "mcp")
        self._server = server if isinstance(server, str) else tuple(server)
        self._timeout_s = timeout_s
        self._session: _Session | None = None
        self._used = False

    def tools(self) -> list[Tool]:
        """The server's tools, which are listed once per process."""
        if self._server not in _LISTED:
            _LISTED[self._server] = self._call(_list, START_S)
        return [
            Tool({"type": "function", "function": function}, partial(self._use, function["name"]))
            for function in _LISTED[self._server]
        ]

    def renew(self) -> None:
        """Begin a session, unless there is one in which nothing was called. Does not wait for it."""
        if self._session is None or self._used or self._session.ended.done():
            self.close()
            self._session, self._used = _Session(self._server), False

    def ready(self) -> Any:
        """The session, once it has begun, as a client of the SDK.

        Raises:
            EnvError: the server does not start.
        """
        if self._session is None:
            self.renew()
        assert self._session is not None
        try:
            return self._session.client.result()  # which ends: of itself, by `START_S`
        except Exception as error:
            self.close()
            raise EnvError(f"The MCP server {_shown(self._server)} does not start: {_reason(error)}") from None

    def close(self) -> None:
        """End the session, and the server's process with its children. Waits for that only when this process exits."""
        if self._session is not None:
            self._session.end()
        self._session = None

    def _use(self, name: str, arguments: dict[str, Any]) -> str:
        self._used = True

        async def use(client: Any) -> str:
            found = await client.call_tool(name, arguments, read_timeout_seconds=self._timeout_s)
            text = "\n".join(each.text if each.type == "text" else f"[{each.type}]" for each in found.content)
            if found.is_error:
                raise ValueError(text)
            return text

        return str(self._call(use, self._timeout_s))

    def _call(self, work: Any, seconds: float) -> Any:
        from mcp import MCPError

        answer = _in_loop(work(self.ready()))
        try:
            return answer.result(seconds)
        except MCPError as error:
            if error.code == TIMED_OUT:
                raise TimeoutError from None
            if error.code == CLOSED:
                raise EnvError(f"The MCP server {_shown(self._server)} has ended.") from None
            raise
        finally:
            answer.cancel()


class _Session:
    """One session, from its beginning to its end in one task of the event loop."""

    def __init__(self, server: str | tuple[str, ...]) -> None:
        self._server = server
        self._stop = asyncio.Event()
        self.client: Future[Any] = Future()
        """Set once the session has begun."""
        self.ended: Future[None] = Future()
        _SESSIONS.add(self)
        self._task = _in_loop(self._live())

    async def _live(self) -> None:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        mark, transport = secrets.token_hex(16), cast(Any, self._server)
        with TemporaryFile("w+", errors="replace") as log:
            if not isinstance(self._server, str):
                program, *arguments = self._server
                command = StdioServerParameters(command=program, args=arguments, env={MARK: mark})
                transport = stdio_client(command, errlog=log)
            try:
                async with AsyncExitStack() as stack:
                    async with _gate():
                        client = await stack.enter_async_context(Client(transport, read_timeout_seconds=START_S))
                    self.client.set_result(client)
                    await self._stop.wait()
            except BaseException as error:
                if not self.client.done():
                    log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_TEXT))
                    said = one_line(log.read(), 400)
                    self.client.set_exception(EnvError(f"{_reason(error)}{said and f' It wrote: {said}'}"))
            finally:
                if not isinstance(self._server, str):
                    _kill(mark)
                _SESSIONS.discard(self)
                self.ended.set_result(None)

    def end(self, seconds: float = 0.0) -> None:
        """Signal it to end, and wait up to `seconds`."""
        _loop().call_soon_threadsafe(self._stop.set)
        if not self.client.done():
            self._task.cancel()
        if seconds:
            with suppress(TimeoutError):
                self.ended.result(seconds)


_LISTED: dict[str | tuple[str, ...], list[dict[str, Any]]] = {}
_SESSIONS: set[_Session] = set()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mcp", daemon=True)
    thread.start()
    atexit.register(_end_all, loop, thread)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # Else nothing would end the servers.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return loop


def _in_loop(work: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(work, _loop())


@cache
def _gate() -> asyncio.Semaphore:
    """Bounds how many servers start at the same time."""
    return asyncio.Semaphore(max(2, os.cpu_count() or 1))


def _end_all(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    for seconds in (0.0, STOP_S):  # all are asked before one is waited for
        for session in list(_SESSIONS):
            session.end(seconds)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(STOP_S)


def _kill(mark: str) -> None:
    """End what is left of a server: its children may have gone on without it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                process.kill()


async def _list(client: Any) -> list[dict[str, Any]]:
    found, cursor = list[Any](), None
    while len(found) < MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        found, cursor = found + page.tools, page.next_cursor
        if not cursor:
            break
    return [
        _escaped({"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema})
        for tool in found[:MAX_TOOLS]
    ]


def _escaped(node: Any) -> Any:
    if isinstance(node, str):
        return escape(node[:MAX_TEXT])
    if isinstance(node, dict):
        return {_escaped(key): _escaped(value) for key, value in node.items()}
    return [_escaped(each) for each in node] if isinstance(node, list) else node


def _shown(server: str | tuple[str, ...]) -> str:
    return one_line(server if isinstance(server, str) else shlex.join(server), 200)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
