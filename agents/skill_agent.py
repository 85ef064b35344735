"""An agent that acts with a skill bank: skills stand in its first prompt, and what it asks while it writes is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skill_ttrl.agents.action_list import AS_LISTED, Listing, has_slot
from skill_ttrl.agents.action_parser import Project, Projection, whole
from skill_ttrl.agents.agent import Scene, conversation
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.agents.turn_prompt import Prompt, Window
from skill_ttrl.config import SkillsConfig
from skill_ttrl.skills.ops import last_open_query
from skill_ttrl.skills.retrieval.bank_view import BankView, Query
from skill_ttrl.types import Skill, Task


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
class PromptSkills:
    """The skills of one episode's prompts."""

    skills: tuple[Skill, ...] = ()
    """In the order of their tiers, best first within one."""
    left_out: int = 0
    """Skills that were found for it and did not fit their token budget."""


@dataclass(frozen=True)
class SkillAgent:
    """Turns an episode into a conversation with skills, and answers questions to the bank.

    `access` is one frozen version of the bank: `seeing` gives the agent of another. None is a bank that nobody asks (the
    bank-off control): prompts say that it is empty, questions stay unanswered.
    """

    formatter: PromptFormatter
    config: SkillsConfig
    memory: str = "conversation"
    access: BankView | None = None
    window: Window | None = None
    """Makes every prompt anew (`agent.memory: window`); None: prompts are a conversation."""
    project: Project = whole
    """Finds the action in what was written."""
    listing: Listing = AS_LISTED
    """Of the possible actions in a prompt."""

    @property
    def max_questions(self) -> int:
        """How often one answer may ask."""
        return 0 if self.access is None else self.config.max_retrievals

    def seeing(self, access: BankView | None) -> SkillAgent:
        """The same agent with another version of the bank."""
        return replace(self, access=access)

    def choose(self, tasks: Sequence[Task], said: Sequence[str]) -> list[PromptSkills]:
        """The skills that each task's prompts show, found by what the task says, within the token budget."""
        if self.access is None:
            return [PromptSkills()] * len(tasks)
        queries = [Query(seen, self.type_of(task)) for task, seen in zip(tasks, said, strict=True)]
        found = self.access.for_prompts(queries, self.config.in_prompt)
        return [self.fit_to_budget(skills) for skills in found]

    def type_of(self, task: Task) -> str:
        """What the bank calls the task's type."""
        return self.config.type_names.get(task.task_type, task.task_type)

    def fit_to_budget(self, skills: Sequence[Skill]) -> PromptSkills:
        """Those of the skills, best first, that fit the token budget of a prompt."""
        kept = self.formatter.fit(skills, render=None if self.window is None else self.window.skill)
        return PromptSkills(kept, len(skills) - len(kept))

    def listed(self, scene: Scene) -> tuple[str, ...]:
        """The possible actions in the order in which the prompt lists them."""
        return self.listing(scene.admissible, scene.task, scene.skills, [step.action for step in scene.steps])

    def prompt(self, scene: Scene) -> Prompt:
        """See `Agent.prompt`; the scene's skills are those that `choose` gave at the start."""
        if self.window is not None:
            seen, steps, asks = scene.observation, scene.steps, self.max_questions > 0
            return self.window.prompt(seen, steps, scene.task, self.listed(scene), scene.skills, asks=asks)
        empty = not scene.skills and (self.access is None or not len(self.access.snapshot))
        return Prompt(conversation(self.formatter, self.memory, scene, scene.skills, bank_empty=empty))

    def read(self, written: str, scene: Scene) -> Projection:
        """See `Agent.read`."""
        return self.project(written, (*self.listed(scene), *filter(has_slot, scene.admissible)))

    def tell(self, questions: Sequence[Asked]) -> list[Told | None]:
        """What the bank says to each question, all searched together; None for one that cannot be read."""
        assert self.access is not None
        texts = [last_open_query(question.written) for question in questions]
        asking = [(asked, text) for asked, text in zip(questions, texts, strict=True) if text is not None]
        queries = [Query(text, self.type_of(asked.task), asked.notes) for asked, text in asking]
        found = iter(self.access.find(queries, self.config.retrieve_k))
        return [None if text is None else self._told(next(found)) for text in texts]

    def _told(self, found: Sequence[Skill]) -> Told:
        kept = self.formatter.fit(found, self.config.retrieve_tokens)
        best_first = tuple(skill for skill in found if skill in kept)
        return Told(self.formatter.render_retrieved(best_first), best_first)
