"""Agents that shop by rule: that of the WebShop paper, which shows what shopping is worth without reading anything (Yao et al. 2022,
section 5.1), and one that chooses options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.agents.scripted.webshop_reading import (
    BUTTONS,
    BUY,
    PREVIOUS,
    click,
    read_clicks,
    read_task,
    read_wish,
    search,
)


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
