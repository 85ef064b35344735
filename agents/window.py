"""The prompt of one turn of an episode, made anew each time: task, skills, the last turns, what is seen, what is possible.

Where it is too long, something is left out in this order: the oldest turns, the end of the observation, the end of the list of
actions. Skills have a budget of their own and stay. What was left out is said with the prompt and kept with the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from skill_ttrl.skills.access import TIERS
from skill_ttrl.skills.hostile import escape
from skill_ttrl.templates import Templates
from skill_ttrl.types import Message, Skill, Step

CUT = " …"
"""Stands where an observation was cut."""


@dataclass(frozen=True)
class Window:
    """Makes the prompts of `agent.memory: window`.

    Args:
        templates: where they are taken from.
        template: name or path of the one of a turn; it has `$observation`, and may have `$task`, `$experience`, `$history`,
            `$actions`, `$step` and `$skill_ops`.
        system: system message; None leaves it out.
        history: past turns that are shown; None: all.
        observation_tokens: longest observation; None: no bound of its own.
        max_tokens: longest prompt, skills not counted; None: no bound.
        count: tokens of a prompt.
        count_text: tokens of a text.
        numbered: whether every action is listed with its number, which is what is answered.
        asks: whether the model may ask the skill bank, add to it and improve it: then the prompt says how.
    """

    templates: Templates
    template: str
    system: str | None = None
    history: int | None = 2
    observation_tokens: int | None = None
    max_tokens: int | None = None
    count: Callable[[Sequence[Message]], int] = lambda messages: sum(len(each.content) for each in messages) // 4
    count_text: Callable[[str], int] = lambda text: -(-len(text) // 4)
    asks: bool = False
    numbered: bool = False

    def __post_init__(self) -> None:
        self.templates.get(self.template, of_a_turn=True)

    def prompt(
        self,
        observation: str,
        steps: Sequence[Step],
        task: str,
        admissible: Sequence[str],
        skills: Sequence[Skill] = (),
    ) -> tuple[tuple[Message, ...], Mapping[str, int]]:
        """The messages, and what they had no room for (see `Step.left_out`).

        A prompt that is too long even so is given as it is: whoever counts it refuses it.

        Args:
            observation: what is seen now.
            steps: what was done, oldest first.
            task: what is to be done.
            admissible: what is possible now.
            skills: shown in the order given, by tier.
        """
        left_out: dict[str, int] = {}
        seen, most = observation, self.observation_tokens
        if most is not None:
            seen = self._cut(observation, lambda text: self.count_text(text) <= most)
        turns = min(len(steps), len(steps) if self.history is None else self.history)

        def made(seen: str, turns: int, actions: int, skills: Sequence[Skill] = ()) -> tuple[Message, ...]:
            return self._messages(seen, steps, turns, task, admissible[:actions], skills)

        def fits(seen: str, turns: int, actions: int) -> bool:
            return self.max_tokens is None or self.count(made(seen, turns, actions)) <= self.max_tokens

        shown, listed = turns, len(admissible)
        if not fits(seen, shown, listed):
            shown = bisect_right(range(turns), False, key=lambda fewer: not fits(seen, fewer, listed)) - 1
            shown = max(shown, 0)
            if not fits(seen, shown, listed):
                seen = self._cut(seen, lambda text: fits(text, 0, listed))
                if not fits(seen, 0, listed):
                    listed = max(bisect_right(range(listed), False, key=lambda few: not fits(seen, 0, few)) - 1, 0)
            left_out |= {"turns": turns - shown} if shown < turns else {}
            left_out |= {"actions": len(admissible) - listed} if listed < len(admissible) else {}
        if seen != observation:
            left_out["observation_tokens"] = self.count_text(observation) - self.count_text(seen)
        return made(seen, shown, listed, skills), left_out

    def experience(self, skills: Sequence[Skill]) -> str:
        """The skills as a prompt shows them, by tier; empty where there are none."""
        if not skills:
            return ""

        blocks = {tier: "\n".join(self.skill(each) for each in skills if each.tier == tier) for tier in TIERS}
        return self.templates.render(
            "experience", general=blocks["general"], task=blocks["task"], mistakes=blocks["mistake"]
        )

    def skill(self, skill: Skill) -> str:
        """One skill as a prompt shows it. Its fields are escaped: they can neither open nor close a tag."""
        return self.templates.render(
            "experience_mistake" if skill.tier == "mistake" else "experience_skill",
            id=escape(skill.id),
            title=escape(skill.title),
            text=escape(skill.text),
            when_to_apply=escape(skill.when_to_apply),
        )

    def _messages(
        self,
        seen: str,
        steps: Sequence[Step],
        turns: int,
        task: str,
        actions: Sequence[str],
        skills: Sequence[Skill],
    ) -> tuple[Message, ...]:
        text = self.templates.render(
            self.template,
            task=task,
            experience=self.experience(skills),
            history=self._history(steps, turns),
            observation=seen,
            actions="\n".join(self._listed(actions)),
            step=str(len(steps) + 1),
            skill_ops=self.templates.render("skill_ops") if self.asks else "",
        )
        system = (Message("system", self.system),) if self.system is not None else ()
        return (*system, Message("user", text))

    def _listed(self, actions: Sequence[str]) -> Sequence[str]:
        if not self.numbered:
            return actions
        pairs = enumerate(actions, start=1)
        return [self.templates.render("numbered", number=str(number), action=action) for number, action in pairs]

    def _history(self, steps: Sequence[Step], turns: int) -> str:
        if not turns:
            return ""
        first = len(steps) - turns
        lines = [
            self.templates.render(
                "turn", number=str(first + place + 1), observation=step.observation, action=step.action
            )
            for place, step in enumerate(steps[first:])
        ]
        return self.templates.render("history", turns="\n".join(lines), steps=str(len(steps)), shown=str(turns))

    def _cut(self, text: str, fits: Callable[[str], bool]) -> str:
        """The longest beginning that fits; a prompt's tokens grow with its characters."""
        if fits(text):
            return text
        kept = bisect_right(range(len(text)), False, key=lambda length: not fits(text[:length] + CUT)) - 1
        return text[: max(kept, 0)] + CUT
