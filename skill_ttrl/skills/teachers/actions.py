"""Actions of many episodes as forms such as `take X from ...`, with nothing known of the environment.

An action is a verb and what stands behind it, as words (`take mug 1 from shelf 2`) or in brackets (`click[buy now]`). Numbers
are left out. A word behind the verb that is nearly always the same there belongs to the form (`from`); any other is a gap. What
fills a gap and stands in the task becomes a placeholder, X for what the task names first, then Y and Z; the rest is `...`.
In brackets the whole argument is one gap: words of the task, or what many tasks have in common, or `...`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skill_ttrl.skills.types import Case

PLACEHOLDERS = ("X", "Y", "Z")
OF_THE_TASK = "words of the task"
"""An argument in brackets that the task names."""
GAP = "..."
FIXED = 0.9
"""A word that fills at least this share of a place belongs to the form."""
MIN_SEEN = 3
"""Tasks in which a form must have been seen for that to be known."""
COMMON = 0.25
"""An argument that at least this share of the episodes have, of at least `MIN_SEEN` tasks, is a name of the environment."""
SAID = 0.7
"""An argument of several words is taken from the task where at least this share of them stand in it."""
MOST_WORDS = 8
"""Longer actions are free text and have no form."""

_WORD = re.compile(r"[^\W_]+(?:['’.&-][^\W_]+)*")
_JOINED = re.compile(r"[^\W_]+(?:['’.&/-][^\W_]+)*")
_BRACKETS = re.compile(r"([^\[\]]{1,40})\[(.*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Form:
    """One action as it reads."""

    text: str
    """`take X from ...`; equal for actions that do the same in different tasks."""
    named: tuple[str, ...] = ()
    """Words that its placeholders stand for, in order."""
    others: tuple[str, ...] = ()
    """Words that fill its gaps."""
    fills: tuple[str, ...] = ()
    """Words of placeholders and gaps, in order."""
    wider: str = ""
    """The form of which this is a special case: `take X from ...` for `take X from Y`; empty where there is none."""


def _action_words(action: str) -> tuple[str, ...]:
    """The words of an action; `in/on` is one."""
    return tuple(word for word in _JOINED.findall(action.lower()) if not word.isdigit())


def words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without numbers that stand alone."""
    return tuple(word for word in _WORD.findall(text.lower()) if not word.isdigit())


class Forms:
    """Reads the actions of episodes by what all of them have in common.

    Args:
        cases: the episodes; actions of others can be read too.
    """

    def __init__(self, cases: Iterable[Case]) -> None:
        self._places: dict[tuple[str, int], list[Counter[str]]] = {}
        self._seen: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._arguments: Counter[tuple[str, str]] = Counter()
        self._argument_tasks: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._fillers: set[str] = set()
        self._episodes = 0
        for case in cases:
            self._episodes += 1
            self._count(case)
        self._fixed = {
            key: tuple(map(_fixed, places)) for key, places in self._places.items() if len(self._seen[key]) >= MIN_SEEN
        }
        for key, known in self._fixed.items():
            for place, fixed in zip(self._places[key][1:], known[1:], strict=True):
                self._fillers |= {word for word in place if word != fixed}

    def of(self, case: Case, action: str) -> Form | None:
        """The form of an action of this episode; None for free text."""
        inside = bracketed(action)
        if inside is not None:
            return self._in_brackets(case.task, *inside)
        found = _action_words(action)
        if not 1 <= len(found) <= MOST_WORDS:
            return None
        fixed = self._fixed.get((found[0], len(found)), found)  # too seldom seen: its words are its form
        names = self._names(case.task)
        text, wider = [found[0]], [found[0]]
        fills: list[str] = []
        for word, standing in zip(found[1:], fixed[1:], strict=True):
            if word != standing:
                fills.append(word)
            text.append(word if word == standing else names.get(word, GAP))
            wider.append(text[-1] if word == standing or (len(fills) == 1 < _gaps(found, fixed)) else GAP)
        return Form(
            " ".join(text),
            tuple(word for word in fills if word in names),
            tuple(word for word in fills if word not in names),
            tuple(fills),
            " ".join(wider) if wider != text else "",
        )

    def literal(self, case: Case, action: str) -> str | None:
        """The same with its own words in the gaps: `go to sinkbasin`. None where there is no gap."""
        found = self.of(case, action)
        if found is None or not found.others:
            return None
        parts = found.text.split(GAP)
        return "".join(part + word for part, word in zip(parts, [*found.others, ""], strict=True))

    def task(self, case: Case) -> str:
        """The task with placeholders: `put a clean X in Y`."""
        names = self._names(case.task)
        return _WORD.sub(lambda match: names.get(match[0].lower(), match[0]), case.task).strip(" .")

    def _names(self, task: str) -> dict[str, str]:
        order = dict.fromkeys(word for word in words(task) if word in self._fillers)
        return dict(zip(order, PLACEHOLDERS, strict=False))

    def _in_brackets(self, task: str, verb: str, argument: str) -> Form:
        if is_of_task(argument, task):
            return Form(f"{verb}[{OF_THE_TASK}]", (argument,))
        tasks = self._argument_tasks.get((verb, argument), ())
        if len(tasks) >= MIN_SEEN and self._arguments[verb, argument] >= COMMON * self._episodes:
            return Form(f"{verb}[{argument}]")
        return Form(f"{verb}[{GAP}]", (), (argument,))

    def _count(self, case: Case) -> None:
        """Each action once for an episode: who repeats himself says nothing more."""
        arguments: set[tuple[str, str]] = set()
        for action in dict.fromkeys(step.action for step in case.steps):
            inside = bracketed(action)
            if inside is not None:
                arguments.add(inside)
                continue
            found = _action_words(action)
            if 1 <= len(found) <= MOST_WORDS:
                key = found[0], len(found)
                self._seen[key].add(case.task_id)
                places = self._places.setdefault(key, [Counter() for _ in found])
                for place, word in zip(places, found, strict=True):
                    place[word] += 1
        self._arguments.update(arguments)
        for inside in arguments:
            self._argument_tasks[inside].add(case.task_id)


def names_task(form: str) -> bool:
    """True if a form names something of the task."""
    return OF_THE_TASK in form or bool(placeholders([form]))


def placeholders(forms: Sequence[str]) -> list[str]:
    """Placeholders that occur in some of the forms, in order."""
    return [name for name in PLACEHOLDERS if any(name in form.split() for form in forms)]


def bracketed(action: str) -> tuple[str, str] | None:
    """Verb and argument of `verb[argument]`, in lower case and on one line; None for an action in words."""
    match = _BRACKETS.fullmatch(action.strip())
    if match is None:
        return None
    return " ".join(match[1].lower().split()), " ".join(match[2].lower().split())


def is_of_task(argument: str, task: str) -> bool:
    """True if the task names an argument: its words one after another, or most of the words of a longer one."""
    said, stated = words(argument), words(task)
    if not said:
        return False
    if _within(said, stated):
        return True
    return len(said) >= MIN_SEEN and sum(word in stated for word in said) >= SAID * len(said)


def _within(part: Sequence[str], whole: Sequence[str]) -> bool:
    return any(tuple(whole[at : at + len(part)]) == tuple(part) for at in range(len(whole) - len(part) + 1))


def _gaps(found: Sequence[str], fixed: Sequence[str | None]) -> int:
    return sum(word != standing for word, standing in zip(found[1:], fixed[1:], strict=True))


def _fixed(place: Counter[str]) -> str | None:
    word, count = min(place.items(), key=lambda item: (-item[1], item[0]))
    return word if count >= FIXED * place.total() else None
