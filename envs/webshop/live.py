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
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import httpx
import numpy as np
from numpy.typing import NDArray

from skill_ttrl.envs.webshop import shop
from skill_ttrl.envs.webshop.goals import DEV_GOALS, NO_CEILING, TEST_GOALS, Goal, check_split
from skill_ttrl.errors import EnvError, SplitError
from skill_ttrl.trust import clean_address

TIMEOUT_S = 10.0
ATTEMPTS, PAUSE_S = 4, 0.25
"""Requests for a page, and seconds before the second one, twice as long before each later one."""
MAX_REDIRECTIONS = 5
_SCORE = re.compile(r"[01](?:\.\d+)?|\d(?:\.\d+)?e-\d+")
_HIDDEN = frozenset(("style", "script", "head", "title", "meta", "[document]"))


@dataclass(frozen=True)
class ServerGoals:
    """The goals of a running server, of which only the numbers are known."""

    address: str
    """Of the server, for messages."""
    count: int

    kind = "server"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Goal:
        return Goal(f"server-{number}", "", "", "", "", "", "", (), (), NO_CEILING)

    def find(self, goal_id: str) -> int:
        """Return a goal's number from its id, `server-0`, `server-1`, and so on."""
        number = goal_id.removeprefix("server-")
        if not number.isdecimal() or int(number[:10]) >= self.count:
            raise EnvError(
                f"{self.address} has no goal {goal_id[:60]!r}: they are server-0 to server-{self.count - 1}. If it has more, set server_goals."
            )
        return int(number)

    def split(self, name: str, by: str = "goal") -> NDArray[np.int64]:
        """Return the numbers of the goals of a split, in ascending order; a running server can only be split by goal."""
        check_split(name, by)
        first = TEST_GOALS + DEV_GOALS
        ends = {"test": (0, TEST_GOALS), "dev": (TEST_GOALS, first), "train": (first, self.count)}
        if by == "product" or name not in ends:
            raise EnvError("A running server does not report the product of a goal: it can only be split by goal.")
        found = np.arange(ends[name][0], min(ends[name][1], self.count))
        if not len(found):
            raise SplitError(f"The {self.count} goals of {self.address} leave none for {name!r}; set server_goals.")
        return found

    def draw(self, chance: float, split: str, by: str = "goal") -> int:
        """Draw a goal of the split. All goals are equally likely, because a running server does not report weights."""
        numbers = self.split(split, by)
        return int(numbers[int(chance * len(numbers))])


class LiveVisit:
    """Visit to a running server, which can be pickled between two actions. A page that does not come is requested again, but for a purchase.

    Args:
        address: of the server.
        mode: one of `MODES`.
    """

    def __init__(self, address: str, mode: str = "text") -> None:
        self.url, self.mode = clean_address(address).rstrip("/"), mode
        self._session, self._number = "", 0
        self._state, self._page = shop.State(), LivePage("search", (), "", {})

    def start(self, goal: int) -> tuple[str, shop.View]:
        """Begin a session with a goal, given by its number; the instruction, and what is seen.

        Raises:
            EnvError: no page came, or another than the search page.
        """
        self._session, self._number = f"fixed_{uuid.uuid4().hex}_{goal}", goal
        self._page, self._state = self._ask("GET", f"/{self._session}", shop.State()), shop.State()
        return self._page.instruction, self._view()

    def act(self, action: str) -> shop.View:
        """Execute an action and return the new view. Any text is an action; one without a meaning here is not sent.

        Raises:
            EnvError: no page came, or another page than requested. The visit then stays where it was, so that the action can be repeated.
        """
        state, parsed = shop.follow(self._state, self._page.texts, action), shop.parse_action(action)
        if state is self._state or parsed is None:
            return self._view()
        name, argument = parsed
        if name == "search":
            words = argument.replace("/", " ")
            if words.split(" ")[0] in shop.QUERY_CODES:
                words = f" {words}"  # with a space before it a query code is a word like others
            page = self._ask("POST", f"/{self._session}", state, {"search_query": words})
        else:
            page = self._ask(*self._page.targets[argument], state)
        if state.place != "done" and page.instruction != self._page.instruction:
            raise EnvError(f"{self.url} shows a different instruction than before. Was the server restarted?")
        self._page, self._state = page, state
        return self._view()

    def _ask(self, method: str, to: str, wanted: shop.State, form: Mapping[str, str] | None = None) -> LivePage:
        what, buys = f"the page {wanted.place!r} of session {self._session}", wanted.place == "done"
        for attempt in range(1 if buys else ATTEMPTS):
            time.sleep(PAUSE_S * 2 ** (attempt - 1) if attempt else 0)
            try:
                page = read_page(self._fetch(method, to, form))
                break
            except httpx.HTTPError as error:
                why = str(error).partition("\n")[0] or type(error).__name__
        else:
            again = " The purchase was not sent again: the server may have received it." if buys else ""
            raise EnvError(f"{self.url} returned no page for {what}: {why}.{again} Check that the WebShop server runs.")
        if page.place != wanted.place:
            raise EnvError(
                f"{self.url} returned something else for {what}: {page.place!r}. data must be a server of princeton-nlp/WebShop; for any other environment use env.kwargs.url."
            )
        return page

    def _fetch(self, method: str, to: str, form: Mapping[str, str] | None) -> str:
        url = f"{self.url}/"
        for _ in range(MAX_REDIRECTIONS):
            url = urljoin(url, to)
            if not url.startswith(f"{self.url}/"):
                raise EnvError(f"{self.url} leads to another server, which is not contacted: {url[:200]}.")
            got = httpx.request(method, url, data=form, timeout=TIMEOUT_S, trust_env=False)
            if not got.is_redirect:
                return got.raise_for_status().text
            to, method, form = got.headers["Location"], "GET", None
        raise EnvError(f"{self.url} redirects without end.")

    def _view(self) -> shop.View:
        page = self._page
        texts = page.texts if page.score is None else shop.done_page(self._state.asin, self._state.options, page.score)
        seen = shop.observe(texts, str(self._number), self._state, self.mode)
        at = shop.digest(self._state, self.mode)
        return shop.View(seen, tuple(shop.clickables(page.texts)), page.place == "search", at, page.score, {})


@dataclass(frozen=True, slots=True)
class LivePage:
    """One page of the official site, read and never run."""

    place: shop.Place | None
    """None: it is no page of that site."""
    texts: shop.Page
    instruction: str
    """Empty on the page after a purchase, which has none."""
    targets: Mapping[str, tuple[str, str]]
    """Small-letter text → method and address that a click requests."""
    score: float | None = None
    """After a purchase, in [0, 1]."""


def read_page(html: str) -> LivePage:
    """Read a page; a purchase without one proper score is no page."""
    from bs4 import BeautifulSoup  # a shop of this process does without

    soup = BeautifulSoup(html, "html.parser")
    if scores := [score.get_text().strip() for score in soup.select("#reward pre")]:
        proper = len(scores) == 1 and _SCORE.fullmatch(scores[0]) and float(scores[0]) <= 1.0
        return LivePage("done" if proper else None, (), "", {}, float(scores[0]) if proper else None)
    heading = soup.select_one("#instruction-text h4")
    told = "" if heading is None else "".join(map(str, heading.find_all(string=True)))
    options = {str(radio.get("id")): str(radio.get("name") or "") for radio in soup.select('input[type="radio"]')}
    strings: Any = soup.find_all(string=True)
    texts = tuple(
        _text(string, options)
        for string in strings
        if string.parent.name not in _HIDDEN and type(string).__name__ != "Comment" and string != "\n"
    )
    targets = {  # what comes later wins, as upstream: buttons
        **{str(radio["value"]): ("GET", str(radio["data-url"])) for radio in soup.select("input[data-url]")},
        **{link.get_text().lower(): ("GET", str(link["href"])) for link in soup.select(".product-link[href]")},
    }
    for button in soup.select("form[action] button"):
        form: Any = button.find_parent("form")
        targets[button.get_text().lower()] = (str(form.get("method", "get")).upper(), str(form["action"]))
    buttons = {text.text for text in texts if text.kind == "button"}
    place: shop.Place | None = "sub" if {shop.BACK, shop.PREVIOUS} <= buttons else None
    place = "item" if shop.BUY in buttons else "results" if shop.NEXT in buttons else place
    place = "search" if soup.find(id="search_input") else place
    return LivePage(place, texts, told.removeprefix("Instruction:").strip(), targets)


def _text(string: Any, options: Mapping[str, str]) -> shop.Text:
    parent = string.parent
    if parent.name == "button":
        return shop.Text(str(string), "button")
    if parent.name == "label":
        return shop.Text(str(string), "option", options.get(str(parent.get("for")), ""))
    return shop.Text(str(string), "product" if parent.get("class") == ["product-link"] else "text")
