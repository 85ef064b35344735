"""The environment on a running official server (`web_agent_site/app.py` of princeton-nlp/WebShop), or on ours, over HTTP.

    python -m web_agent_site.app                 # in upstream's checkout, or: skillttrl envs serve webshop --pages
    gymnasium.make("SkillTTRL/WebShop-v0", data="http://127.0.0.1:3000")

Each episode is a session of its own, `fixed_<unique>_<number>`, for which the server takes the goal of that number. What is
observed is read from its pages and is what the shop of this process shows. The score is the one that its last page states.

Different, because the official server cannot do otherwise:

- It tells its goals only by number, and not how many it has: that is found by asking for some (`count_goals`).
- A word with "/" is sent as two words: its addresses cannot hold one. The search takes both for the same.
- An option named like the page "Attributes", where that page is not shown, is chosen; the simulator shows the page.
- What the page after a purchase tells of the goal is not in the observation, as in the simulator, but for the mode `html`.
"""

from __future__ import annotations

import re
import uuid
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.envs.webshop.goal import NO_CEILING, Goal
from skill_ttrl.envs.webshop.goals import DEV_GOALS, MOST_GOALS, TEST_GOALS, TRAIN_BOTH, check_split
from skill_ttrl.envs.webshop.pages import BUY, as_rich_text, as_text, clickables, done_page
from skill_ttrl.envs.webshop.shop import QUERY_CODES, Place, State, digest, follow, page_url, parse_action
from skill_ttrl.envs.webshop.visit import View
from skill_ttrl.errors import EnvError, SplitError

if TYPE_CHECKING:  # a shop of this process needs neither Beautiful Soup nor HTTP
    from skill_ttrl.envs.webshop.live.client import Got, LiveClient
    from skill_ttrl.envs.webshop.live.pages import LivePage

TIMEOUT, ATTEMPTS, FIRST_PAUSE = 10.0, 4, 0.25
_ID = re.compile(r"server-(0|[1-9][0-9]{0,8})")
_NAMES: dict[Place, str] = {
    "search": "the search page",
    "results": "a page of results",
    "item": "a product",
    "sub": "a page of a product",
    "done": "the page after a purchase",
}


def is_server(data: object) -> bool:
    """True if `data` is the URL of a server."""
    return isinstance(data, str) and data.startswith(("http://", "https://"))


class ServerGoals:
    """The goals of a running server, of which only the numbers are known.

    Args:
        address: of the server, for messages.
        count: how many it has; None: the splits test and dev are taken to be there, and goals behind them are counted where
            they are asked for.

    Raises:
        EnvError: `count` is no number of goals.
    """

    kind = "server"

    def __init__(self, address: str, count: int | None) -> None:
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise EnvError(
                f"server_goals is how many goals the server has, a whole number of at least 1, found {count!r:.60}."
            )
        self.address, self.count = address, count

    def __len__(self) -> int:
        return TEST_GOALS + DEV_GOALS if self.count is None else self.count

    def counted(self) -> int:
        """How many there are; the server is asked where nobody has said."""
        if self.count is None:
            self.count = count_goals(self.address)
        return self.count

    def check(self) -> None:
        """Look whether the last goal is there, where somebody has said how many there are.

        Raises:
            EnvError: it is not; the message says how many there are.
        """
        from skill_ttrl.envs.webshop.live.client import LiveClient

        if self.count is None:
            return
        with closing(LiveClient(self.address, TIMEOUT, 1, FIRST_PAUSE)) as client:
            there = _has_goal(client, self.count - 1)
        if not there:
            raise EnvError(
                f"{self.address} has {count_goals(self.address):,} goals, not server_goals={self.count}. Leave server_goals out, "
                "and they are counted."
            )

    def __getitem__(self, number: int) -> Goal:
        return Goal(f"server-{number}", "", "", "", "", "", "", (), (), NO_CEILING)

    def find(self, goal_id: str) -> int:
        """See `GoalList.find`."""
        match = _ID.fullmatch(goal_id)
        if match is None:
            raise EnvError(f"Goals of a running server are named server-0, server-1, …, found {goal_id[:60]!r}.")
        number = int(match[1])
        if number >= len(self) and number >= self.counted():
            raise EnvError(f"{self.address} has no goal {number}: they are numbered from 0 to {len(self) - 1:,}.")
        return number

    def split(self, name: str, by: str = "goal") -> NDArray[np.int64]:
        """See `GoalList.split`."""
        check_split(name, by)
        if by == "product" or name == TRAIN_BOTH:
            raise EnvError(
                "A running server does not tell which product a goal is of, so its goals are split by goal alone."
            )
        if name == "train":
            self.counted()
        first = TEST_GOALS + DEV_GOALS
        ends = {"test": (0, TEST_GOALS), "dev": (TEST_GOALS, first), "train": (first, len(self))}[name]
        found = np.arange(ends[0], min(ends[1], len(self)))
        if not len(found):
            raise SplitError(f"The {len(self):,} goals of {self.address} leave none for the split {name!r}.")
        return found

    def draw(self, chance: float, split: str, by: str = "goal") -> int:
        """See `GoalList.draw`; all are equally likely, since a running server does not tell weights."""
        numbers = self.split(split, by)
        return int(numbers[int(chance * len(numbers))])


@lru_cache(maxsize=16)
def count_goals(address: str) -> int:
    """How many goals a running server has, by some 30 requests for single ones; once for each server and process.

    Raises:
        EnvError: it does not answer, has no goal, or has more than can be counted so.
    """
    from skill_ttrl.envs.webshop.live.client import LiveClient

    with closing(LiveClient(address, TIMEOUT, 1, FIRST_PAUSE)) as client:
        has = partial(_has_goal, client)
        if not has(0):
            raise EnvError(f"{address} has no goal 0: is it an official WebShop server?")
        there, missing = 0, TEST_GOALS + DEV_GOALS
        while has(missing):
            there, missing = missing, 2 * missing
            if missing > MOST_GOALS:
                most = f"more than {MOST_GOALS:,} goals are not counted"
                raise EnvError(f"{address} has a goal {there:,}: {most}. Say how many: server_goals.")
        while missing - there > 1:
            middle = (there + missing) // 2
            there, missing = (middle, missing) if has(middle) else (there, middle)
    return missing


def _has_goal(client: LiveClient, number: int) -> bool:
    return client.has(f"/fixed_{uuid.uuid4().hex}_{number}", f"goal {number}")


class LiveVisit:
    """Visit to a running server. Requests a page at most `attempts` times, and a purchase again only if it cannot have reached the server.

    It can be pickled between two actions; the pickle holds its session, its place and its page.

    Args:
        address: of the server.
        mode: one of `MODES`.
        query_codes: let searches with upstream's query codes through, which the official server honours.
        timeout: seconds within which a page must arrive.
        pause: seconds before the second request for a page, twice as long before each later one.
    """

    def __init__(
        self,
        address: str,
        mode: str = "text",
        *,
        query_codes: bool = False,
        timeout: float = TIMEOUT,
        attempts: int = ATTEMPTS,
        pause: float = FIRST_PAUSE,
    ) -> None:
        from skill_ttrl.envs.webshop.live.client import Got, LiveClient

        self.mode, self.query_codes = mode, query_codes
        self.client = LiveClient(address, timeout, attempts, pause)
        self._session, self._number = "", 0
        self._state = State()
        self._got = Got("", "")
        self._page: LivePage | None = None

    def start(self, goal: int) -> tuple[str, View]:
        """Begin a session with a goal, given by its number; the instruction, and what is seen.

        Raises:
            EnvError: no page came, or another than the search page.
        """
        self._page = None
        self._session, self._number, self._state = f"fixed_{uuid.uuid4().hex}_{goal}", goal, State()
        self._page = self._read(self._fetch("GET", f"/{self._session}", f"goal {goal}"), "search")
        return self._page.instruction, self._view(self._page)

    def act(self, action: str) -> View:
        """Execute an action and return the new view. Any text is an action; one without a meaning here is not sent.

        Raises:
            EnvError: `start` was not called before, no page came, or another page than requested. The visit then stays where it was,
                so that the action can be repeated.
        """
        if self._page is None:
            raise EnvError("step was called before reset.")
        page = self._page
        state = follow(self._state, page.texts, action)
        parsed = parse_action(action)
        if state is self._state or parsed is None:
            return self._view(page)
        name, argument = parsed
        if name == "search":
            got = self._fetch("POST", f"/{self._session}", _NAMES["results"], {"search_query": self._sent(argument)})
        else:
            target = page.target(argument)
            if target is None:
                raise EnvError(f"{self.client.url} has a page on which {argument[:60]!r} leads nowhere.")
            if state.place == "sub" and ("button", argument) not in page.targets:
                chosen = clickables(page.texts)[argument]
                state = replace(
                    self._state, place="item", options={**self._state.options, chosen.option.lower(): argument}
                )
            got = self._fetch(target.method, target.to, _NAMES[state.place], again=argument != BUY.lower())
        self._page, self._state = self._read(got, state.place, state.asin), state
        return self._view(self._page)

    def close(self) -> None:
        """Let go of the connections; the next action opens new ones."""
        self.client.close()

    def _fetch(self, method: str, to: str, what: str, form: dict[str, str] | None = None, *, again: bool = True) -> Got:
        if not again:
            self.client.close()  # a connection that the server has closed meanwhile looks like an answer that broke off
        return self.client.ask(method, to, f"{what} (session {self._session})", form, again=again)

    def _sent(self, argument: str) -> str:
        words = argument.replace("/", " ")
        # With a space before it a query code is a word like others.
        return f" {words}" if words.split(" ")[0] in QUERY_CODES and not self.query_codes else words

    def _read(self, got: Got, wanted: Place, asin: str = "") -> LivePage:
        from skill_ttrl.envs.webshop.live.pages import NotThePage, read_page

        try:
            page = read_page(got.html)
        except NotThePage as error:
            raise self._odd(got, wanted, str(error)) from None
        if page.place != wanted:
            raise self._odd(got, wanted, f"it is {_NAMES[page.place]}")
        if page.bought and page.bought != asin:
            raise self._odd(got, wanted, f"it is of a purchase of {page.bought[:20]!r}, and {asin!r} was bought")
        before = "" if self._page is None else self._page.instruction
        changed = "goal" if page.wanted and page.wanted.split() != before.split() else ""
        if self._page is not None and page.instruction != before and wanted != "done":
            changed = changed or "instruction"
        if changed:
            what = f"its {changed} is another one than before: was the server started again meanwhile?"
            raise self._odd(got, wanted, what)
        self._got = got
        return page

    def _odd(self, got: Got, wanted: Place, found: str) -> EnvError:
        return EnvError(
            f"{self.client.url} was asked for {_NAMES[wanted]} and gave something else at {got.url[:200]}: {found}. data "
            "names an official WebShop server or one of `skillttrl envs serve webshop --pages`, and nothing else."
        )

    def _view(self, page: LivePage) -> View:
        parts = {"total": page.score, **page.parts} if page.parts else {}
        shown = tuple(clickables(page.texts))
        at = digest(self._state, self.mode)
        return View(self._observation(page), shown, page.place == "search", at, page.score, parts)

    def _observation(self, page: LivePage) -> str:
        if self.mode == "html":
            return self._got.html
        url = page_url(str(self._number), self._state)
        if self.mode == "url":
            return url
        texts = page.texts
        if page.score is not None:
            texts = done_page(self._state.asin, self._state.options, page.score)
        return as_text(texts) if self.mode == "text" else as_rich_text(texts, url, self._state.seen)
