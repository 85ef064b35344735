"""Episodes of one type of task with their actions read as forms, and what is found in them by counting."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from skill_ttrl.skills.teachers.actions import Form, Forms, bracketed, is_of_task, words
from skill_ttrl.skills.types import Case
from skill_ttrl.types import Step

MIN_EPISODES = 2
"""Episodes of a kind that it takes to say what they share."""
MOST = 0.6
"""Share of the episodes from which on they have something in common."""
ENDS = 0.8
"""Share of the winners that end with the same step, where that is what ends an episode."""
SAME = 0.1
"""Difference of two shares that says nothing."""
WORDED = 0.2
"""Share of the tasks of a type from which on a wording is named."""
MOST_EVIDENCE = 50
"""Most tasks that are named as evidence."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is true of the episodes of a type, as a skill."""

    key: str
    """Names the finding, in the same words whatever the type."""
    title: str
    text: str
    when: str
    weight: float
    """The higher, the better it tells winners from losers."""
    evidence: tuple[str, ...]
    mistake: bool = False
    task_type: str = ""

    def of_type(self, kind: str) -> Finding:
        """The same for tasks of this type only."""
        return replace(self, task_type=kind)


class ParsedEpisode:
    """One episode and the forms of its actions."""

    def __init__(self, case: Case, forms: Forms) -> None:
        self.case = case
        self.forms: list[Form | None] = [forms.of(case, step.action) for step in case.steps]
        self.texts = [form.text if form is not None else "" for form in self.forms]
        own = [forms.literal(case, step.action) for step in case.steps]
        self.wider = {form.text: form.wider for form in self.forms if form is not None and form.wider}
        self.ways = [
            tuple(filter(None, (literal, text, self.wider.get(text))))
            for literal, text in zip(own, self.texts, strict=True)
        ]
        """Readings of each step: in its own words, where it has gaps, as a form, and as a wider one."""
        self._forms = forms

    @cached_property
    def kinds(self) -> frozenset[str]:
        """All forms that occur, and those of which they are special cases."""
        return frozenset(filter(None, (*self.texts, *self.wider.values())))

    @cached_property
    def literals(self) -> frozenset[str]:
        """All steps with gaps, in their own words."""
        return frozenset(way for ways in self.ways for way in ways) - self.kinds

    def ends_with(self, form: str) -> bool:
        """True if the last step has this form."""
        return self.texts[-1] == form

    @cached_property
    def named_listed(self) -> tuple[str, ...]:
        """Of the actions that were listed at the last step, those that the task names word for word."""
        return tuple(action for action in self.case.steps[-1].admissible_actions if _names(action, self.case.task))

    @cached_property
    def named_forms(self) -> frozenset[str]:
        """Forms of `named_listed`."""
        found = (self._forms.of(self.case, action) for action in self.named_listed)
        return frozenset(form.text for form in found if form is not None)

    def left_nothing_named(self) -> bool:
        """True if every action of `named_listed` was done."""
        done = {step.action for step in self.case.steps}
        return all(action in done for action in self.named_listed)


@dataclass(frozen=True)
class EpisodeStats:
    """The episodes of one type."""

    task_type: str
    won: tuple[ParsedEpisode, ...]
    lost: tuple[ParsedEpisode, ...]
    forms: Forms

    @classmethod
    def of(cls, task_type: str, forms: Forms, cases: Iterable[Case]) -> EpisodeStats:
        """Parse the episodes."""
        parsed = [ParsedEpisode(case, forms) for case in cases]
        return cls(
            task_type,
            tuple(each for each in parsed if each.case.won),
            tuple(each for each in parsed if not each.case.won),
            forms,
        )

    @cached_property
    def closing(self) -> str | None:
        """The form with which nearly all winners end; None where they end in many ways."""
        ends = Counter(each.texts[-1] for each in self.won)
        if len(self.won) < MIN_EPISODES:
            return None
        form, count = min(ends.items(), key=lambda item: (-item[1], item[0]))
        return form if form and count >= ENDS * len(self.won) else None

    @cached_property
    def reads_like(self) -> str:
        """Wordings of the tasks of this type, where they are much the same (`reads_like`)."""
        return reads_like(self.forms, [each.case for each in (*self.won, *self.lost)]) if self.task_type else ""

    @staticmethod
    def shares(episodes: Sequence[ParsedEpisode]) -> dict[str, float]:
        """For each form the share of the episodes in which it occurs; 0 for others."""
        counts = Counter(form for each in episodes for form in each.kinds)
        return defaultdict(float, {form: count / len(episodes) for form, count in counts.items()})

    @staticmethod
    def common(episodes: Sequence[ParsedEpisode], least: float) -> list[str]:
        """Forms that at least this share of the episodes have, without those of which nearly as many have a special case."""
        counts = Counter(form for each in episodes for form in each.kinds)
        said = {
            wider
            for each in episodes
            for form, wider in each.wider.items()
            if counts[form] >= counts[wider] - SAME * len(episodes)
        }
        return sorted(form for form, count in counts.items() if count >= least * len(episodes) and form not in said)


def reads_like(forms: Forms, cases: Sequence[Case]) -> str:
    """The wordings that many of the tasks have: `The task reads like: put a clean X in Y, or clean some X and put it in Y`.

    Empty where the tasks have no wording in common.
    """
    counts = Counter(forms.task(case) for case in cases)
    least = max(MIN_EPISODES, WORDED * len(cases))
    often = sorted((-count, text) for text, count in counts.items() if count >= least and text and len(text) <= 80)
    return f"The task reads like: {', or '.join(text for _, text in often)}" if often else ""


def share(episodes: Sequence[ParsedEpisode], holds: Callable[[ParsedEpisode], bool]) -> float:
    """Share of the episodes of which something holds; 0 where there are none."""
    return sum(map(holds, episodes)) / len(episodes) if episodes else 0.0


def evidence_task_ids(episodes: Iterable[ParsedEpisode]) -> tuple[str, ...]:
    """Ids of the episodes' tasks, bounded."""
    return task_ids(each.case for each in episodes)[:MOST_EVIDENCE]


def task_ids(cases: Iterable[Case]) -> tuple[str, ...]:
    """Ids of the tasks, each once."""
    return tuple(dict.fromkeys(case.task_id for case in cases))


def repeats(case: Case, apart: int = 1) -> int:
    """Steps that did and saw again what had been done and seen, `apart` steps or more before."""
    done = case.outcomes()
    return sum(pair in done[: max(0, place + 1 - apart)] for place, pair in enumerate(done))


def invalid_steps(case: Case) -> int:
    """Steps whose action could not be read, or was not among the listed ones."""
    return sum(map(_is_invalid, case.steps))


def quoted(form: str) -> str:
    """An action as it stands in a text."""
    return f"`{form}`"


def _names(action: str, task: str) -> bool:
    inside = bracketed(action)
    argument = " ".join(words(action)[1:]) if inside is None else inside[1]
    return bool(argument) and is_of_task(argument, task)


def _is_invalid(step: Step) -> bool:
    if step.action_status == "invalid":
        return True
    if not step.admissible_actions or step.action in step.admissible_actions:
        return False
    verb = step.action.partition("[")[0]
    return not any(
        "<" in each and each.partition("[")[0] == verb for each in step.admissible_actions
    )  # `search[<your query>]`
