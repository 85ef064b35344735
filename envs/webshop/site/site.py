"""The shop as a web site: for a person with a browser, and for programs that know the official one.

The routes are the official ones (`address`), answered to GET and POST alike. Nothing is kept of a visit: where it stands is in
the address, and its goal follows from its name: `fixed_12` and `fixed_ANYTHING_12` have goal 12, any other name one drawn by it.
So there is nothing to forget, the back button and a reload work, and another process of the same catalogue answers the same.
An address cannot claim what the shop does not offer: a product's options are checked, since the reward looks at them.

The standard library's server is enough for that: a page takes about a millisecond, visitors are one person and the agents of
one machine, and nothing has to be installed.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs

from skill_ttrl.envs.http_server import BadBody, BoundedHandler, BoundedServer
from skill_ttrl.envs.webshop.address import BadAddress, page_path, read_keywords, read_path
from skill_ttrl.envs.webshop.goal import Goal, price_of
from skill_ttrl.envs.webshop.goals import GoalList
from skill_ttrl.envs.webshop.pages import ATTRIBUTES
from skill_ttrl.envs.webshop.reward import purchase_reward
from skill_ttrl.envs.webshop.shop import Shop, State
from skill_ttrl.envs.webshop.site.html import SCRIPT, STYLE, page_html
from skill_ttrl.envs.webshop.site.site_pages import problem_page, receipt_page, start_page
from skill_ttrl.types import derive_seed

LONGEST_FORM = 65_536
"""Bytes of what a form may send."""
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


class SiteServer(BoundedServer):
    """Serves a site; `address` says where.

    Args:
        site: what is answered.
        host: to listen on.
        port: 0: any free one.

    Raises:
        EnvError: the port is taken, or there is no such host here.
    """

    def __init__(self, site: Site, host: str = "127.0.0.1", port: int = 3000) -> None:
        self.site = site
        super().__init__(_Handler, host, port)


class _Handler(BoundedHandler):
    server: SiteServer

    def do_GET(self) -> None:
        self._send(self.server.site.answer(self.path))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        try:
            body = self.read_body("A form", LONGEST_FORM)
            form = parse_qs(body.decode("utf-8", "replace"), True, max_num_fields=20)
        except BadBody as error:
            self._send(Answer(problem_page(error.status, str(error)), error.status))
        except ValueError:
            self.close_connection = True
            self._send(Answer(problem_page(400, "A form of the shop has one field."), 400))
        else:
            self._send(self.server.site.answer(self.path, form))

    def _send(self, answer: Answer) -> None:
        images = "https: data:" if self.server.site.images else "data:"
        headers = {"Content_Security_Policy": _NOTHING_ELSE.format(images=images), "Referrer_Policy": "no-referrer"}
        if answer.location:
            headers["Location"] = answer.location
        self.send_body(answer.status, answer.kind, answer.body.encode("utf-8", "replace"), **headers)
