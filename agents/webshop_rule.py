"""The rule agent of the WebShop paper: what shopping is worth without reading anything (Yao et al. 2022, section 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.agents.webshop_reading import BUTTONS, BUY, read_clicks, read_task, search


class WebShopRule:
    """Searches for the instruction as it is, opens the first product, and buys it without choosing options.

    On the official catalogue of 1.18 million products and its human test goals the paper reports a score of 45.6 and a success
    rate of 9.6 %.
    """

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `Player.start`.

        Raises:
            EnvError: there is no `info["task"]`.
        """
        self._search = search(read_task(info))

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """See `Player.act`; without results it searches again."""
        clicks = read_clicks(info.get("admissible_commands"))
        if BUY in clicks:
            return f"click[{BUY}]"
        product = next((name for name in clicks if name not in BUTTONS), None)
        return self._search if product is None else f"click[{product}]"
