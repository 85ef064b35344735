"""Which of the possible actions a prompt lists, and in which order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from skill_ttrl.config import AgentConfig
from skill_ttrl.types import Skill, Tier

PLACE = re.compile(r"<[^<>]+>")
"""Stands in an action where words of the agent's own do: `search[<your query>]`."""
_SIGNS = re.compile(r"[\[\]<>\s]+")


@dataclass(frozen=True)
class ActionList:
    """How a prompt lists what is possible.

    Args:
        by_words: what the task and the skills name comes first (the function `by_words`); False: as the environment lists it.
        unlisted: verbs whose actions are left out; written all the same, they count as invalid and are played.
        filled: an action with a place for words of the agent's own, `search[<your query>]`, is listed with the task's words in it:
            where actions are answered by number there are no other words.
    """

    by_words: bool = False
    unlisted: frozenset[str] = frozenset()
    filled: bool = False

    @classmethod
    def of(cls, config: AgentConfig | None) -> ActionList:
        """The listing that a config asks for (`agent.action_order`, `hidden_verbs`, `actions`); None: as the environment lists them."""
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


_WORD = re.compile(r"[a-z0-9]+(?:[.'-][a-z0-9]+)*")
_NUMBER = re.compile(r"\d+")
SMALL = frozenset(
    {"a", "an", "the", "some", "and", "or", "of", "it", "them", "then", "x", "y", "z"}
    | {"from", "to", "with", "in", "on", "into", "onto", "at", "under"}
)
"""Words that name nothing."""
LAST = 10**6
"""Behind every word of the skills."""
ADVISING: tuple[Tier, ...] = ("task", "general")
"""Tiers whose words count, those of the task's type first. Mistakes are left out: they name what is to be avoided."""


def by_words(
    actions: Sequence[str], task: str, skills: Sequence[Skill] = (), done: Sequence[str] = ()
) -> tuple[str, ...]:
    """Sort actions by relevance to the task; within a rank they stay in the given order.

    The ranks, best first:

    1. The task names every object of the action; more objects come first: `move mug 1 to desk 1` before `go to desk 1`.
    2. The task names the first object. An action whose other objects the skills name comes first: `clean mug 1 with sinkbasin 1` before
       `move mug 1 to shelf 2`.
    3. The skills name every object; in the order of their words.
    4. All other actions.
    5. Actions already done since the last one that dealt with an object of the task; after such an action all may be useful again.

    `skills` are those of the prompt, `done` the actions of the episode so far.
    """
    named = _words(task)
    advised = _places(" ".join(skill.text for tier in ADVISING for skill in skills if skill.tier == tier))
    over = set(done[_last_dealt_with(tuple(done), named) :])

    def rank(action: str) -> tuple[int, int]:
        things = _things(action)
        if action in over:
            return 4, 0
        if things and all(word in named for word in things):
            return 0, -len(things)
        if things and things[0] in named:
            rest = [advised[word] for word in things if word in advised and word not in named]
            return 1, min(rest, default=LAST)
        if things and all(word in advised for word in things):
            return 2, min(advised[word] for word in things)
        return 3, 0

    return tuple(sorted(actions, key=rank))


def _last_dealt_with(done: Sequence[str], named: frozenset[str]) -> int:
    """Place behind the last action that did something to what the task names, other than by the verb that is done most, which is
    how one moves about.
    """
    verbs = Counter(map(verb_of, done))
    usual = max(verbs, key=lambda verb: verbs[verb], default="")
    for place in range(len(done), 0, -1):
        things = _things(done[place - 1])
        if things and things[0] in named and verb_of(done[place - 1]) != usual:
            return place
    return 0


@lru_cache(maxsize=4096)
def verb_of(action: str) -> str:
    """Return the verb of an action in lower case: its first word, or the text before its brackets."""
    return re.split(r"[\s\[]", action.strip(), maxsplit=1)[0].lower()


@lru_cache(maxsize=4096)
def _things(action: str) -> tuple[str, ...]:
    """Return the objects of an action: the words in its brackets or, without brackets, after its verb. Omits numbers and `SMALL` words."""
    head, bracket, inside = action.lower().partition("[")
    found = _WORD.findall(inside) if bracket else _WORD.findall(head)[1:]
    return tuple(word for word in found if word not in SMALL and not _NUMBER.fullmatch(word))


@lru_cache(maxsize=1024)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower())) - SMALL


@lru_cache(maxsize=1024)
def _places(text: str) -> dict[str, int]:
    """Where each word stands first in a text."""
    found: dict[str, int] = {}
    for place, word in enumerate(_WORD.findall(text.lower())):
        if word not in SMALL:
            found.setdefault(word, place)
    return found
