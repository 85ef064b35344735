"""A shopper for demonstrations: the expert, as far as a policy that reads `agent.observations: webshop` can see why it does what it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.agents.scripted.webshop_expert import WebShopExpert
from skill_ttrl.agents.scripted.webshop_reading import Wish, read_task, search
from skill_ttrl.agents.webshop_words import read_instruction


class WebShopBrief(WebShopExpert):
    """Searches for the kind of thing and the wanted values, once each and in the instruction's own words, and does not read the pages of features.

    Its queries are a few words that the instruction names, where the expert's repeat its words by a weight that is not to be seen. It shops a
    little worse, and what it does is learnt far better.
    """

    reads_features = False

    def start(self, observation: str, info: Mapping[str, Any], seed: int) -> None:
        """See `ScriptedAgent.start`.

        Raises:
            EnvError: there is no `info["task"]`.
        """
        super().start(observation, info, seed)
        self._instruction = read_instruction(read_task(info))

    def _query(self, wish: Wish) -> str:
        return search(self._instruction.query(" ".join((wish.kind, *(value for _, value in wish.options)))))
