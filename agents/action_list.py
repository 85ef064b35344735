"""Which of the possible actions a prompt lists, and in which order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from skill_ttrl.agents.action_order import by_words, verb_of
from skill_ttrl.config import AgentConfig
from skill_ttrl.types import Skill

PLACE = re.compile(r"<[^<>]+>")
"""Stands in an action where words of the agent's own do: `search[<your query>]`."""
_SIGNS = re.compile(r"[\[\]<>\s]+")


@dataclass(frozen=True)
class ActionList:
    """How a prompt lists what is possible.

    Args:
        by_words: what the task and the skills name comes first (`agents.action_order`); False: as the environment lists it.
        unlisted: verbs whose actions are left out; written all the same, they count as invalid and are played.
        filled: an action with a place for words of the agent's own, `search[<your query>]`, is listed with the task's words in it:
            where actions are answered by number there are no other words.
    """

    by_words: bool = False
    unlisted: frozenset[str] = frozenset()
    filled: bool = False

    @classmethod
    def of(cls, config: AgentConfig | None) -> ActionList:
        """The listing that a config asks for (`agent.action_order`, `unlisted`, `actions`); None: as the environment lists them."""
        if config is None:
            return AS_LISTED
        return cls(config.action_order == "words", frozenset(config.hidden_verbs), config.actions == "numbered")

    def __call__(
        self, admissible: Sequence[str], task: str, skills: Sequence[Skill] = (), done: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The actions as they are listed, see `by_words`; where all would be left out, all of them."""
        listed = [action for action in admissible if verb_of(action) not in self.unlisted] or list(admissible)
        if self.filled:
            listed = [fill_slot(action, task) for action in listed]
        return by_words(listed, task, skills, done) if self.by_words else tuple(listed)


def fill_slot(action: str, task: str) -> str:
    """An action with the task's words in its place, if it has one and there is a task; else as it is."""
    words = _SIGNS.sub(" ", task).strip()
    return PLACE.sub(lambda _: words, action) if words else action


def has_slot(action: str) -> bool:
    """True if an action has a slot for the agent's own words."""
    return "<" in action and PLACE.search(action) is not None


AS_LISTED = ActionList()
"""As the environment lists them."""
