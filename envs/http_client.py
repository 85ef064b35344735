"""HTTP connections to the server of an environment: bounded in time and size, whatever the server does."""

from __future__ import annotations

import http.client
import io
import os
import socket
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from skill_ttrl.errors import EnvError
from skill_ttrl.trust import clean_address

MAX_HEADER_BYTES = 1 << 17
CONNECT_S = 30.0
"""Longest time in seconds to connect."""
KEEPALIVE_S = 10
"""Seconds of silence after which a server's machine is probed, and between two probes."""


class NotReachedError(ConnectionError):
    """Raised for a request that has not reached the server."""


class HttpConnections:
    """A connection to one server. A pickled copy and a forked process connect again when needed.

    Args:
        url: like `http://127.0.0.1:3000`; what follows it must be empty.
        what: begins the message about any other: "url names the server of an environment".
        timeout: seconds within which a whole answer must be there.

    Raises:
        EnvError: `url` is no URL of a server.
    """

    _connection: http.client.HTTPConnection | None = None
    _process = 0
    """Id of the process that connected."""

    def __init__(self, url: object, what: str, timeout: float) -> None:
        try:
            parts = urlsplit(clean_address(url))
            plain = parts.hostname and parts.path in ("", "/") and not parts.query + parts.fragment and parts.port != 0
        except ValueError:
            plain = False
        if not plain or "@" in parts.netloc or parts.scheme not in ("http", "https"):
            raise EnvError(f"{what} like http://127.0.0.1:3000, found {str(url)[:200]!r}.")
        self.url, self.timeout = f"{parts.scheme}://{parts.netloc}", timeout

    def __del__(self) -> None:
        self.close()  # an environment that is dropped without `close` leaves no connection open

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None and self._process == os.getpid():  # a forked one holds its parent's
            self._connection.close()
        self._connection = None

    def send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], limit: int
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send one request, without redirections, and read its whole answer of at most `limit` bytes.

        Raises:
            EnvError: the answer is longer, or the path or a header cannot be sent.
            NotReachedError: there is no connection.
            ConnectionError: it broke, or the answer was not there in time.
        """
        if (
            self._connection is None or self._process != os.getpid()
        ):  # else two processes would read each other's answers
            self._process = os.getpid()
            self._connection = _connection(self.url)
        connection, deadline = self._connection, time.monotonic() + self.timeout
        try:
            if connection.sock is None:
                connection.timeout = min(self.timeout, CONNECT_S)
                connection.connect()
                made: Any = connection.sock
                made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if hasattr(socket, "TCP_KEEPIDLE"):  # a machine that is gone is found out while an answer is waited for
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
        except OSError as error:
            self.close()
            raise NotReachedError(f"nothing answers there ({error})") from None

        def bounded(sock: socket.socket, **more: Any) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(_Answer(sock, deadline, limit + MAX_HEADER_BYTES), **more)  # type: ignore[arg-type]

        connection.response_class = bounded  # type: ignore[assignment]
        complete = False
        try:
            connection.sock.settimeout(self.timeout)
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            if (response.length or 0) > limit:
                raise _TooLongError
            found = response.read()
            complete = True
        except _TooLongError:
            raise EnvError(f"{self.url} answers with more than {limit >> 20} MiB.") from None
        except TimeoutError:
            raise ConnectionError(f"no complete answer came within {self.timeout:g} s") from None
        except (http.client.InvalidURL, ValueError) as error:
            raise EnvError(f"The request to {self.url} cannot be sent: {error}.") from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(f"the connection broke ({str(error)[:200] or type(error).__name__})") from None
        finally:
            if not complete:
                self.close()
        return response.status, response.headers, found


class _TooLongError(Exception):
    """Raised for an answer with more bytes than are read."""


class _Answer(io.RawIOBase):
    """Bytes of one answer, up to a deadline and a number. A socket's own timeout begins anew with every byte."""

    def __init__(self, sock: socket.socket, deadline: float, limit: int) -> None:
        self._socket, self._deadline, self._left = sock, deadline, limit
        self._file = sock.makefile("rb", buffering=0)  # holds the socket open after the connection is closed

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a buffered reader of this answer, as `socket.makefile` does."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there.

        Raises:
            TimeoutError: the deadline has passed.
            _TooLongError: too many bytes have come.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer was not there in time")
        self._socket.settimeout(left)
        count = self._file.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise _TooLongError
        return count or 0

    def close(self) -> None:
        """Let the socket go."""
        self._file.close()
        super().close()


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.netloc, context=ssl.create_default_context())
    return http.client.HTTPConnection(parts.netloc)
