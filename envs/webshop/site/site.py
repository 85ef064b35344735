"""The shop as a web site: for a person with a browser, and for programs that know the official one.

The routes are the official ones (`address`), answered to GET and POST alike. Nothing is kept of a visit: where it stands is in
the address, and its goal follows from its name: `fixed_12` and `fixed_ANYTHING_12` have goal 12, any other name one drawn by it.
So there is nothing to forget, the back button and a reload work, and another process of the same catalogue answers the same.
An address cannot claim what the shop does not offer: a product's options are checked, since the reward looks at them.

The standard library's server is enough for that: a page takes about a millisecond, visitors are one person and the agents of
one machine, and nothing has to be installed.
"""

from __future__ import annotations

import errno
import io
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from skill_ttrl.envs.webshop.address import BadAddress, page_path, read_keywords, read_path
from skill_ttrl.envs.webshop.goal import Goal, price_of
from skill_ttrl.envs.webshop.goals import GoalList
from skill_ttrl.envs.webshop.pages import ATTRIBUTES
from skill_ttrl.envs.webshop.reward import purchase_reward
from skill_ttrl.envs.webshop.shop import Shop, State
from skill_ttrl.envs.webshop.site.html import SCRIPT, STYLE, page_html
from skill_ttrl.envs.webshop.site.site_pages import problem_page, receipt_page, start_page
from skill_ttrl.errors import EnvError
from skill_ttrl.types import derive_seed

LONGEST_FORM = 65_536
"""Bytes of what a form may send."""
IDLE_SECONDS = 60.0
"""After which a connection that asks nothing is closed."""
REQUEST_SECONDS = 20.0
"""In which a request must be here whole, and its answer be taken: a visitor who sends a byte now and then holds no thread for ever."""
MOST_VISITORS = 1000
"""Connections at once; more are answered with 503."""
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
_FILES = {STYLE: ("site.css", "text/css; charset=utf-8"), SCRIPT: ("site.js", "text/javascript; charset=utf-8")}
_NOTHING_ELSE = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src {images}; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Response to a request."""

    body: str
    status: int = 200
    kind: str = "text/html; charset=utf-8"
    location: str = ""
    """Where to go instead, for a redirection."""


class Site:
    """Answers the requests to a shop, independently of sockets.

    Args:
        shop: the shop to serve.
        goals: the goals, by number.
        source: origin of the catalogue, in words.
        images: show the catalogue's pictures, which lie on other hosts.
    """

    def __init__(self, shop: Shop, goals: GoalList, source: str, *, images: bool = False) -> None:
        self.shop, self.goals, self.source, self.images = shop, goals, source, images
        self._draws = random.SystemRandom()

    def answer(self, target: str, form: Mapping[str, list[str]] | None = None) -> Answer:
        """Answer one request; a bad one with a page that says what is wrong.

        Args:
            target: path and query as they came.
            form: what a POST sent, by field; None: a GET.
        """
        path, _, query = target.partition("?")
        try:
            if path == "/":
                return self._start(parse_qs(query, max_num_fields=10))
            if path in _FILES:
                name, kind = _FILES[path]
                return Answer((Path(__file__).parent / name).read_text(encoding="utf-8"), kind=kind)
            if path == "/favicon.ico":
                raise BadAddress("The shop has no such address.")
            return self._page(path, form)
        except BadAddress as error:
            return Answer(problem_page(error.status, str(error)), error.status)
        except Exception:  # a visitor gets a page whatever happens; who started the server gets the traceback
            traceback.print_exc(file=sys.stderr)
            return Answer(problem_page(500, "The shop made a mistake. Its terminal says which."), 500)

    def goal_of(self, session: str) -> Goal:
        """The goal of a visit.

        Raises:
            BadAddress: its name asks for a goal that is not there.
        """
        if "fixed" in session:
            return self.goals[self._number(session.rpartition("_")[2])]
        return self.goals[self.goals.draw(random.Random(derive_seed(0, "visit", session)).random())]

    def _start(self, query: Mapping[str, list[str]]) -> Answer:
        if "goal" in query:
            asked = query["goal"][0]
            number = self.goals.draw(self._draws.random()) if asked == "random" else self._number(asked.strip())
            return Answer("", 303, location=page_path(f"fixed_{number}", State()))
        first = self._number(query.get("from", ["0"])[0])
        return Answer(start_page(self.goals, first, self.source))

    def _page(self, path: str, form: Mapping[str, list[str]] | None) -> Answer:
        session, state = read_path(path)
        goal = self.goal_of(session)
        if state.place == "search" and form and "search_query" in form:
            found = State("results", read_keywords(form["search_query"][0]))
            return Answer("", 302, location=page_path(session, found))
        if state.asin:
            self._check(state)
        if state.place == "done":
            product = self.shop.product(state.asin)
            bought = purchase_reward(product, goal, price_of(product), state.options, self.shop.nouns)
            return Answer(receipt_page(self.shop, goal, session, replace(state, bought=bought)))
        return Answer(page_html(self.shop, goal, session, state, self.images))

    def _check(self, state: State) -> None:
        try:
            product = self.shop.product(state.asin)
        except KeyError:
            raise BadAddress(f"The shop has no product {state.asin[:20]!r}.") from None
        for name, value in state.options.items():
            if value not in product.options.get(name, ()):
                raise BadAddress(f"{state.asin} has no option {name[:40]!r} with the value {value[:40]!r}.", 400)
        if state.sub == ATTRIBUTES and not self.shop.show_attributes:
            raise BadAddress("This shop does not show attributes.")

    def _number(self, text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) < 12 and int(text) < len(self.goals):
            return int(text)
        raise BadAddress(f"There is no goal {text[:20]!r}: they are numbered from 0 to {len(self.goals) - 1:,}.")


class SiteServer(ThreadingHTTPServer):
    """Serves a site; `address` says where.

    Args:
        site: what is answered.
        host: to listen on.
        port: 0: any free one.

    Raises:
        EnvError: the port is taken, or there is no such host here.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, site: Site, host: str = "127.0.0.1", port: int = 3000) -> None:
        self.site = site
        self._places = threading.BoundedSemaphore(MOST_VISITORS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise EnvError(
                    f"Port {port} of {host} is taken by another program. Choose another one: --port 0 takes any that is free."
                ) from None
            raise EnvError(f"Cannot listen on {host}, port {port}: {error}.") from None

    @property
    def address(self) -> str:
        """Where the shop is."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if self.address_family == socket.AF_INET6 else f"http://{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a visitor in a thread of its own, where one is left."""
        if not self._places.acquire(blocking=False):
            with suppress(OSError):  # the visitor has gone
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
        """A visitor who leaves in the middle of an answer is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Incoming(io.RawIOBase):
    """Bytes from a visitor. The first byte of a request may take long to arrive, the whole request may not."""

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


class _Handler(BaseHTTPRequestHandler):
    server: SiteServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "skillttrl", ""
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        self._incoming.next_request()
        super().handle_one_request()

    def do_GET(self) -> None:
        self._send(self.server.site.answer(self.path))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        form = self._form()
        if form is not None:
            self._send(self.server.site.answer(self.path, form))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are the visitors' private data."""

    def _form(self) -> dict[str, list[str]] | None:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self._refuse(411, "A form says how long it is.")
        elif len(length) > 9 or int(length) > LONGEST_FORM:
            self._refuse(413, f"A form has at most {LONGEST_FORM:,} bytes.")
        else:
            try:
                return parse_qs(self.rfile.read(int(length)).decode("utf-8", "replace"), True, max_num_fields=20)
            except ValueError:
                self._refuse(400, "A form of the shop has one field.")
        return None

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True  # its body was not read
        self._send(Answer(problem_page(status, message), status))

    def _send(self, answer: Answer) -> None:
        body = answer.body.encode("utf-8", "replace")
        self.connection.settimeout(REQUEST_SECONDS)
        self.send_response(answer.status)
        if answer.location:
            self.send_header("Location", answer.location)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        images = "https: data:" if self.server.site.images else "data:"
        self.send_header("Content-Security-Policy", _NOTHING_ELSE.format(images=images))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
