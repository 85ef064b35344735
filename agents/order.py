"""The order in which a prompt lists the possible actions: what the task and the skills name first, what was done already last.

Nothing of the environment is known: an action is a verb and what it is done to (`take mug 1 from shelf 2`, `click[red]`), and that
is looked for in the words of the task and of the skills. Where a list is too long for its prompt, its end is what is cut.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

from skill_ttrl.types import Skill, Tier

Order = Callable[[Sequence[str], str, Sequence[Skill], Sequence[str]], tuple[str, ...]]
"""(possible actions, task, skills, actions done) → the same actions in another order."""

_WORD = re.compile(r"[a-z0-9]+(?:[.'-][a-z0-9]+)*")
_NUMBER = re.compile(r"\d+")
PREPOSITIONS = frozenset({"from", "to", "with", "in", "on", "into", "onto", "at", "under"})
"""End what an action is done to."""
SMALL = PREPOSITIONS | {"a", "an", "the", "some", "and", "or", "of", "it", "them", "then", "x", "y", "z"}
"""Words that name nothing."""
SKILLS_FIRST: tuple[Tier, ...] = ("task", "general", "mistake")
"""Whose words count first: a skill of the task's type says more of what to do than a general one."""


def as_listed(
    actions: Sequence[str], task: str, skills: Sequence[Skill] = (), done: Sequence[str] = ()
) -> tuple[str, ...]:
    """As the environment lists them."""
    return tuple(actions)


def by_words(
    actions: Sequence[str], task: str, skills: Sequence[Skill] = (), done: Sequence[str] = ()
) -> tuple[str, ...]:
    """The same actions: those whose thing the task names, what few of the listed actions do before what many do; those whose
    thing the skills name, in the order in which they do; the others; those that were done before. Within each in the order given.

    Args:
        actions: what is possible.
        task: what is to be done, in words.
        skills: those of the prompt.
        done: actions of the episode so far.
    """
    verbs = Counter(_verb(action) for action in actions)
    named = _words(task)
    ordered = sorted(skills, key=lambda skill: SKILLS_FIRST.index(skill.tier))
    advised = _places(" ".join(skill.text for skill in ordered))
    over = set(done)

    def rank(action: str) -> tuple[int, int]:
        thing = _thing(action)
        if action in over:
            return 3, 0
        if thing and all(word in named for word in thing):
            return 0, verbs[_verb(action)]
        if thing and all(word in advised for word in thing):
            return 1, min(advised[word] for word in thing)
        return 2, 0

    return tuple(sorted(actions, key=rank))


@lru_cache(maxsize=4096)
def _verb(action: str) -> str:
    return re.split(r"[\s\[]", action, maxsplit=1)[0].lower()


@lru_cache(maxsize=4096)
def _thing(action: str) -> tuple[str, ...]:
    """What an action is done to: the words behind its verb up to a preposition, or what stands in its brackets; no numbers."""
    head, bracket, inside = action.lower().partition("[")
    found = _WORD.findall(inside) if bracket else _WORD.findall(head)[1:]
    thing: list[str] = []
    for word in found:
        if word in PREPOSITIONS and thing and not bracket:
            break
        if word not in SMALL and not _NUMBER.fullmatch(word):
            thing.append(word)
    return tuple(thing)


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
