"""HTTP to a running shop: asked again where that is harmless, and never believed further than it must be."""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from skill_ttrl.errors import EnvError

LONGEST_PAUSE = 4.0
"""Longest pause between two requests for the same page, in seconds."""
MOST_BYTES = 16 << 20
"""Longest page that is read; the official ones have at most some 100 kB."""
MOST_REDIRECTIONS = 5


@dataclass(frozen=True, slots=True)
class Got:
    """A page that came."""

    url: str
    """Where it is, after redirections."""
    html: str


class _TryAgain(Exception):
    """Raised for a failed request that may be repeated.

    Args:
        message: describes the failure.
        reached: True if the request may have reached the server.
    """

    def __init__(self, message: str, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


class LiveClient:
    """Requests pages of one server, each at most `tries` times. Can be pickled between requests, and then connects again when needed.

    Args:
        address: like `http://127.0.0.1:3000`.
        timeout: seconds within which a page must arrive.
        pause: seconds before the second request for a page, twice as long before each later one, up to `LONGEST_PAUSE`.

    Raises:
        EnvError: it is no address of a server.
    """

    _client: httpx.Client | None = None
    _process = 0
    """Id of the process that created the client."""

    def __init__(self, address: str, timeout: float, tries: int, pause: float) -> None:
        self.address = checked_address(address)
        self.timeout, self.tries, self.pause = timeout, tries, pause

    def __del__(self) -> None:
        self.close()  # who drops an environment without `close` leaves no connection open

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def ask(self, method: str, to: str, what: str, form: Mapping[str, str] | None = None, *, again: bool = True) -> Got:
        """Ask for a page and follow where it leads.

        Args:
            method: GET or POST.
            to: an address on this server, or a path.
            what: it is for, for messages.
            form: what a POST sends.
            again: False: only a request that cannot have reached the server is repeated.

        Raises:
            EnvError: no page came.
        """
        url = self._own(to, what)
        pause = self.pause
        for tried in range(1, self.tries + 1):
            try:
                return self._follow(method, url, what, form)
            except _TryAgain as error:
                if tried == self.tries or (error.reached and not again):
                    often = f" ({tried} tries)" if tried > 1 else ""
                    why = "" if again else " It was not asked again, because the server may have taken it already."
                    raise EnvError(
                        f"{self.address} was asked for {what} and gave no page: {error}{often}.{why * error.reached} Look "
                        "whether the WebShop server runs there and at what it prints; then begin the episode anew."
                    ) from None
            time.sleep(min(pause, LONGEST_PAUSE))
            pause *= 2
        raise AssertionError("a request has at least one try")

    def has(self, to: str, what: str) -> bool:
        """True if a page exists. A refusal (status 404, or 500 as the official server fails) is tried twice.

        Raises:
            EnvError: nothing answers, or it answers otherwise.
        """
        for _ in range(2):
            try:
                status, _, _ = self._once("GET", self._own(to, what), None)
            except _TryAgain as error:
                raise EnvError(f"{self.address} was asked for {what} and gave no page: {error}.") from None
            if status < 400:
                return True
            if status not in (404, 500):
                raise EnvError(f"{self.address} was asked for {what} and refused with status {status}.")
        return False

    def close(self) -> None:
        """Let go of the connections; the next request opens new ones."""
        if self._client is not None:
            if self._process == os.getpid():  # a forked process has a copy, and the connections are not its own
                self._client.close()
            self._client = None

    def _follow(self, method: str, url: str, what: str, form: Mapping[str, str] | None) -> Got:
        for redirected in range(MOST_REDIRECTIONS + 1):
            try:
                status, headers, body = self._once(method, url, form)
            except _TryAgain as error:
                error.reached |= redirected > 0
                raise
            if status in (301, 302, 303, 307, 308) and "location" in headers:
                url = self._own(urljoin(url, headers["location"]), what)
                if status not in (307, 308):
                    method, form = "GET", None
                continue
            html = body.decode("utf-8", "replace")
            if status >= 500:
                raise _TryAgain(f"status {status}, {_beginning(html)}")
            if status != 200:
                raise EnvError(
                    f"{self.address} was asked for {what} and refused with status {status}, {_beginning(html)}. A page at "
                    f"{url[:200]} is not there: is it an official WebShop server, and has it so many goals?"
                )
            return Got(url, html)
        raise EnvError(f"{self.address} was asked for {what} and led from one address to the next without end.")

    def _once(self, method: str, url: str, form: Mapping[str, str] | None) -> tuple[int, httpx.Headers, bytes]:
        until = time.monotonic() + self.timeout
        try:
            with self._connected().stream(method, url, data=form) as response:
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise EnvError(f"{url[:200]} has more than {MOST_BYTES >> 20} MiB: that is no page of a shop.")
                    if time.monotonic() > until:
                        raise httpx.ReadTimeout("slow")
                return response.status_code, response.headers, bytes(body)
        except httpx.ConnectError as error:
            raise _TryAgain(f"nothing answers there ({error})", reached=False) from None
        except httpx.ConnectTimeout:
            raise _TryAgain(f"no connection in {self.timeout:g} s", reached=False) from None
        except httpx.TimeoutException:
            raise _TryAgain(f"it was not there in {self.timeout:g} s") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _TryAgain(f"the connection broke ({error or type(error).__name__})") from None
        except httpx.InvalidURL as error:
            raise EnvError(f"{self.address} led to an address that is none: {error}.") from None

    def _connected(self) -> httpx.Client:
        if self._process != os.getpid():
            self.close()  # else two processes would read each other's answers
        if self._client is None:
            self._process = os.getpid()
            secure = self.address.startswith("https:")
            # Certificates are read only where they are looked at; a proxy is not asked for this machine's own servers.
            self._client = httpx.Client(
                timeout=self.timeout, verify=secure, trust_env=not _is_loopback(urlsplit(self.address).hostname or "")
            )
        return self._client

    def _own(self, to: str, what: str) -> str:
        """The whole address of a page; another server's is refused: its pages say nothing of this one's episode."""
        url = urljoin(f"{self.address}/", to)
        if _origin(url) != _origin(self.address):
            raise EnvError(
                f"{self.address} was asked for {what} and leads to another server: {url[:200]}. Only the server that was named is "
                "asked; name that one if it is meant."
            )
        return url


def checked_address(address: str) -> str:
    """The address of a server without what follows it.

    Raises:
        EnvError: it is none.
    """
    try:
        parts = urlsplit(address.strip())
        plain = (
            parts.hostname and parts.path in ("", "/") and not parts.query and not parts.fragment and parts.port != 0
        )
    except ValueError:
        plain = False
    if not plain or "@" in parts.netloc or parts.scheme not in ("http", "https"):
        raise EnvError(f"data names a running WebShop server like http://127.0.0.1:3000, found {address[:200]!r}.")
    return f"{parts.scheme}://{parts.netloc}"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", None, None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _beginning(html: str) -> str:
    """Quote the beginning of a page's text for a message: one line of at most 160 characters."""
    from bs4 import BeautifulSoup

    said = " ".join(BeautifulSoup(html[:20_000], "html.parser").get_text(" ").split())
    return repr(said[:160]) if said else "with nothing in it"
