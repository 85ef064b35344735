"""HTTP to a running shop: asked again where that is harmless, and never believed further than it must be."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPMessage
from urllib.parse import urlencode, urljoin, urlsplit

from skill_ttrl.envs.http_client import HttpConnections, NotReachedError
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


class LiveClient(HttpConnections):
    """Requests pages of one server, each at most `attempts` times.

    Args:
        url: like `http://127.0.0.1:3000`.
        timeout: seconds within which a page must arrive.
        pause: seconds before the second request for a page, twice as long before each later one, up to `LONGEST_PAUSE`.

    Raises:
        EnvError: `url` is no URL of a server.
    """

    def __init__(self, url: str, timeout: float, attempts: int, pause: float) -> None:
        super().__init__(url, "data names a running WebShop server", timeout)
        self.attempts, self.pause = attempts, pause

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
        for attempt in range(1, self.attempts + 1):
            try:
                return self._follow(method, url, what, form)
            except _TryAgain as error:
                if attempt == self.attempts or (error.reached and not again):
                    often = f" ({attempt} attempts)" if attempt > 1 else ""
                    why = "" if again else " It was not asked again, because the server may have taken it already."
                    raise EnvError(
                        f"{self.url} was asked for {what} and gave no page: {error}{often}.{why * error.reached} Look "
                        "whether the WebShop server runs there and at what it prints; then begin the episode anew."
                    ) from None
            time.sleep(min(pause, LONGEST_PAUSE))
            pause *= 2
        raise AssertionError("a request has at least one attempt")

    def has(self, to: str, what: str) -> bool:
        """True if a page exists. A refusal (status 404, or 500 as the official server fails) is tried twice.

        Raises:
            EnvError: nothing answers, or it answers otherwise.
        """
        for _ in range(2):
            try:
                status, _, _ = self._once("GET", self._own(to, what), None)
            except _TryAgain as error:
                raise EnvError(f"{self.url} was asked for {what} and gave no page: {error}.") from None
            if status < 400:
                return True
            if status not in (404, 500):
                raise EnvError(f"{self.url} was asked for {what} and refused with status {status}.")
        return False

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
                    f"{self.url} was asked for {what} and refused with status {status}, {_beginning(html)}. A page at "
                    f"{url[:200]} is not there: is it an official WebShop server, and has it so many goals?"
                )
            return Got(url, html)
        raise EnvError(f"{self.url} was asked for {what} and led from one address to the next without end.")

    def _once(self, method: str, url: str, form: Mapping[str, str] | None) -> tuple[int, HTTPMessage, bytes]:
        path = url.removeprefix(self.url) or "/"
        body = None if form is None else urlencode(form).encode()
        headers = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            return self.send(method, path, body, headers, MOST_BYTES)
        except NotReachedError as error:
            raise _TryAgain(str(error), reached=False) from None
        except ConnectionError as error:
            raise _TryAgain(str(error)) from None

    def _own(self, to: str, what: str) -> str:
        """The whole address of a page; another server's is refused: its pages say nothing of this one's episode."""
        url = urljoin(f"{self.url}/", to)
        if _origin(url) != _origin(self.url):
            raise EnvError(
                f"{self.url} was asked for {what} and leads to another server: {url[:200]}. Only the server that was named is "
                "asked; name that one if it is meant."
            )
        return url


def _origin(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", None, None


def _beginning(html: str) -> str:
    """Quote the beginning of a page's text for a message: one line of at most 160 characters."""
    from bs4 import BeautifulSoup

    said = " ".join(BeautifulSoup(html[:20_000], "html.parser").get_text(" ").split())
    return repr(said[:160]) if said else "with nothing in it"
