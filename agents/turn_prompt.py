"""The prompt of one turn of an episode, made anew each time: task, skills, the last turns, what is seen, what is possible.

Where it is too long, something is left out in this order: the oldest turns, the end of the observation, the end of the list of
actions. Skills have a budget of their own and stay. What was left out is said with the prompt and kept with the step.

All that is put into it is text of others: it can spell none of our tags nor a control token, and only an observation and a task can
have lines of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from skill_ttrl.agents.action_parser import possible
from skill_ttrl.prompts.templates import Templates, with_document
from skill_ttrl.sanitize import escape
from skill_ttrl.skills.retrieval import TIERS
from skill_ttrl.types import Message, Skill, Step

T = TypeVar("T")
CUT = " …"
"""Stands where an observation was cut."""
REMEMBERED = 5_000
"""Most texts whose tokens are kept in mind."""


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, where no tokenizer is at hand: one for every four characters."""
    return -(-len(text) // 4)


@dataclass(frozen=True)
class Prompt:
    """The conversation that the model is to continue."""

    messages: tuple[Message, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Parts that did not fit, counted; see `Step.truncated_parts`."""
    fits: bool | None = None
    """True if it is within its limit, skills not counted; None: not checked."""


@dataclass(frozen=True)
class _Parts:
    """Contents of a prompt except for the skills."""

    task: str
    observation: str
    turns: tuple[str, ...]
    actions: tuple[str, ...]
    steps: int
    """Done so far."""
    asks: bool


@dataclass(frozen=True)
class TurnPromptBuilder:
    """Makes the prompts of `agent.context_mode: window`.

    Args:
        templates: where they are taken from.
        template: name or path of the one of a turn; it has `$observation`, and may have `$task`, `$experience`, `$history`,
            `$actions`, `$step` and `$skill_ops`.
        system: system message; None leaves it out.
        history: past turns that are shown; None: all.
        observation_tokens: longest observation, the present one and those of past turns; None: no bound of its own.
        max_tokens: longest prompt, skills not counted; None: no bound.
        count: tokens of a prompt.
        count_text: tokens of a text.
        numbered: whether every action is listed with its number, which is what is answered.
        asks: whether the model may ask the skill bank, add to it and improve it: then the prompt says how.
        document: shown at the head of every prompt, and counted; empty: there is none.
    """

    templates: Templates
    template: str
    system: str | None = None
    history: int | None = 2
    observation_tokens: int | None = None
    max_tokens: int | None = None
    count: Callable[[Sequence[Message]], int] = lambda messages: sum(len(each.content) for each in messages) // 4
    count_text: Callable[[str], int] = estimate_tokens
    asks: bool = False
    numbered: bool = False
    document: str = ""
    _memory: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Tokens of texts, and skills as they are shown: both come again at every step."""

    def __post_init__(self) -> None:
        self.templates.get(self.template, of_a_turn=True)

    def prompt(
        self,
        observation: str,
        steps: Sequence[Step],
        task: str,
        admissible: Sequence[str],
        skills: Sequence[Skill] = (),
        *,
        asks: bool = True,
    ) -> Prompt:
        """The messages, what they had no room for, and whether they fit even so.

        Args:
            observation: what is seen now.
            steps: what was done, oldest first.
            task: what is to be done.
            admissible: what is possible now.
            skills: shown in the order given, by tier.
            asks: False: the bank is not to be asked now, whatever `TurnPromptBuilder.asks` says.
        """
        first = 0 if self.history is None else max(0, len(steps) - self.history)
        turns = tuple(self._turn(number, step) for number, step in enumerate(steps[first:], start=first + 1))
        seen = self._bounded(_escaped(observation))
        whole = _Parts(_escaped(task), seen, turns, self._listed(admissible), len(steps), asks and self.asks)
        parts, fits = (whole, True) if self._surely_fits(whole) else self._cut(whole)
        left_out = {"turns": len(turns) - len(parts.turns), "actions": len(admissible) - len(parts.actions)}
        if parts.observation != _escaped(observation):
            left_out["observation_tokens"] = self._tokens(_escaped(observation)) - self._tokens(parts.observation)
        said = {what: count for what, count in left_out.items() if count}
        return Prompt(self._messages(parts, self.experience(skills)), said, fits)

    def experience(self, skills: Sequence[Skill]) -> str:
        """The skills as a prompt shows them, by tier; empty where there are none."""

        def made() -> str:
            tiers = {tier: "\n".join(self.skill(each) for each in skills if each.tier == tier) for tier in TIERS}
            return self.templates.render(
                "experience", general=tiers["general"], task=tiers["task"], mistakes=tiers["mistake"]
            )

        return self._remembered(tuple(skills), made) if skills else ""

    def skill(self, skill: Skill) -> str:
        """One skill as a prompt shows it. Its fields are escaped: they can neither open nor close a tag, nor begin a section."""
        return self.templates.render(
            "experience_mistake" if skill.tier == "mistake" else "experience_skill",
            id=_one_line(escape(skill.id)),
            title=_one_line(escape(skill.title)),
            text=_indented(escape(skill.text)),
            when_to_apply=_one_line(escape(skill.when_to_apply)),
        )

    def _messages(self, parts: _Parts, experience: str = "") -> tuple[Message, ...]:
        history = ""
        if parts.turns:
            shown, steps = str(len(parts.turns)), str(parts.steps)
            history = self.templates.render("history", turns="\n".join(parts.turns), steps=steps, shown=shown)
        text = self.templates.render(
            self.template,
            task=parts.task,
            experience=experience,
            history=history,
            observation=parts.observation,
            actions="\n".join(parts.actions),
            step=str(parts.steps + 1),
            skill_ops=self.templates.render("skill_ops") if parts.asks else "",
        )
        system = (Message("system", self.system),) if self.system is not None else ()
        messages = (*system, Message("user", text))
        return with_document(messages, self.document)

    def _turn(self, number: int, step: Step) -> str:
        refused = bool(step.admissible_actions) and not possible(step.action, step.admissible_actions)
        return self.templates.render(
            "turn",
            number=str(number),
            observation=self._bounded(_escaped(step.observation)),
            action=_one_line(_escaped(step.action)),
            note=self.templates.render("refused") if refused else "",
        )

    def _listed(self, actions: Sequence[str]) -> tuple[str, ...]:
        lines = [action if _ordinary(action) else _one_line(_escaped(action)) for action in actions]
        if self.numbered:
            pairs = enumerate(lines, start=1)
            lines = [self.templates.render("numbered", number=str(number), action=line) for number, line in pairs]
        return tuple(lines)

    def _surely_fits(self, parts: _Parts) -> bool:
        """True if a prompt is certain to fit, by bounds that avoid tokenizing all of it, the slowest operation here.

        A text has at most as many tokens as bytes, and joined texts have at most the sum of their tokens plus one for each joint.
        """
        if self.max_tokens is None:
            return True
        messages = self._messages(parts)
        around = self._remembered("around", lambda: self.count([Message(each.role, "") for each in messages]))
        if around + sum(len(each.content.encode(errors="replace")) for each in messages) <= self.max_tokens:
            return True
        bare = _Parts("x", "x", ("x",) if parts.turns else (), ("x",) if parts.actions else (), parts.steps, parts.asks)
        fixed = self._remembered(bare, lambda: self.count(self._messages(bare)))
        texts = (parts.task, parts.observation, *parts.turns, *parts.actions)
        return bool(fixed + sum(self._tokens(text) + 1 for text in texts) <= self.max_tokens)

    def _cut(self, parts: _Parts) -> tuple[_Parts, bool]:
        """Shorten a prompt to `max_tokens`, and return whether it fits then. The excess is counted exactly, each cut is estimated."""
        assert self.max_tokens is not None
        while (over := self.count(self._messages(parts)) - self.max_tokens) > 0:
            if parts.turns:
                gone = self._fewest(parts.turns, over)
                parts = replace(parts, turns=parts.turns[gone:])
            elif parts.observation not in ("", CUT):
                room = self._tokens(parts.observation) - over
                parts = replace(parts, observation=self._beginning(parts.observation.removesuffix(CUT), room))
            elif parts.actions:
                gone = self._fewest(parts.actions[::-1], over)
                parts = replace(parts, actions=parts.actions[: len(parts.actions) - gone])
            else:
                return parts, False
        return parts, True

    def _fewest(self, texts: Sequence[str], tokens: int) -> int:
        """How many of the texts, from the first on, have so many tokens; at least one."""
        for number, text in enumerate(texts, start=1):
            tokens -= self._tokens(text)
            if tokens <= 0:
                return number
        return len(texts)

    def _bounded(self, seen: str) -> str:
        if self.observation_tokens is None or self._tokens(seen) <= self.observation_tokens:
            return seen
        most = self.observation_tokens
        return self._remembered((most, seen), lambda: self._beginning(seen, most))

    def _beginning(self, text: str, tokens: int) -> str:
        """About the longest beginning of a text that has so many tokens with `CUT` behind it, up to the end of a word.

        It is found by proportion: a tokenizer reads a long page in milliseconds, and a search by halves would ask it a dozen times.
        """
        low, high, fewer, more = 0, len(text), 0, self._tokens(text)
        room = tokens - self._tokens(CUT)
        for _ in range(6):
            if high - low < 16 or room - fewer < 4:
                break
            at = low + (high - low) * (room - fewer) // max(1, more - fewer)
            at = min(max(at, low + 1), high - 1)
            found = self._tokens(text[:at])
            if found <= room:
                low, fewer = at, found
            else:
                high, more = at, found
        start = text[:low]
        whole = max(start.rfind(" "), start.rfind("\n"))
        return (start[:whole] if whole > low - 40 else start).rstrip() + CUT if low else CUT

    def _tokens(self, text: str) -> int:
        return self._remembered(text, lambda: self.count_text(text))

    def _remembered(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._memory:
            if len(self._memory) >= REMEMBERED:
                self._memory.clear()
            self._memory[key] = make()
        found: T = self._memory[key]
        return found


@lru_cache(maxsize=1024)  # an observation stands in the prompts of the next turns too
def _escaped(text: str) -> str:
    return escape(text, brackets=False)


def _ordinary(action: str) -> bool:
    """True if an action can begin neither a tag nor a line. Most of a long list passes this check and needs no escaping."""
    return action.isascii() and action.isprintable() and "<" not in action


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _indented(text: str) -> str:
    """Later lines further in than the first, and none of them empty: as Markdown has the lines of one item of a list."""
    return "\n  ".join(line.strip() for line in text.split("\n") if line.strip())
