"""From what a model wrote to the action that is played, with a verdict.

Model output is text: it is compared, never evaluated. An action that the environment lists with a place for words of the agent's
own, `search[<your query>]`, is met by any words in that place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from skill_ttrl.types import Verdict

LONGEST = 400
"""Characters of an action that is played; a model that never closes its tag wrote no action of this length."""
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_OPENED = re.compile(r"<action>(.*)", re.DOTALL | re.IGNORECASE)
_THOUGHT = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL | re.IGNORECASE)
_PLACE = re.compile(r"<[^<>]+>")
_NUMBER = re.compile(r"\[?(\d{1,4})\]?")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
UPSTREAM_TAIL = {"SkillTTRL/ALFWorld-v0": 30, "SkillTTRL/WebShop-v0": 20}
"""Characters from the end that SkillRL plays where the tags are missing; 30 elsewhere."""


@dataclass(frozen=True, slots=True)
class Projection:
    """What is played, and how it was found."""

    action: str
    verdict: Verdict | None
    """None: all that was written is the action."""
    complaint: str = ""
    """Why it is not `valid`; empty where it is."""


Project = Callable[[str, Sequence[str]], Projection]
"""(what the model wrote, the actions that the environment lists) → what is played."""


def whole(written: str, admissible: Sequence[str] = ()) -> Projection:
    """All of it is the action."""
    return Projection(written, None)


def project(written: str, admissible: Sequence[str] = ()) -> Projection:
    """The first `<action>` outside of `<think>`, held against the list.

    `valid`: well-formed and possible. `repaired`: only the form was wrong (a tag is missing, another case, white space, quotes), and
    what is meant is possible. `invalid`: nothing was found, or it is not possible; it is played as it is, and the environment
    answers it. Where the environment lists nothing, every action that is found counts as possible.

    Args:
        written: the model's own words.
        admissible: the actions that are possible now; empty: not known.
    """
    thoughtless = _THOUGHT.sub(" ", written)
    closed = _ACTION.search(thoughtless) or _ACTION.search(written)
    if closed:
        found, fault = closed.group(1).strip(), ""
    elif opened := _OPENED.search(thoughtless):
        found, fault = opened.group(1).strip().split("\n", 1)[0].strip(), "</action> is missing"
    else:
        found, fault = thoughtless.strip().rsplit("\n", 1)[-1].strip(), "there is no <action>"
    found = found[:LONGEST]
    if not found:
        return Projection("", "invalid", "there is no action")
    if not admissible:
        return Projection(found, *(("repaired", fault) if fault else ("valid", "")))
    if _possible(found, admissible):
        return Projection(found, *(("repaired", fault) if fault else ("valid", "")))
    meant = _meant(found, admissible)
    if meant is not None:
        return Projection(meant, "repaired", fault or "it was not written as it is listed")
    return Projection(found, "invalid", fault or "it is not among the possible actions")


def project_numbered(written: str, admissible: Sequence[str] = ()) -> Projection:
    """As `project`, where the actions are listed with numbers: `[7]` or `7` is the seventh."""
    found = project(written, admissible)
    number = _NUMBER.fullmatch(found.action)
    if found.verdict == "valid" or number is None:
        return found
    place = int(number[1]) - 1
    if not 0 <= place < len(admissible):
        return Projection(found.action, "invalid", f"there is no action number {number[1]}")
    closed = _ACTION.search(written) is not None
    return Projection(admissible[place], *(("valid", "") if closed else ("repaired", found.complaint)))


def answer_for(action: str, admissible: Sequence[str], numbered: bool) -> str:
    """What a model writes to mean an action: its number where they are numbered and it is listed, else its text."""
    return f"[{list(admissible).index(action) + 1}]" if numbered and action in admissible else action


def project_as_skillrl(tail: int = 30) -> Project:
    """SkillRL's rules to the letter (verl-agent, `env_package/*/projection.py`): lower case; the text between the first
    `<action>` and the first `</action>`; where they are missing the last `tail` characters, invalid; also invalid where `<think>` or
    `</think>` is missing or a Chinese character was written. Whether the action is possible does not matter.
    """

    def projected(written: str, admissible: Sequence[str] = ()) -> Projection:
        lowered = written.lower()
        start, end = lowered.find("<action>"), lowered.find("</action>")
        if start < 0 or end < 0:
            return Projection(lowered[-tail:], "invalid", "there is no <action>…</action>")
        action = lowered[start + len("<action>") : end].strip()
        if "<think>" not in written or "</think>" not in written:
            return Projection(action, "invalid", "there is no <think>…</think>")
        if _CHINESE.search(written):
            return Projection(action, "invalid", "there is a Chinese character")
        return Projection(action, "valid")

    return projected


def projection(name: str, env_id: str = "", *, numbered: bool = False) -> Project:
    """The rule of `agent.projection`: `none`, `action` or `skillrl`; `numbered` as `agent.actions` says."""
    if name == "action" and numbered:
        return project_numbered
    if name == "skillrl":
        return project_as_skillrl(UPSTREAM_TAIL.get(env_id, 30))
    return project if name == "action" else whole


def _possible(action: str, admissible: Sequence[str]) -> bool:
    return action in admissible or any(slot.fullmatch(action) for slot in _slots(tuple(admissible)))


def _meant(action: str, admissible: Sequence[str]) -> str | None:
    """The listed action that differs in case, white space, quotes or a final full stop alone; None where there is none."""
    plain = _plain(action)
    for listed in admissible:
        if _plain(listed) == plain:
            return listed
    tidy = " ".join(action.split()).strip("'\"`. ")
    for slot in _slots(tuple(admissible), loose=True):
        if slot.fullmatch(tidy):
            head, bracket, rest = tidy.partition("[")
            return f"{head.strip().lower()}{bracket}{rest}"
    return None


def _plain(action: str) -> str:
    return " ".join(action.split()).strip("'\"`. ").casefold()


@lru_cache(maxsize=1024)
def _slots(admissible: tuple[str, ...], loose: bool = False) -> tuple[re.Pattern[str], ...]:
    """Patterns of the listed actions that have a place for words."""
    found = []
    for listed in admissible:
        pieces = _PLACE.split(listed)
        if len(pieces) > 1:
            pattern = r"[^\n]*\S[^\n]*".join(map(re.escape, pieces))
            found.append(re.compile(pattern, re.IGNORECASE if loose else 0))
    return tuple(found)
