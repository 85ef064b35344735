"""The environment on a running server of princeton-nlp/WebShop (`web_agent_site/app.py`), over HTTP.

    python -m web_agent_site.app                 # in upstream's checkout
    gymnasium.make("SkillTTRL/WebShop-v0", data="http://127.0.0.1:3000")

Each episode is a session of its own, `fixed_<unique>_<number>`, for which the server takes the goal of that number. Observations are
read from its pages and equal those of a shop of this process; the score is the one that its last page states. The server tells its
goals by number only: `server_goals` says how many it has. A word with "/" is sent as two words, which its addresses cannot hold.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.envs.http_client import HttpConnections
from skill_ttrl.envs.webshop.goals import DEV_GOALS, NO_CEILING, TEST_GOALS, TRAIN_BOTH, Goal, check_split
from skill_ttrl.envs.webshop.pages import (
    BACK,
    BUTTONS,
    BUY,
    NEXT,
    PREVIOUS,
    Page,
    Text,
    as_rich_text,
    as_text,
    clickables,
    done_page,
)
from skill_ttrl.envs.webshop.shop import QUERY_CODES, Place, State, View, digest, follow, page_url, parse_action
from skill_ttrl.errors import EnvError, SplitError

TIMEOUT = 10.0
MAX_PAGE_BYTES = 4 << 20
MAX_REDIRECTIONS = 5
_ID = re.compile(r"server-(0|[1-9][0-9]{0,8})")
_SCORE = re.compile(r"[01](?:\.\d+)?|\d(?:\.\d+)?e-\d+")
_HIDDEN = frozenset(("style", "script", "head", "title", "meta", "[document]"))


def is_server(data: object) -> bool:
    """True if `data` is the URL of a server."""
    return isinstance(data, str) and data.startswith(("http://", "https://"))


class ServerGoals:
    """The goals of a running server, of which only the numbers are known.

    Args:
        address: of the server, for messages.
        count: number of goals; None: only those of the splits test and dev are played.

    Raises:
        EnvError: `count` is no number of goals.
    """

    kind = "server"

    def __init__(self, address: str, count: int | None) -> None:
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise EnvError(
                f"server_goals is the number of goals on the server, a whole number of at least 1, found {count!r:.60}."
            )
        self.address, self._count = address, TEST_GOALS + DEV_GOALS if count is None else count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Goal:
        return Goal(f"server-{number}", "", "", "", "", "", "", (), (), NO_CEILING)

    def find(self, goal_id: str) -> int:
        """Return a goal's number from its id, `server-0`, `server-1`, and so on."""
        match = _ID.fullmatch(goal_id)
        if match is None:
            raise EnvError(f"Goals of a running server are named server-0, server-1, …, found {goal_id[:60]!r}.")
        if int(match[1]) >= len(self):
            raise EnvError(
                f"{self.address} has no goal {match[1]}: they are numbered from 0 to {len(self) - 1:,}. If it has more, set server_goals."
            )
        return int(match[1])

    def split(self, name: str, by: str = "goal") -> NDArray[np.int64]:
        """Return the numbers of the goals of a split, in ascending order; a running server can only be split by goal."""
        check_split(name, by)
        if by == "product" or name == TRAIN_BOTH:
            raise EnvError(
                "A running server does not report the product of a goal, so its goals can only be split by goal."
            )
        first = TEST_GOALS + DEV_GOALS
        ends = {"test": (0, TEST_GOALS), "dev": (TEST_GOALS, first), "train": (first, len(self))}[name]
        found = np.arange(ends[0], min(ends[1], len(self)))
        if not len(found):
            raise SplitError(
                f"The {len(self):,} goals of {self.address} leave none for the split {name!r}. Set server_goals to their number."
            )
        return found

    def draw(self, chance: float, split: str, by: str = "goal") -> int:
        """Draw a goal of the split. All goals are equally likely, because a running server does not report weights."""
        numbers = self.split(split, by)
        return int(numbers[int(chance * len(numbers))])


class LiveVisit(HttpConnections):
    """Visit to a running server. A page that does not come is requested again, but for a purchase.

    It can be pickled between two actions; the pickle holds its session, its place and its page.

    Args:
        address: of the server.
        mode: one of `MODES`.
        query_codes: let searches with upstream's query codes through, which the server honours.
        timeout: seconds within which a page must arrive.
    """

    attempts = 4
    """Requests for a page."""
    pause = 0.25
    """Seconds before the second request for a page, twice as long before each later one."""

    def __init__(
        self, address: str, mode: str = "text", *, query_codes: bool = False, timeout: float = TIMEOUT
    ) -> None:
        super().__init__(address, "data names a running WebShop server", timeout)
        self.mode, self.query_codes = mode, query_codes
        self._session, self._number = "", 0
        self._state, self._page = State(), LivePage("search", (), "")

    def start(self, goal: int) -> tuple[str, View]:
        """Begin a session with a goal, given by its number; the instruction, and what is seen.

        Raises:
            EnvError: no page came, or another than the search page.
        """
        self._session, self._number = f"fixed_{uuid.uuid4().hex}_{goal}", goal
        self._page = self._ask("GET", f"/{self._session}", State())
        self._state = State()
        return self._page.instruction, self._view()

    def act(self, action: str) -> View:
        """Execute an action and return the new view. Any text is an action; one without a meaning here is not sent.

        Raises:
            EnvError: no page came, or another page than requested. The visit then stays where it was, so that the action can be repeated.
        """
        state, parsed = follow(self._state, self._page.texts, action), parse_action(action)
        if state is self._state or parsed is None:
            return self._view()
        name, argument = parsed
        if name == "search":
            words = argument.replace("/", " ")
            if words.split(" ")[0] in QUERY_CODES and not self.query_codes:
                words = f" {words}"  # with a space before it a query code is a word like others
            page = self._ask("POST", f"/{self._session}", state, {"search_query": words})
        else:
            target = self._page.target(argument)
            if target is None:
                raise EnvError(f"{self.url} has a page on which {argument[:60]!r} leads nowhere.")
            page = self._ask(*target, state, is_purchase=argument == BUY.lower())
        if state.place != "done" and page.instruction != self._page.instruction:
            raise EnvError(f"{self.url} shows a different instruction than before. Was the server restarted?")
        self._page, self._state = page, state
        return self._view()

    def _ask(
        self, method: str, to: str, wanted: State, form: Mapping[str, str] | None = None, *, is_purchase: bool = False
    ) -> LivePage:
        what = f"the page {wanted.place!r} of session {self._session}"
        if is_purchase:
            self.close()  # a connection that the server has closed meanwhile looks like an answer that broke off
        attempts, pause = 1 if is_purchase else self.attempts, self.pause
        for attempt in range(1, attempts + 1):
            try:
                html = self._fetch(method, self._own(f"{self.url}/", to), what, form)
                break
            except ConnectionError as error:
                if attempt == attempts:
                    why = "The purchase was not sent again: the server may have received it." if is_purchase else ""
                    raise EnvError(
                        f"{self.url} returned no page for {what} in {attempts} attempts: {error}. {why} Check that the WebShop server runs there, and its output; then start the episode again."
                    ) from None
            time.sleep(pause)
            pause *= 2
        try:
            page = read_page(html)
            if page.place != wanted.place:
                raise NotThePage(f"it is {page.place!r}")
        except NotThePage as error:
            raise EnvError(
                f"{self.url} returned something else for {what}: {error}. data must be a server of princeton-nlp/WebShop; for any other environment use env.kwargs.url."
            ) from None
        return page

    def _fetch(self, method: str, url: str, what: str, form: Mapping[str, str] | None) -> str:
        for _ in range(MAX_REDIRECTIONS):
            body = None if form is None else urlencode(form).encode()
            kind = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
            path = quote(url.removeprefix(self.url), safe="%/?=&:;,+$!*'()[]@~") or "/"
            status, headers, content = self.send(method, path, body, kind, MAX_PAGE_BYTES)
            if status in (301, 302, 303) and "location" in headers:
                url, method, form = self._own(url, headers["location"]), "GET", None
                continue
            if status >= 500:
                raise ConnectionError(f"status {status}")
            if status != 200:
                raise EnvError(
                    f"{self.url} refused {what} with status {status}: does it have that many goals (server_goals)?"
                )
            return content.decode("utf-8", "replace")
        raise EnvError(f"{self.url} redirected without end for {what}.")

    def _own(self, base: str, to: str) -> str:
        """The whole address of a page; another server's is refused: its pages say nothing of this one's episode."""
        url = urljoin(base, to)
        if not url.startswith(f"{self.url}/") and url != self.url:
            host = urlsplit(self.url).netloc
            raise EnvError(
                f"{self.url} redirects to another server: {url[:200]}. Only {host} is contacted. If you want the other one, set data to it."
            )
        return url

    def _view(self) -> View:
        page, shown = self._page, tuple(clickables(self._page.texts))
        at = digest(self._state, self.mode)
        return View(self._observation(page), shown, page.place == "search", at, page.score, {})

    def _observation(self, page: LivePage) -> str:
        url = page_url(str(self._number), self._state)
        if self.mode == "url":
            return url
        texts = page.texts
        if page.score is not None:
            texts = done_page(self._state.asin, self._state.options, page.score)
        return as_text(texts) if self.mode == "text" else as_rich_text(texts, url, self._state.seen)


class NotThePage(ValueError):
    """Raised for a page that is not of the official site; the message says how it differs."""


@dataclass(frozen=True, slots=True)
class LivePage:
    """One page of the official site, read and never run."""

    place: Place
    texts: Page
    instruction: str
    """Empty on the page after a purchase, which has none."""
    targets: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """(kind, small-letter text) → method and address that a click requests; the kinds are those of `pages.Text`."""
    score: float | None = None
    """After a purchase, in [0, 1]."""

    def target(self, argument: str) -> tuple[str, str] | None:
        """Return the request of `click[argument]`; None: it leads nowhere. Buttons come first, as upstream."""
        found = (self.targets.get((kind, argument)) for kind in ("button", "product", "option"))
        return next((target for target in found if target is not None), None)


def read_page(html: str) -> LivePage:
    """Read a page.

    Raises:
        NotThePage: it is none of the official site.
    """
    from bs4 import BeautifulSoup  # a shop of this process does without

    soup = BeautifulSoup(html, "html.parser")
    if scores := soup.select("#reward pre"):
        text = scores[0].get_text().strip()
        if len(soup.select("#reward")) + len(scores) != 2 or not _SCORE.fullmatch(text) or float(text) > 1.0:
            raise NotThePage(f"it states no single score from 0 to 1, found {text[:40]!r}")
        return LivePage("done", (), "", score=float(text))
    heading = soup.select_one("#instruction-text h4")
    strings = [] if heading is None else [str(string) for string in heading.find_all(string=True)]
    if not strings or not strings[0].startswith("Instruction:"):
        raise NotThePage("it has no instruction")
    first = strings[0].removeprefix("Instruction:")
    radios = soup.select('input[type="radio"]')
    options = {str(radio.get("id")): str(radio.get("name") or "") for radio in radios}
    texts = tuple(_text(string, options) for string in soup.find_all(string=True) if _is_seen(string))
    buttons = {text.text for text in texts if text.kind == "button"}
    if unknown := buttons.difference(BUTTONS):
        raise NotThePage(f"it has a button {min(unknown)[:40]!r}, which no page of the official site as published has")
    targets = {}
    for button in soup.select("form[action] button"):
        form: Any = button.find_parent("form")
        targets["button", button.get_text().lower()] = (str(form.get("method", "get")).upper(), str(form["action"]))
    for link in soup.select(".product-link[href]"):
        targets["product", link.get_text().lower()] = ("GET", str(link["href"]))
    for radio in soup.select('input[type="radio"][data-url]'):
        targets["option", str(radio.get("value"))] = ("GET", str(radio["data-url"]))
    instruction = "".join([first if first.strip() else "", *strings[1:]])
    return LivePage(_place(soup, buttons), texts, instruction, targets)


def _place(soup: Any, buttons: set[str]) -> Place:
    if soup.find(id="search_input") is not None:
        return "search"
    if BUY in buttons:
        return "item"
    if NEXT in buttons:
        return "results"
    if {BACK, PREVIOUS} <= buttons:
        return "sub"
    raise NotThePage(f"of the official buttons it has {', '.join(sorted(buttons)) or 'none'}")


def _is_seen(string: Any) -> bool:
    return string.parent.name not in _HIDDEN and type(string).__name__ != "Comment" and string != "\n"


def _text(string: Any, options: Mapping[str, str]) -> Text:
    parent = string.parent
    if parent.name == "button":
        return Text(str(string), "button")
    if parent.name == "label":
        return Text(str(string), "option", options.get(str(parent.get("for")), ""))
    if parent.get("class") == ["product-link"]:
        return Text(str(string), "product")
    return Text(str(string))
