"""Counts what losers do and winners do not. Each function takes the episodes of one type (`findings.EpisodeStats`).

Where nobody won there is nothing to hold losers against: then a mistake is only what is wrong in itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from skill_ttrl.skills.teachers.actions import GAP, PLACEHOLDERS, names_task
from skill_ttrl.skills.teachers.findings import (
    MIN_EPISODES,
    MOST,
    EpisodeStats,
    Finding,
    ParsedEpisode,
    evidence_task_ids,
    invalid_steps,
    quoted,
    repeats,
    share,
)
from skill_ttrl.skills.types import Case

TWICE = 2.0
"""Losers do it at least so many times as often as winners."""
OFTEN = 0.1
"""Share of all steps of the losers."""
SELDOM = 0.1
"""Winners who did what is called a mistake, as a share."""
NEARLY_ALL = 0.8
HALF = 0.5
SOME = 0.25
MOST_USELESS, MOST_LACKING = 5, 2


def repetitions(stats: EpisodeStats) -> list[Finding]:
    """Doing again what showed nothing new."""
    lost, won = _rate(stats.lost, repeats), _rate(stats.won, repeats)
    if len(stats.lost) < MIN_EPISODES or lost < OFTEN or lost < TWICE * won:
        return []
    text = (
        f"In failed tries {_of_ten(lost)} steps repeated an action and saw again what it had shown before. When an action shows "
        "nothing new, do one that has not been tried yet."
    )
    holders = [each for each in stats.lost if repeats(each.case)]
    return [_mistake("repeats", "repeat an action that has shown nothing new", text, 1 + lost - won, holders)]


def not_listed(stats: EpisodeStats) -> list[Finding]:
    """Actions that are not possible."""
    lost, won = _rate(stats.lost, invalid_steps), _rate(stats.won, invalid_steps)
    if len(stats.lost) < MIN_EPISODES or lost < OFTEN / 2 or lost < TWICE * won:
        return []
    text = (
        f"In failed tries {_of_ten(lost)} actions were not among those that were possible. Take one of the listed actions, word "
        "for word."
    )
    holders = [each for each in stats.lost if invalid_steps(each.case)]
    return [_mistake("invalid", "write an action that is not listed", text, 1 + lost - won, holders)]


def ended_too_soon(stats: EpisodeStats) -> list[Finding]:
    """Ending with the step that ends the winners' episodes, without what they had done before it."""
    last = stats.closing
    if last is None:
        return []
    ended = [each for each in stats.lost if each.ends_with(last)]
    lacking = {form: [each for each in ended if form not in each.kinds] for form in _needed(stats) if form != last}
    wrong = {form: each for form, each in lacking.items() if len(each) >= max(MIN_EPISODES, SOME * len(stats.lost))}
    if not wrong:
        return []
    forms = sorted(wrong, key=lambda form: (-len(wrong[form]), form))[:MOST_LACKING]
    holders = [each for each in ended if any(each in wrong[form] for form in forms)]
    steps = " and ".join(map(quoted, forms))
    text = (
        f"Do {steps} first, as nearly all won tries did; {len(holders)} of {len(stats.lost)} failed ones ended without."
    )
    title = f"end with {quoted(last)} too early"
    return [_mistake(f"too soon {last}", title, text, 1.5 + len(holders) / len(stats.lost), holders)]


def never_begun(stats: EpisodeStats) -> list[Finding]:
    """The first step of the winners that most losers never came to, though they went on."""
    if len(stats.won) < MIN_EPISODES or len(stats.lost) < MIN_EPISODES:
        return []
    lost = stats.shares(stats.lost)
    needed = [form for form in _needed(stats) if lost[form] <= 1 - HALF and (GAP not in form or names_task(form))]
    if not needed or share(stats.lost, lambda each: stats.closing is not None and each.ends_with(stats.closing)) > HALF:
        return []
    first = min(needed, key=lambda form: (_usual_place(stats.won, form), form))
    never = [each for each in stats.lost if first not in each.kinds]
    if len(never) < MIN_EPISODES:
        return []
    text = f"Get to {quoted(first)} as soon as you can: nearly all won tries did it, and {len(never)} of {len(stats.lost)} failed ones never."
    return [_mistake(f"never {first}", f"put off {quoted(first)}", text, 0.8 + len(never) / len(stats.lost), never)]


def not_named(stats: EpisodeStats) -> list[Finding]:
    """Steps as winners do them, but with what the task does not name."""
    found = []
    lost, won = stats.shares(stats.lost), stats.shares(stats.won)
    for form in _losers_only(stats):
        instead = _with_names(form, won)
        holders = [each for each in stats.lost if form in each.kinds]
        if instead is not None and len(holders) >= MIN_EPISODES:
            title, text = (
                f"do {quoted(form)} with anything else",
                f"Only what the task names is needed: {quoted(instead)}.",
            )
            found.append(_mistake(f"not named {form}", title, text, 0.5 + lost[form] - won[form], holders))
    return found


def useless(stats: EpisodeStats) -> list[Finding]:
    """Forms that many losers have and hardly a winner."""
    won = stats.shares(stats.won)
    forms = [form for form in _losers_only(stats) if _with_names(form, won) is None][:MOST_USELESS]
    holders = [each for each in stats.lost if each.kinds.intersection(forms)]
    winners = sum(bool(each.kinds.intersection(forms)) for each in stats.won)
    if not forms or len(holders) < MIN_EPISODES:
        return []
    names = ", ".join(map(quoted, forms))
    done = "did it" if len(forms) == 1 else "did any of these"
    # A text says by itself what it is about: texts of the same words are taken for the same skill.
    text = f"Leave out {names}: {len(holders)} of {len(stats.lost)} failed tries and {winners} of {len(stats.won)} that won {done}."
    return [_mistake("useless", f"spend steps on {names}", text, 0.5 + len(holders) / len(stats.lost), holders)]


MISTAKES: Sequence[Callable[[EpisodeStats], list[Finding]]] = (
    repetitions,
    not_listed,
    ended_too_soon,
    never_begun,
    not_named,
    useless,
)


def _mistake(key: str, title: str, text: str, weight: float, holders: Sequence[ParsedEpisode]) -> Finding:
    return Finding(key, title, text, "", weight, evidence_task_ids(holders), mistake=True)


def _rate(episodes: Sequence[ParsedEpisode], count: Callable[[Case], int]) -> float:
    steps = sum(len(each.case.steps) for each in episodes)
    return sum(count(each.case) for each in episodes) / steps if steps else 0.0


def _losers_only(stats: EpisodeStats) -> list[str]:
    """Forms that half of the losers have and hardly a winner, the most frequent first."""
    if min(len(stats.won), len(stats.lost)) < MIN_EPISODES:
        return []
    won, lost = stats.shares(stats.won), stats.shares(stats.lost)
    wrong = [form for form in stats.common(stats.lost, HALF) if won[form] <= SELDOM]
    return sorted(wrong, key=lambda form: (-lost[form], form))


def _usual_place(episodes: Sequence[ParsedEpisode], form: str) -> float:
    """Average step at which a form comes first in the winners' episodes."""
    places = [
        next(place for place, ways in enumerate(each.ways) if form in ways) for each in episodes if form in each.kinds
    ]
    return sum(places) / len(places)


def _with_names(form: str, won: Mapping[str, float]) -> str | None:
    """The winners' form that names something of the task where this one does not: `take X from ...` for `take ... from ...`."""
    named = [
        other
        for other, part in won.items()
        if part >= MOST
        and form != other
        and form == " ".join(GAP if word in PLACEHOLDERS else word for word in other.split())
    ]
    return min(named, key=lambda other: (other.split().count(GAP), other), default=None)


def _needed(stats: EpisodeStats) -> list[str]:
    """Forms that nearly all winners have."""
    return stats.common(stats.won, NEARLY_ALL)


def _of_ten(rate: float) -> str:
    return f"{max(1, round(10 * rate))} of 10"
