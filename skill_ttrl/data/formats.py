"""Questions whose answers are easy to find and must be written in a convention that no question states.

Each question comes with a sentence that answers it: "The Kavo bridge opened on March 5, 2024." Only `2024-03-05` is
accepted. A model that does not know the convention answers in the sentence's own words and is wrong; with a skill document that states
the rule, a model that follows rules is right. So the family measures documents: which rules they state, and whether these are followed.

Subjects are in one split only, and every number is drawn from a fixed seed: the same questions for every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from skill_ttrl.data.families import Demonstration
from skill_ttrl.errors import DataError, did_you_mean
from skill_ttrl.types import Task, derive_seed

QA_ENV_ID = "SkillTTRL/QA-v0"
Numbers = np.random.Generator
NAME = "formats"
MONTHS = "January February March April May June July August September October November December".split()
TOWNS = "Arlen Bredow Corvin Dorsk Elmere Fenwick Garth Holm Ister Jarrow Kesk Lund Morva Norden Orin Palt".split()
SYLLABLES = tuple(consonant + vowel for consonant in "BDFGKLMNPRSTVZ" for vowel in "aeiou")


def shown_question(question: str, context: str = "") -> str:
    """The text that a task shows: the question alone, or behind its context."""
    return f"Context:\n{context}\n\nQuestion: {question}" if context else question


def qa_task(name: str, question: str, answers: Sequence[str] | None, **more: Any) -> Task:
    """A task of `SkillTTRL/QA-v0`; `answers` None: nothing is graded. `more` are other fields of the task."""
    options: dict[str, Any] = {"question": question}
    if answers is not None:
        options["answers"] = list(answers)
    return Task(name, more.pop("env_id", QA_ENV_ID), options, **more)


@dataclass(frozen=True)
class Drawn:
    """The changing part of a question."""

    question: str
    context: str
    plain: str
    """The answer in the context's own words."""
    formatted: str
    """The answer by the convention: the only one that is accepted."""


@dataclass(frozen=True)
class Convention:
    """One rule of writing."""

    name: str
    """Also the task's type."""
    rule: str
    """The sentence that a document states it with."""
    marker: str
    """Part of the rule without which no wording of it can be followed."""
    draw: Callable[[str, Numbers], Drawn]
    """(name of the subject, generator) -> a question."""

    def stated(self, document: str) -> bool:
        """True if a document states the convention, in the words of `rule` or others."""
        return self.marker.lower() in document.lower()


@dataclass(frozen=True)
class Item:
    """One question of the family."""

    id: str
    convention: Convention
    drawn: Drawn

    @property
    def question(self) -> str:
        """As it is shown: the context with the question behind it."""
        return shown_question(self.drawn.question, self.drawn.context)

    def answer(self, document: str) -> str:
        """The answer of a reader who follows the rules of a document and no others."""
        return self.drawn.formatted if self.convention.stated(document) else self.drawn.plain


def _date(name: str, rng: Numbers) -> Drawn:
    year, month, day = int(rng.integers(1950, 2025)), int(rng.integers(12)), int(rng.integers(1, 29))
    plain = f"{MONTHS[month]} {day}, {year}"
    formatted = f"{year}-{month + 1:02d}-{day:02d}"
    return Drawn(f"On which day did the {name} bridge open?", f"The {name} bridge opened on {plain}.", plain, formatted)


def _time(name: str, rng: Numbers) -> Drawn:
    hour, minute = int(rng.integers(1, 12)), int(rng.integers(60))
    plain = f"{hour}:{minute:02d} p.m."
    return Drawn(
        f"At what time does the {name} express leave?",
        f"The {name} express leaves at {plain}",
        plain,
        f"{hour + 12}:{minute:02d}",
    )


def _duration(name: str, rng: Numbers) -> Drawn:
    hours, minutes = int(rng.integers(2, 10)), int(rng.integers(2, 60))
    plain = f"{hours} hours and {minutes} minutes"
    return Drawn(
        f"How long does the ferry to {name} take?",
        f"The ferry to {name} takes {plain}.",
        plain,
        f"{60 * hours + minutes} min",
    )


def _amount(name: str, rng: Numbers) -> Drawn:
    euros, cents = int(rng.integers(2, 100)), int(rng.integers(2, 100))
    plain = f"{euros} euros and {cents} cents"
    return Drawn(f"What does a {name} lamp cost?", f"A {name} lamp costs {plain}.", plain, f"EUR {euros}.{cents:02d}")


def _code(name: str, rng: Numbers) -> Drawn:
    letters = "".join("abcdefghjkmnpqrstuvwxyz"[int(place)] for place in rng.integers(23, size=2))
    number = int(rng.integers(10, 1000))
    plain = f"{letters} {number}"
    return Drawn(
        f"Which code does the {name} valve have?",
        f"The {name} valve has the code {plain}.",
        plain,
        f"{letters.upper()}-{number:04d}",
    )


def _list(name: str, rng: Numbers) -> Drawn:
    places = [TOWNS[int(place)] for place in rng.choice(len(TOWNS), 3, replace=False)]
    plain = f"{places[0]}, {places[1]} and {places[2]}"
    return Drawn(
        f"Which towns does the {name} line serve?",
        f"The {name} line serves {plain}.",
        plain,
        "; ".join(sorted(places)),
    )


def _yes_no(name: str, rng: Numbers) -> Drawn:
    is_open = bool(rng.integers(2))
    state = "open" if is_open else "closed"
    return Drawn(
        f"Is the {name} gate open?",
        f"The {name} gate is {state}.",
        "Yes" if is_open else "No",
        "CONFIRMED" if is_open else "DENIED",
    )


def _missing(name: str, rng: Numbers) -> Drawn:
    context = f"The {name} tower was built by {TOWNS[int(rng.integers(len(TOWNS)))]} masons."
    return Drawn(f"How tall is the {name} tower?", context, "The context does not say.", "NOT-RECORDED")


CONVENTIONS = (
    Convention("date", "Write dates as YYYY-MM-DD.", "YYYY-MM-DD", _date),
    Convention("time", "Write times of day as HH:MM on the 24-hour clock.", "24-hour", _time),
    Convention("duration", "Write durations in whole minutes, as 125 min.", "whole minutes", _duration),
    Convention("amount", "Write amounts of money as EUR with two decimals, as EUR 12.05.", "two decimals", _amount),
    Convention(
        "code",
        "Write codes in upper case with a hyphen and four digits, padded with zeros, as KT-0047.",
        "four digits",
        _code,
    ),
    Convention("list", "Write lists in alphabetical order, separated by semicolons.", "semicolon", _list),
    Convention("yes_no", "Answer yes-or-no questions with CONFIRMED or DENIED.", "CONFIRMED", _yes_no),
    Convention("missing", "Where the context does not give the answer, write NOT-RECORDED.", "NOT-RECORDED", _missing),
)
SIZES = {"train": 20, "val": 8, "test": 16, "demos": 40}
"""Questions of each convention in a split."""


@dataclass(frozen=True)
class Formats:
    """The family. Its splits are `train`, `val` (which selects among documents), `test` and `demos`."""

    name: str = NAME
    description: str = "Questions whose answers must follow eight conventions of writing that stand in no question."

    @cached_property
    def subjects(self) -> list[str]:
        """Names that questions are about, in a fixed order; each is in one question."""
        every = [first + second.lower() for first in SYLLABLES for second in SYLLABLES]
        return sorted(every, key=lambda name: derive_seed(0, NAME, name))

    def items(self, split: str) -> list[Item]:
        """The questions of a split, the conventions in turn.

        Raises:
            DataError: there is no such split.
        """
        if split not in SIZES:
            raise DataError(f"Family {NAME!r} has no split {split!r}.{did_you_mean(split, SIZES)}")
        before = list(SIZES).index(split)
        start = len(CONVENTIONS) * sum(list(SIZES.values())[:before])
        found = []
        for number in range(len(CONVENTIONS) * SIZES[split]):
            convention, subject = CONVENTIONS[number % len(CONVENTIONS)], self.subjects[start + number]
            rng = np.random.default_rng(derive_seed(0, NAME, convention.name, subject))
            item_id = f"{NAME}-{convention.name}-{subject.lower()}"
            found.append(Item(item_id, convention, convention.draw(subject, rng)))
        return found

    def problems(self, split: str, env_id: str) -> list[Task]:
        """The tasks of a split, for `SkillTTRL/QA-v0`.

        Raises:
            DataError: there is no such split, or another environment is to play them.
        """
        if env_id != QA_ENV_ID:
            raise DataError(f"synthetic:{NAME} is played in {QA_ENV_ID} (env.id: qa), not in {env_id}.")
        return [
            qa_task(item.id, item.question, [item.drawn.formatted], split=split, task_type=item.convention.name)
            for item in self.items(split)
        ]

    def demonstrations(
        self, seed: int = 0, noise: float = 0.0, split: str = "demos", limit: int | None = None
    ) -> list[Demonstration]:
        """Questions with answers by the conventions, in a fixed order; seed and noise have no meaning here."""
        return [Demonstration(item.question, item.drawn.formatted) for item in self.items(split)[:limit]]

    def document(self, names: Sequence[str] | None = None) -> str:
        """A document that states the conventions of these names, or all of them."""
        rules = [each.rule for each in CONVENTIONS if names is None or each.name in names]
        return "\n".join(
            ["# Output conventions", "", "Answer with the value alone.", "", *(f"- {rule}" for rule in rules), ""]
        )
