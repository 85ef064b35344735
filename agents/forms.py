"""Forms of what a policy reads and writes (`agent.observations`): of observations, and where a form has them, of actions.

An environment speaks in long texts, and its actions are texts too (`click[b09qqp3356]`). A small policy reads and writes a form of both. The
environment, stored episodes, experts and teachers keep its own texts; a form is a pure function of the scene, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skill_ttrl.agents.action_parser import ParsedAction, Project

if TYPE_CHECKING:
    from skill_ttrl.agents.agent import AgentInput

Observe = Callable[["AgentInput"], str]
"""The text of `AgentInput.observation` in a prompt."""
WORDS = "<words>"
"""The place of the policy's own words in a text that it writes."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A possible action with a place for words of the policy's own."""

    written: str
    """As the policy writes it, with `WORDS` at the end: `search <words>`."""
    action: str
    """As the environment reads it, with `WORDS` in their place: `search[<words>]`."""
    words: Mapping[str, str]
    """Words allowed there: as the policy writes them → as the environment reads them."""


@dataclass(frozen=True, slots=True)
class FormActions:
    """The possible actions of one scene, as a policy writes them."""

    actions: Mapping[str, str] = field(default_factory=dict)
    """Text that the policy writes → the environment's action."""
    slot: Slot | None = None
    alike: Mapping[str, str] = field(default_factory=dict)
    """The environment's action → what is written, for actions that are written as another one is. That one is meant where it is read; where
    an episode has such an action, it is shown so: the policy cannot tell the two apart."""

    @property
    def choices(self) -> tuple[str, ...]:
        """Everything that can be written; the one with a slot has `WORDS` there. A slot without words cannot."""
        return (*self.actions, *((self.slot.written,) if self.slot is not None and self.slot.words else ()))

    @property
    def slot_words(self) -> tuple[str, ...]:
        """Words allowed in the slot, as the policy writes them; empty without a slot."""
        return () if self.slot is None else tuple(self.slot.words)

    def read(self, written: str) -> str | None:
        """The environment's action; None where what was written is none of these."""
        said = " ".join(written.split())
        if said in self.actions or self.slot is None:
            return self.actions.get(said)
        head = self.slot.written.removesuffix(WORDS)
        words = _split(said.removeprefix(head), self.slot.words) if said.startswith(head) else None
        return self.slot.action.replace(WORDS, " ".join(words)) if words else None

    def write(self, action: str) -> str | None:
        """An action of the environment as the policy writes it; None where it cannot.

        Of a slot's words those that the policy does not have are left out.
        """
        for written, known in self.actions.items():
            if known == action:
                return written
        if action in self.alike or self.slot is None:
            return self.alike.get(action)
        before, _, after = self.slot.action.partition(WORDS)
        if not (action.startswith(before) and action.endswith(after) and len(action) > len(before + after)):
            return None
        written_as = {word: name for name, word in reversed(list(self.slot.words.items()))}
        words = _longest(action[len(before) : len(action) - len(after)].split(), written_as)
        return self.slot.written.replace(WORDS, " ".join(words)) if words else None


@dataclass(frozen=True, slots=True)
class Form:
    """A form of observations, with one of actions or without."""

    observe: Observe
    actions: Callable[[AgentInput], FormActions] | None = None
    """None: actions are written as the environment lists them."""
    vocabulary: tuple[str, ...] = ()
    """Texts with all words of the form, for tokenizers that are made of a run's texts (`model.builtin.vocabulary: entities`)."""


def read_form(written: str, actions: FormActions, project: Project, *, constrained: bool = False) -> ParsedAction:
    """The environment's action that was written in a form. What is none is `invalid`, and played as it is: the environment answers it.

    Args:
        written: the model's own words.
        actions: what it may write now.
        project: finds the action in them, as for actions that are listed as the environment has them.
        constrained: it could write nothing but one of them, whatever `project` says of tags.
    """
    if constrained and (action := actions.read(written)) is not None:
        return ParsedAction(action, "valid")
    found = project(written, actions.choices)
    meant = None if found.action_status == "invalid" else actions.read(found.action)
    if meant is None:
        return ParsedAction(found.action, "invalid", found.parse_error or "it is none of the possible actions")
    return ParsedAction(meant, found.action_status or "valid", found.parse_error)


def _split(said: str, words: Mapping[str, str]) -> list[str] | None:
    """The slot's words in a text, as the environment reads them; None where there is another. A word may be several: `word 3`."""
    parts, most = said.split(), max((name.count(" ") + 1 for name in words), default=0)
    rest: list[list[str] | None] = [None] * len(parts) + [[]]
    for place in reversed(range(len(parts))):
        for end in range(min(place + most, len(parts)), place, -1):
            name, after = " ".join(parts[place:end]), rest[end]
            if after is not None and name in words:
                rest[place] = [words[name], *after]
                break
    return rest[0]


def _longest(parts: list[str], names: Mapping[str, str]) -> list[str]:
    """Names of the texts that are found one after the other, the longest first; words between them are left out."""
    found, place, most = [], 0, max((text.count(" ") + 1 for text in names), default=0)
    while place < len(parts):
        ends = range(min(place + most, len(parts)), place, -1)
        end = next((end for end in ends if " ".join(parts[place:end]) in names), None)
        if end is not None:
            found.append(names[" ".join(parts[place:end])])
        place = place + 1 if end is None else end
    return found
