"""An agent that acts with a skill bank: skills stand in its first prompt, and what it asks while it writes is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skill_ttrl.agents.agent import conversation
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.config import SkillsConfig
from skill_ttrl.skills.access import Query, SkillAccess
from skill_ttrl.skills.ops import last_open_query
from skill_ttrl.types import Message, Skill, Step, Task


@dataclass(frozen=True)
class Asked:
    """A question that one try has just put to the bank."""

    task: Task
    written: str
    """All that the model wrote in this turn so far; it ends with the question."""
    notes: tuple[Skill, ...] = ()
    """Skills that this try wrote in earlier turns."""


@dataclass(frozen=True)
class Told:
    """What is inserted for a question."""

    text: str
    skills: tuple[Skill, ...]


@dataclass(frozen=True)
class SkillAgent:
    """Turns an episode into a conversation with skills, and answers questions to the bank.

    `access` is one frozen version of the bank: `seeing` gives the agent of another. None is a bank that nobody asks (the
    bank-off control): prompts say that it is empty, questions stay unanswered.
    """

    formatter: PromptFormatter
    config: SkillsConfig
    memory: str = "conversation"
    access: SkillAccess | None = None

    @property
    def max_questions(self) -> int:
        """How often one answer may ask."""
        return 0 if self.access is None else self.config.max_retrievals

    def seeing(self, access: SkillAccess | None) -> SkillAgent:
        """The same agent with another version of the bank."""
        return replace(self, access=access)

    def choose(self, tasks: Sequence[Task], observations: Sequence[str]) -> list[tuple[Skill, ...]]:
        """The skills that each task's first prompt shows, found by its first observation, within the token budget."""
        if self.access is None:
            return [()] * len(tasks)
        queries = [Query(seen, task.task_type) for task, seen in zip(tasks, observations, strict=True)]
        return [self.formatter.fit(found) for found in self.access.for_prompts(queries, self.config.in_prompt)]

    def messages(self, steps: Sequence[Step], observation: str, skills: Sequence[Skill] = ()) -> tuple[Message, ...]:
        """See `Agent.messages`; `skills` are those that `choose` gave at the start."""
        empty = not skills and (self.access is None or not len(self.access.snapshot))
        return conversation(self.formatter, self.memory, steps, observation, skills, bank_empty=empty)

    def tell(self, questions: Sequence[Asked]) -> list[Told | None]:
        """What the bank says to each question, all searched together; None for one that cannot be read."""
        assert self.access is not None
        texts = [last_open_query(question.written) for question in questions]
        asking = [(asked, text) for asked, text in zip(questions, texts, strict=True) if text is not None]
        queries = [Query(text, asked.task.task_type, asked.notes) for asked, text in asking]
        found = iter(self.access.find(queries, self.config.retrieve_k))
        return [None if text is None else self._told(next(found)) for text in texts]

    def _told(self, found: Sequence[Skill]) -> Told:
        kept = self.formatter.fit(found, self.config.retrieve_tokens)
        best_first = tuple(skill for skill in found if skill in kept)
        return Told(self.formatter.render_retrieved(best_first), best_first)
