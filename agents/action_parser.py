"""Which of the possible actions a prompt lists and in which order, and from what a model wrote to the action that is played.

Model output is text: it is compared, never evaluated. An action that the environment lists with one place for words of the agent's
own, `search[<your query>]`, is met by any words in that place. The work is linear in what was written, whatever it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from skill_ttrl.config import AgentConfig
from skill_ttrl.types import ActionStatus, Skill, Tier, content

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
_DIGITS = re.compile(r"\d+")
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
    return tuple(word for word in found if word not in SMALL and not _DIGITS.fullmatch(word))


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


LONGEST = 400
"""Characters of an action that is played; a model that never closes its tag wrote no action of this length."""
_OPEN = re.compile(r"<action>", re.IGNORECASE)
_CLOSE = re.compile(r"</action>", re.IGNORECASE)
_OPS = re.compile(r"<skill_ops\b", re.IGNORECASE)
_OPS_END = re.compile(r"</skill_ops>", re.IGNORECASE)
_NUMBER = re.compile(r"\[?([0-9]{1,4})\]?")


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """Action to execute, and how it was parsed."""

    action: str
    action_status: ActionStatus | None
    """None: all that was written is the action."""
    parse_error: str = ""
    """Why it is not `valid`; empty where it is."""


Project = Callable[[str, Sequence[str]], ParsedAction]
"""(what the model wrote, the actions that the environment lists) → what is played."""


def whole(written: str, admissible: Sequence[str] = ()) -> ParsedAction:
    """All of it but its thoughts is the action."""
    return ParsedAction(content(written), None)


def project(written: str, admissible: Sequence[str] = ()) -> ParsedAction:
    """The first `<action>` outside of thoughts and `<skill_ops>`, held against the list.

    `valid`: well-formed and possible. `repaired`: only the form was wrong (a tag is missing, another case, white space, quotes), and
    what is meant is possible. `invalid`: nothing was found, or it is not possible; it is played as it is,
    and the environment answers it. Where the environment lists nothing, every action that is found counts as possible.

    Args:
        written: the model's own words.
        admissible: the actions that are possible now; empty: not known.
    """
    candidates = _candidates(written)
    if not candidates:
        return ParsedAction("", "invalid", "there is no action")
    for found, fault in candidates:
        if not admissible or possible(found, admissible):
            return ParsedAction(found, *(("repaired", fault) if fault else ("valid", "")))
        meant = _meant(found, admissible)
        if meant is not None:
            return ParsedAction(meant, "repaired", fault or "it is not written as listed")
    found, fault = candidates[0]
    return ParsedAction(found, "invalid", fault or "it is not among the possible actions")


def _candidates(written: str) -> list[tuple[str, str]]:
    """(what may be the action, what is wrong with its form), likeliest first. Skills that were written are none.

    Thoughts hold none: what is considered there is not done.
    """
    spoken = _without_operations(content(written)).strip()
    closed, opened = _tagged(spoken)
    if closed:
        return [(closed, "")]
    last = "" if opened else spoken.rsplit("\n", 1)[-1]
    found = [(opened, "</action> is missing"), (last, "there is no <action>")]
    return [(text.strip()[:LONGEST].strip(), fault) for text, fault in found if text.strip()]


def _without_operations(text: str) -> str:
    """The text without the `<skill_ops>` blocks that are closed."""
    parts, end = [], 0
    while opened := _OPS.search(text, end):
        closing = _OPS_END.search(text, opened.end())
        if closing is None:
            break
        parts.append(text[end : opened.start()])
        end = closing.end()
    return " ".join([*parts, text[end:]])


def _tagged(text: str) -> tuple[str, str]:
    """Return (text of the first closed, non-empty `<action>`, empty); without one, (empty, first line after the first `<action>`)."""
    first = opened = _OPEN.search(text)
    while opened:
        closing = _CLOSE.search(text, opened.end())
        if closing is None:
            break
        if within := text[opened.end() : closing.start()].strip()[:LONGEST].strip():
            return within, ""
        opened = _OPEN.search(text, closing.end())
    return "", text[first.end() :].strip().split("\n", 1)[0] if first else ""


def parse_numbered_action(written: str, admissible: Sequence[str] = ()) -> ParsedAction:
    """As `project`, where the actions are listed with numbers: `[7]` or `7` is the seventh."""
    found = project(written, admissible)
    if found.action_status != "invalid":
        return found
    for text, fault in _candidates(written):
        number = _NUMBER.fullmatch(text)
        if number is None:
            continue
        place = int(number[1]) - 1
        if not 0 <= place < len(admissible) or has_slot(admissible[place]):
            return ParsedAction(text, "invalid", f"there is no action number {number[1]}")
        return ParsedAction(admissible[place], *(("repaired", fault) if fault else ("valid", "")))
    return found


def answer_for(action: str, admissible: Sequence[str], numbered: bool) -> str:
    """Return the text by which a model selects an action: its number, as `[3]`, or the action itself.

    The number is used if actions are numbered, and this one is listed and has no slot.
    """
    by_number = numbered and action in admissible and not has_slot(action)
    return f"[{list(admissible).index(action) + 1}]" if by_number else action


def projection(name: str, *, numbered: bool = False) -> Project:
    """The rule of `agent.action_parser`: `none` or `action`; `numbered` as `agent.actions` says."""
    if name == "action" and numbered:
        return parse_numbered_action
    return project if name == "action" else whole


def possible(action: str, admissible: Sequence[str]) -> bool:
    """True if an action is listed as it is, or is a listed one with words in its slot."""
    return action in admissible or any(_fills(listed, action) for listed in admissible if "<" in listed)


def _meant(action: str, admissible: Sequence[str]) -> str | None:
    """The listed action that differs in case, white space, quotes or a final full stop alone; None where there is none."""
    tidy = " ".join(action.split()).strip("'\"`. ")
    plain = tidy.casefold()
    for listed in admissible:
        if " ".join(listed.split()).strip("'\"`. ").casefold() == plain:
            return listed
    for listed in admissible:
        if "<" in listed and (filled := _fills(listed, tidy, loose=True)):
            return filled
    return None


def _fills(listed: str, action: str, *, loose: bool = False) -> str | None:
    """The action as it is listed, with words in its one place; None where it is another, or has no such place.

    `loose`: what stands around the words may be in other case.
    """
    pieces = PLACE.split(listed)
    if len(pieces) != 2:
        return None
    before, after = pieces
    words = action[len(before) : len(action) - len(after)]
    around = action[: len(before)], action[len(action) - len(after) :]
    same = [one.lower() == other.lower() if loose else one == other for one, other in zip(around, pieces, strict=True)]
    if not all(same) or len(before) + len(after) >= len(action) or "\n" in words or not words.strip():
        return None
    return before + words + after
