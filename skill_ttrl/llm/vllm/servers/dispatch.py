"""Requests spread over servers that may die at any time: each ends in exactly one answer, given by the present weights.

A server is asked only after it was seen to have the weights, which is found out, and put right where it must be, by `ensure_current`.
What a server was asked when it was lost goes back among the waiting. At the end every server that has answered is looked at
once more; the answers of one that somebody gave other weights meanwhile are thrown away and asked for again.

Episodes that go on each by itself are many dispatches at the same time: what they load a server with is counted together, and
they share their looks at it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import httpx

from skill_ttrl.errors import EndpointError
from skill_ttrl.llm.vllm.servers.http import Server, ServerLost, ask

MOST_ATTEMPTS = 5
"""Servers that a request may be lost with; one that kills whoever takes it must not go round for ever."""
POLL = 1.0
"""Seconds between two looks at a server that does not answer."""
UNREACHABLE = "unreachable"
"""Kind of the error for a server that did not come back: others may do its work."""

Body = Mapping[str, Any]
T = TypeVar("T")


class SharedLook(Generic[T]):
    """Shares looks at a server, each in a thread, among all dispatches of one event loop.

    Callers that request a look while another one is running share the next one. So every look starts after it was requested,
    and each server has at most one look running at a time. The look itself may block.
    """

    def __init__(self, look: Callable[[Server], T]) -> None:
        self._look = look
        self._now: dict[str, asyncio.Task[T]] = {}
        self._next: dict[str, asyncio.Task[T]] = {}

    async def __call__(self, server: Server) -> T:
        """Return the look's result, or raise its error."""
        if server.address not in self._next:
            work = asyncio.create_task(self._after(self._now.get(server.address), server))
            work.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever asked may have left
            self._next[server.address] = work
        return await asyncio.shield(self._next[server.address])

    async def _after(self, earlier: asyncio.Task[T] | None, server: Server) -> T:
        if earlier is not None:
            await asyncio.wait({earlier})
        self._now[server.address] = self._next.pop(server.address)
        return await asyncio.to_thread(self._look, server)


class Dispatch:
    """One batch of requests on its way.

    Args:
        servers: to spread them over.
        bodies: the requests; the name of the model is filled in for each server.
        ensure_current: returns when a server has the present weights; raises `ServerLost` where it does not answer.
        still: whether what a server has answered is of the weights that it was asked with.
        room: most sequences of this batch that are asked of one server at once; a single larger request is asked all the same.
        patience: seconds in which a lost server must be back.
        notice: gets messages about what is being waited for.
        stopping: whether the user wants to leave: then lost servers are not waited for.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        bodies: Sequence[Body],
        *,
        ensure_current: Callable[[Server], Awaitable[None]],
        still: Callable[[Server], Awaitable[bool]],
        room: int,
        patience: float,
        notice: Callable[[str], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._servers, self._bodies = list(servers), bodies
        self._ensure_current, self._still = ensure_current, still
        self._room, self._patience, self._notice, self._stopping = room, patience, notice, stopping
        self._waiting = deque(range(len(bodies)))
        self._attempts = [0] * len(bodies)
        self._answers: dict[int, tuple[Server, dict[str, Any]]] = {}
        self._load = {server.address: 0 for server in self._servers}
        self._ready: set[str] = set()
        self._gone: dict[str, EndpointError] = {}
        self._events: asyncio.Queue[tuple[Server, int | None, object]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, client: httpx.AsyncClient) -> list[dict[str, Any]]:
        """The answers, in the order of the requests.

        Raises:
            EndpointError: a request is refused, or no server came back in time.
            WeightSyncError: a server came back and cannot take the weights.
        """
        try:
            await self._look_at_all()
            while True:
                while len(self._answers) < len(self._bodies):
                    self._hand_out(client)
                    self._take(*await self._events.get())
                if await self._confirmed():
                    return [self._answers[index][1] for index in range(len(self._bodies))]
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look_at_all(self) -> None:
        """Look at all servers before handing out requests; otherwise the first one to respond would get all of them.

        Does not wait for servers that are known to be down.
        """
        away = [server for server in self._servers if server.said]
        for server in away:
            self._start(self._revive(server))
        there = [server for server in self._servers if server not in away]
        looks = (self._ensure_current(server) for server in there)
        for server, found in zip(there, await asyncio.gather(*looks, return_exceptions=True), strict=True):
            if found is None:
                self._ready.add(server.address)
            elif isinstance(found, ServerLost):
                self._start(self._revive(server))
            else:
                raise found

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _hand_out(self, client: httpx.AsyncClient) -> None:
        """Give what waits to the servers that are ready, each time to the one with the least to do."""
        while self._waiting:
            size = int(self._bodies[self._waiting[0]]["n"])
            ready = [server for server in self._servers if server.address in self._ready]
            free = [server for server in ready if self._load[server.address] + size <= self._room]
            free = free or [server for server in ready if self._load[server.address] == 0]
            if not free:
                return
            server = min(free, key=lambda each: each.load)
            index = self._waiting.popleft()
            self._load[server.address] += size
            server.load += size
            self._start(self._ask(client, server, index)).add_done_callback(partial(_unload, server, size))

    async def _ask(self, client: httpx.AsyncClient, server: Server, index: int) -> None:
        found: object
        try:
            found = await ask(client, server, {**self._bodies[index], "model": server.model})
        except Exception as error:
            found = error
        self._events.put_nowait((server, index, found))

    def _take(self, server: Server, index: int | None, found: object) -> None:
        """Process an event: a server is up (no index), or a request has ended."""
        if index is not None:
            self._load[server.address] -= int(self._bodies[index]["n"])
        if isinstance(found, ServerLost) and index is not None:
            self._waiting.append(index)
            self._attempts[index] += 1
            if self._attempts[index] >= MOST_ATTEMPTS:
                raise EndpointError(
                    f"A request was lost {MOST_ATTEMPTS} times with the server that it was sent to, the last time because {found}. "
                    "See the servers' logs.",
                    kind="lost",
                )
            self._lose(server, str(found))
        elif isinstance(found, EndpointError) and found.kind == UNREACHABLE:
            self._gone[server.address] = found
            if len(self._gone) == len(self._servers):
                raise found
        elif isinstance(found, BaseException):
            raise found
        elif index is None:
            self._ready.add(server.address)
        else:
            self._answers[index] = (server, found)  # type: ignore[assignment]  # `ask` gives nothing else

    def _lose(self, server: Server, why: str) -> None:
        if server.address in self._ready:  # each request that was lost with it reports so
            self._ready.discard(server.address)
            self._tell(server, "lost", f"{why}; its requests are sent again.")
            self._start(self._revive(server))

    def _tell(self, server: Server, what: str, text: str) -> None:
        """Tell the user, where no other dispatch has."""
        if what not in server.said:
            server.said.add(what)
            self._notice(text)

    async def _revive(self, server: Server) -> None:
        began = time.monotonic()
        found: object = None
        while True:
            try:
                await self._ensure_current(server)
                break
            except ServerLost as lost:
                waited = time.monotonic() - began
                if waited > self._patience or self._stopping():
                    found = unanswered(server.address, waited, str(lost))
                    break
                if waited > POLL:
                    text = f"Waiting for {server.address}, up to {self._patience:.0f} s (vllm.start_timeout)."
                    self._tell(server, "waiting", text)
                await asyncio.sleep(POLL)
            except Exception as error:
                found = error
                break
        self._events.put_nowait((server, None, found))

    async def _confirmed(self) -> bool:
        """True if all answers are of the present weights; those that may not be are requested again."""
        used = {server.address: server for server, _ in self._answers.values()}
        current = await asyncio.gather(*(self._still(server) for server in used.values()))
        for server, right in zip(used.values(), current, strict=True):
            if right:
                continue
            again = [index for index, (owner, _) in self._answers.items() if owner is server]
            for index in again:
                del self._answers[index]
            self._waiting.extend(again)
            self._lose(server, f"{server.address} does not have the weights any more that it was asked with")
        return all(current)


def _unload(server: Server, size: int, asked: asyncio.Task[None]) -> None:
    server.load -= size


def unanswered(address: str, patience: float, why: str) -> EndpointError:
    """The error for a server that did not come up in time."""
    return EndpointError(
        f"{address} did not come up within {patience:.0f} s ({why}). Start it with `skillttrl serve`, which starts it again when "
        "it dies; its log is named in servers.json. vllm.start_timeout says how long is waited.",
        kind=UNREACHABLE,
    )
