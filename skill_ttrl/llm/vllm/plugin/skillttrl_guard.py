"""ASGI middleware `Guard`: restricts a server's routes and its clients.

vLLM's routes for weights are meant for development: they require no key, and one of them calls any method of the engine. Here
only the required routes are open, and all but `/health` require the key if there is one. Weights are read from the folder that the
server was started with (`inside`).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "SKILLTTRL_TRANSFER_FOLDER"
KEY_VARIABLE = "VLLM_API_KEY"
PROCESS_HEADER = b"x-skillttrl-process"
OPEN = frozenset({"/health"})
ROUTES = OPEN | {
    "/version",
    "/metrics",
    "/v1/models",
    "/v1/completions",
    "/v1/chat/completions",
    "/pause",
    "/resume",
    "/is_paused",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/update_weight_version",
    "/weight_info",
    "/reset_prefix_cache",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
}
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def inside(path: object, folder: str) -> bool:
    """True if `path` is absolute and, with links resolved, lies below `folder`."""
    if not isinstance(path, str) or not path or "\0" in path or not folder or not os.path.isabs(path):
        return False
    found, allowed = Path(path).resolve(), Path(folder).resolve()
    return found != allowed and found.is_relative_to(allowed)


class Guard:
    """ASGI middleware; vLLM makes it with the application alone, the rest is read from the environment.

    Each answer carries a header with a number drawn when the process started: whoever handed weights to a server can tell
    whether an answer is of the process that took them, or of one that was started since.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        key = os.environ.get(KEY_VARIABLE)
        self._key = hashlib.sha256(key.encode()).digest() if key else None
        self._process = secrets.token_hex(8).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if scope["type"] == "websocket" or path not in ROUTES:
            await _refuse(send, scope, 403, f"Skill-TTRL's server does not offer {path}.")
        elif path not in OPEN and not self._knows(scope):
            await _refuse(send, scope, 401, "This server requires its key: 'Authorization: Bearer KEY'.")
        else:
            await self._app(scope, receive, self._marked(send))

    def _knows(self, scope: Scope) -> bool:
        if self._key is None:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, word = given.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(hashlib.sha256(word).digest(), self._key)

    def _marked(self, send: Send) -> Send:
        async def marking(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (PROCESS_HEADER, self._process)]
            await send(message)

        return marking


async def _refuse(send: Send, scope: Scope, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    body = json.dumps({"error": {"message": why, "type": "Refused", "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
