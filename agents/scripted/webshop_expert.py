"""An expert that shops in WebShop by the instruction and the pages alone, as an agent sees them.

It searches for the words of the instruction and opens the offers that are likeliest the product that was described, by their place,
title and price. One that has just the options that are wanted and whose title or features say all attributes is bought at once;
otherwise, in the last steps, the best that was seen.

How an instruction and a page are read stands in `webshop_reading`, how offers are weighed and what is known of the site's rules in
`webshop_weighing`; here is what it does with its steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from skill_ttrl.agents.scripted import webshop_weighing as weighing
from skill_ttrl.agents.scripted.webshop_reading import (
    BUTTONS,
    BUY,
    FEATURES,
    NEXT,
    PREVIOUS,
    SEARCH_SLOT,
    Wish,
    click,
    read_clicks,
    read_offers,
    read_options,
    read_task,
    read_text,
    read_wish,
    search,
    words,
)
from skill_ttrl.agents.scripted.webshop_weighing import Candidate
from skill_ttrl.agents.webshop_words import read_instruction

STEPS = 15
"""Steps of an episode, the purchase included."""
PAGES = 3
"""Pages of results that it looks at."""
STEP = 1.0
"""How much likelier an offer must be, as the logarithm of its odds, to be opened first if that costs a step more."""


def query(wish: Wish) -> str:
    """The search for a wish: attributes, the kind of thing, and its options, which tell products best apart.

    A word that stands there twice counts twice in the site's search. Of the ways to repeat the three parts that were tried on goals
    of the split `train`, this one led to the most purchases with reward 1.
    """
    options = " ".join(f"{name} {value}" for name, value in wish.options)
    return search(" ".join((*wish.attributes, *[wish.kind] * 2, *[options] * 4)))


class WebShopExpert:
    """Shops by the observation (`text` or `text_rich`), `info["task"]` and `info["admissible_commands"]`, the same with every seed.

    Args:
        steps: of an episode; it buys in the last of them at the latest.
    """

    reads_features = True
    """It looks for wanted attributes that no title names on the page of features."""

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `ScriptedAgent.start`.

        Raises:
            EnvError: there is no `info["task"]`.
        """
        self._task = read_task(info)
        self._wish = read_wish(self._task)
        self._left = self.steps
        self._seen: dict[str, Candidate] = {}
        self._page = self._last = 0
        self._at: Candidate | None = None
        self._decided = False
        self._plan: list[str] = []
        self._searched: str | None = None
        self._results = False
        self._done: str | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """See `ScriptedAgent.act`."""
        listed = info.get("admissible_commands", ())
        clicks = read_clicks(listed)
        self._possible = {*map(click, clicks), *listed}
        if self._done is not None:
            self._follow(self._done)
        self._results = NEXT in clicks
        if self._plan:
            action = self._plan.pop(0)
        elif BUY in clicks and self._at is not None:
            action = self._judge(self._at, read_options(observation, clicks, self._at.offer.title))
        elif NEXT in clicks:
            action = self._browse(observation, clicks)
        elif PREVIOUS in clicks and self._at is not None:
            if self._done == click(FEATURES):
                self._at.said |= set(words(read_text(observation)))
                self._at.read = True
            action = click(PREVIOUS)
        else:
            action = self._query(self._wish)
        self._left -= 1
        self._done = action
        return action

    def overruled(self, action: str) -> None:
        """See `ScriptedAgent`: something else was clicked or searched for; what it had set out to do is thought over.

        What is not possible on the page changes nothing.
        """
        searched = action.startswith("search[") and SEARCH_SLOT in self._possible
        self._done = action if searched or action in self._possible else None
        self._plan.clear()
        self._decided = False

    def _query(self, wish: Wish) -> str:
        """The search that it begins with."""
        return query(wish)

    def _missing(self, candidate: Candidate) -> int:
        return weighing.missing(self._wish, candidate) if self.reads_features else 0

    def _follow(self, action: str) -> None:
        """Take note of where an action has led."""
        if action.startswith("search["):
            if action != self._searched:  # what was found before stands on no page of these results
                self._seen.clear()
                self._last = 0
            self._searched, self._page = action, 1
        elif self._results and action in (click(NEXT), click(PREVIOUS)):
            self._page += 1 if action == click(NEXT) else -1
        elif self._results:
            self._at = self._seen.get(action[6:-1])

    def _browse(self, observation: str, clicks: Sequence[str]) -> str:
        """On a page of results: opens an offer, or goes to another page."""
        if self._page > self._last:
            offers = read_offers(observation, clicks)
            for place, offer in enumerate(offers):
                self._seen.setdefault(offer.asin, weighing.first_look(self._wish, offer, self._page, place))
            self._last = self._page if offers else PAGES  # after an empty page there is none to look for
        if not self._seen:
            return search(self._wish.kind)
        best = self._best()
        # To look at something, all but a step of the way is to be gone there and back, and then the best must still be bought.
        looks = [
            (each.odds - STEP * abs(each.page - self._page), each)
            for each in self._seen.values()
            if not each.opened and each.priced and self._left >= 2 + 2 * abs(each.page - self._page) + self._cost(best)
        ]
        likeliest, look = max(looks, key=lambda look: look[0], default=(-math.inf, None))
        ahead = self._last + 1 - self._page
        reachable = self._last < PAGES and self._left >= 2 + 2 * ahead + self._cost(best)
        if reachable and weighing.promise(self._seen.values(), self._last) - STEP * ahead > likeliest:
            return click(NEXT)
        wanted = best if look is None else look
        if wanted.page != self._page:
            return click(NEXT if wanted.page > self._page else PREVIOUS)
        self._decided = look is None
        return click(wanted.offer.asin)

    def _best(self) -> Candidate:
        return max(self._seen.values(), key=lambda each: weighing.worth(self._wish, each, self._missing(each)))

    def _cost(self, candidate: Candidate) -> int:
        """Steps to buy a product from the page of results that is shown, or from which one came."""
        clicks = len(candidate.chosen) if candidate.opened else len(self._wish.options)
        return abs(candidate.page - self._page) + 1 + clicks + 1

    def _judge(self, at: Candidate, options: Mapping[str, Sequence[str]]) -> str:
        """On a product's page: buys it, reads on, or goes back."""
        at.chosen, at.part, at.fits = weighing.choose(self._wish, options)
        at.opened = True
        if not self._wish.made:  # what free text says of an option was taken for an attribute
            at.said |= {word for name, listed in options.items() if {*listed} & {*at.chosen} for word in words(name)}
            at.said |= {word for value in at.chosen for word in words(value)}
        best, promising, missed = self._best(), at.fits and at.priced, self._missing(at)
        back = 1 + self._cost(best)
        if not self._decided:
            if promising and missed and not at.read and self._left >= 2 + (len(at.chosen) + 1 if best is at else back):
                return click(FEATURES)
            if (missed or not promising) and self._left >= back + 2 * (best is at):
                return click(PREVIOUS)
        chosen = at.chosen[: max(0, self._left - 1)]
        self._plan = [*map(click, chosen), click(BUY)]
        return self._plan.pop(0)


class WebShopBrief(WebShopExpert):
    """Searches for the kind of thing and the wanted values, once each and in the instruction's own words, and does not read the pages of features.

    Its queries are a few words that the instruction names, where the expert's repeat its words by a weight that is not to be seen. It shops a
    little worse, and what it does is learnt far better.
    """

    reads_features = False

    def _query(self, wish: Wish) -> str:
        return search(read_instruction(self._task).query(" ".join((wish.kind, *(value for _, value in wish.options)))))


class WebShopRule:
    """Searches for the instruction as it is, opens the first product, and buys it without choosing options.

    On the official catalogue of 1.18 million products and its human test goals the paper reports a score of 45.6 and a success
    rate of 9.6 %.
    """

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `ScriptedAgent.start`.

        Raises:
            EnvError: there is no `info["task"]`.
        """
        self._search = search(read_task(info))

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """See `ScriptedAgent.act`; without results it searches again."""
        clicks = read_clicks(info.get("admissible_commands"))
        if BUY in clicks:
            return click(BUY)
        product = next((name for name in clicks if name not in BUTTONS), None)
        return self._search if product is None else click(product)


class WebShopCareful(WebShopRule):
    """A rule that reads the instruction and not the products: it searches for the instruction as it is, opens the first product,
    chooses every option that is wanted and listed, and buys.

    What it does can be seen in each of its steps, so that a small policy can learn it from few episodes.
    """

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `ScriptedAgent.start`.

        Raises:
            EnvError: there is no `info["task"]`.
        """
        super().start(observation, info, seed)
        self._wanted = [click(value) for _, value in read_wish(read_task(info)).options]
        self._chosen: set[str] = set()
        self._last: list[str] = []

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """See `ScriptedAgent.act`; without results it searches again, and from a page about the product it goes back."""
        clicks = read_clicks(info.get("admissible_commands"))
        listed = set(map(click, clicks))
        if click(BUY) in listed:
            left = [each for each in self._wanted if each in listed and each not in self._chosen]
            self._chosen.update(left[:1])
            self._last = left[:1]
            return left[0] if left else click(BUY)
        self._chosen.clear()  # a page that is left forgets what was chosen on it
        return click(PREVIOUS) if click(PREVIOUS) in listed else super().act(observation, info)

    def overruled(self, action: str) -> None:
        """See `ScriptedAgent`: something else was done, so that the option is still to be chosen."""
        self._chosen.difference_update(self._last)
        self._chosen.add(action)
