"""HTTP server of the standard library with bounds on connections, waiting time and body size, for remote environments."""

from __future__ import annotations

import errno
import io
import ipaddress
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from skill_ttrl.errors import EnvError

IDLE_SECONDS = 60.0
"""Time after which a connection without a request is closed."""
REQUEST_SECONDS = 20.0
"""Time in which a whole request must arrive, and its answer be read: a client that sends a byte now and then holds no thread for ever."""
MAX_CONNECTIONS = 1000
"""Connections at once; more are answered with 503."""
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"


class BadBody(Exception):
    """Raised for a request body that is not read.

    Args:
        status: of the answer.
        message: of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BoundedServer(ThreadingHTTPServer):
    """Server with one thread per connection, and at most `MAX_CONNECTIONS` of them.

    Args:
        handler: answers the requests of a connection.
        host: to listen on.
        port: 0: any free one.

    Raises:
        EnvError: the port is taken, or there is no such host here.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BoundedHandler], host: str, port: int) -> None:
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise EnvError(
                    f"Port {port} of {host} is used by another program. Choose another; --port 0 takes a free one."
                ) from None
            raise EnvError(f"Cannot listen on {host}, port {port}: {error}.") from None

    @property
    def address(self) -> str:
        """URL of the server."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if self.address_family == socket.AF_INET6 else f"http://{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, where one is left."""
        if not self._places.acquire(blocking=False):
            with suppress(OSError):  # the client has gone
                request.settimeout(1.0)
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the thread's place back at the end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error; a client that leaves in the middle of an answer is none."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Incoming(io.RawIOBase):
    """Bytes from a client. The first byte of a request may take long to arrive, the whole request may not."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline: float | None = None

    def next_request(self) -> None:
        """From here on the next request is awaited."""
        self._deadline = None

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there.

        Raises:
            TimeoutError: nothing came in time.
        """
        left = IDLE_SECONDS if self._deadline is None else self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request was not sent in time")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        self._deadline = self._deadline or time.monotonic() + REQUEST_SECONDS
        return count


class BoundedHandler(BaseHTTPRequestHandler):
    """Handler whose requests must arrive in time, and whose bodies say their length."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "skillttrl", ""
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # headers and body in one packet

    def setup(self) -> None:
        """Read through `_Incoming`."""
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        """Begin a request's time anew."""
        self._incoming.next_request()
        super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are the clients' private data."""

    def read_body(self, what: str, limit: int) -> bytes:
        """Read the body of a request.

        Args:
            what: name of the body in messages, such as "A form".
            limit: most bytes.

        Raises:
            BadBody: it has no length, or is longer. The connection is closed after the answer.
        """
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self.close_connection = True
            raise BadBody(411, f"{what} says how long it is.")
        if len(length) > 9 or int(length) > limit:
            self.close_connection = True
            raise BadBody(413, f"{what} has at most {limit:,} bytes.")
        return self.rfile.read(int(length))

    def send_body(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        """Send an answer; underscores in the names of `headers` stand for hyphens."""
        self.connection.settimeout(REQUEST_SECONDS)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def is_loopback(host: str) -> bool:
    """True if a host name or address is of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
