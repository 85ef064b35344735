"""HTTP connections to the server of an environment: every process has its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from skill_ttrl.envs.http_server import is_loopback
from skill_ttrl.errors import EnvError

if TYPE_CHECKING:
    import httpx


class HttpConnections:
    """Connections to one server. A pickled copy and a forked process connect again when needed.

    Args:
        url: like `http://127.0.0.1:3000`; what follows it must be empty.
        what: begins the message about any other: "url names the server of an environment".
        timeout: seconds that each part of a request may take.

    Raises:
        EnvError: `url` is no URL of a server.
    """

    _client: httpx.Client | None = None
    _process = 0
    """Id of the process that made the connections."""

    def __init__(self, url: object, what: str, timeout: float) -> None:
        try:
            parts = urlsplit(str(url).strip())
            plain = parts.hostname and parts.path in ("", "/") and not parts.query + parts.fragment and parts.port != 0
        except ValueError:
            plain = False
        if not plain or "@" in parts.netloc or parts.scheme not in ("http", "https"):
            raise EnvError(f"{what} like http://127.0.0.1:3000, found {str(url)[:200]!r}.")
        self.url, self.timeout = f"{parts.scheme}://{parts.netloc}", timeout

    def __del__(self) -> None:
        self.close()  # an environment that is dropped without `close` leaves no connection open

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._client is not None and self._process == os.getpid():  # a forked one holds its parent's
            self._client.close()
        self._client = None

    def _connected(self) -> httpx.Client:
        import httpx

        if self._client is None or self._process != os.getpid():  # else two processes would read each other's answers
            self._process = os.getpid()
            # Certificates are read only where they are looked at; a proxy is not asked for this machine's own servers.
            secure, here = self.url.startswith("https:"), is_loopback(urlsplit(self.url).hostname or "")
            self._client = httpx.Client(timeout=self.timeout, verify=secure, trust_env=not here)
        return self._client
