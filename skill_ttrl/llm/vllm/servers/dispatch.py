"""Requests spread over servers. Each ends in one answer by the present weights, or in an error that names the server that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from skill_ttrl.errors import EndpointError
from skill_ttrl.llm.vllm.servers.http import Server, ServerLost, ask, open_async_client
from skill_ttrl.llm.vllm.servers.pool import ServerPool

MOST_ATTEMPTS = 3
"""Times that a request is sent; one that ends every server that takes it must not go round for ever."""


async def answer_all(pool: ServerPool, bodies: Sequence[Mapping[str, Any]], connections: int) -> list[dict[str, Any]]:
    """The answers, in the order of the requests. What was lost with a server is sent again once all have the weights.

    Args:
        pool: the servers.
        bodies: the requests; the name of the model is filled in for each server.
        connections: most requests that run at the same time.

    Raises:
        EndpointError: a request is refused, a server did not come back in time, or requests were lost too often.
        WeightSyncError: a server came back and cannot take the weights.
    """
    answers: dict[int, tuple[Server, dict[str, Any]]] = {}
    lost = ""
    # A client of its own for each batch: a long-lived one looks through all of its open connections at every request.
    async with open_async_client(connections) as client:

        async def answer(place: int) -> str:
            server, size = min(pool.servers, key=lambda each: each.load), int(bodies[place]["n"])
            server.load += size
            try:
                answers[place] = server, await ask(client, server, {**bodies[place], "model": server.model})
                return ""
            except ServerLost as error:
                return str(error)
            finally:
                server.load -= size

        for _ in range(MOST_ATTEMPTS):
            await asyncio.gather(*(asyncio.to_thread(pool.ensure_current, server) for server in pool.servers))
            waiting = [place for place in range(len(bodies)) if place not in answers]
            lost = next(filter(None, await asyncio.gather(*map(answer, waiting))), lost)
            used = list({server.address: server for server, _ in answers.values()}.values())
            right = await asyncio.gather(*(asyncio.to_thread(pool.still, server) for server in used))
            for server in (each for each, is_right in zip(used, right, strict=True) if not is_right):
                lost = f"{server.address} was given other weights meanwhile"
                answers = {place: found for place, found in answers.items() if found[0] is not server}
            if len(answers) == len(bodies):
                return [answers[place][1] for place in range(len(bodies))]
            pool.notice(f"{lost}; its requests are sent again.")
    raise EndpointError(
        f"Requests were lost {MOST_ATTEMPTS} times, the last time because {lost}. See the server's log.", "lost"
    )
