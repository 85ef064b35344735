"""How a task becomes a conversation: the question in its template, the skills that may help in front of it, and a skill document.

A document is one Markdown text of rules and advice, the same in every prompt of an agent. It stands as it is: unlike a skill it may
name our tags ("write the answer between <answer> tags"), which mean nothing where a prompt has them, and control tokens that it spells
stay text when it is tokenised.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skill_ttrl.config import AgentConfig
from skill_ttrl.errors import DocumentError
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.sanitize import escape
from skill_ttrl.skills.retrieval import TIERS, BankView, Query
from skill_ttrl.types import Message, Skill

if TYPE_CHECKING:
    from skill_ttrl.skills.bank import SkillBank

MAX_BYTES = 1 << 20
"""Largest file that is read as a document."""


def with_document(messages: Sequence[Message], document: str) -> tuple[Message, ...]:
    """The conversation with the document behind its system message, or as one; an empty document changes nothing."""
    if not document.strip():
        return tuple(messages)
    first, *rest = messages
    if first.role != "system":
        return Message("system", document), *messages
    return Message("system", f"{first.content}\n\n{document}"), *rest


def document_of(config: AgentConfig) -> str:
    """The document that a config names; empty where it names none.

    Raises:
        DocumentError: see `read_document`.
    """
    return "" if config.document is None else read_document(config.document)


def read_document(path: str | Path) -> str:
    """The text of a document's file.

    Raises:
        DocumentError: there is no such file, or it is too large or no UTF-8 text.
    """
    file = Path(path)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise DocumentError(f"agent.document: {file} is larger than {MAX_BYTES:,} bytes, too large for a prompt.")
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DocumentError(f"agent.document: cannot read {file}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"agent.document: {file} is not UTF-8 text (byte {error.start}). Save it as UTF-8."
        ) from None
    return text.replace("\r\n", "\n")


def document_revision(path: str, pinned: str | None = None) -> str:
    """A digest of a document's text.

    Raises:
        DocumentError: it cannot be read, or is not the one that `pinned` is of.
    """
    found = f"sha256:{hashlib.sha256(read_document(path).encode()).hexdigest()}"
    if pinned not in (None, found):
        raise DocumentError(
            f"agent.document: {path} has changed: its digest is {found[:19]}…, and {str(pinned)[:19]}… was pinned. Restore the text, or "
            "remove it from data.revisions to continue with the new one."
        )
    return found


CHARACTERS_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, where no tokenizer is at hand: one for every four characters."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


class PromptFormatter:
    """Puts a question into a template, with skills where there is a bank.

    Args:
        template: template of a question by name (see `Templates`), or a path to a Markdown file with `$question`.
        system: system message; None leaves it out.
        prompts: a set of templates; see `Templates`.
        skill_bank: asked for skills by the methods that are given none. None: prompts have no skills.
        task_type: kind of task that skills are looked up for; empty for any.
        max_skills: most skills in one prompt.
        skill_tokens: token budget of the skills in one prompt.
        count: tokens of a text.

    Raises:
        ConfigError: no such template, or it has not the places it needs.
    """

    def __init__(
        self,
        template: str = "boxed",
        system: str | None = None,
        *,
        prompts: str | None = None,
        skill_bank: SkillBank | None = None,
        task_type: str = "",
        max_skills: int = 6,
        skill_tokens: int = 512,
        count: Callable[[str], int] = estimate_tokens,
    ) -> None:
        self.templates = Templates(prompts)
        self.templates.get(template)
        self._template, self._system = template, system
        self._bank, self._task_type, self._max_skills = skill_bank, task_type, max_skills
        self.skill_tokens, self._count = skill_tokens, count
        self.document = ""

    @classmethod
    def from_config(
        cls, config: AgentConfig, *, skill_tokens: int = 512, count: Callable[[str], int] = estimate_tokens
    ) -> PromptFormatter:
        """The formatter that a run's config asks for; the agent hands it the skills."""
        made = cls(config.template, config.system, prompts=config.prompts, skill_tokens=skill_tokens, count=count)
        return made.with_document(document_of(config))

    def with_document(self, document: str) -> PromptFormatter:
        """The same formatter with another document in its conversations."""
        other = copy.copy(self)
        other.document = document
        return other

    def format_prompt(
        self,
        question: str,
        task_type: str | None = None,
        *,
        skills: Sequence[Skill] | None = None,
        bank_empty: bool | None = None,
    ) -> str:
        """The user's message. The question is inserted as it is: a `$` or brace in it means nothing.

        Args:
            question: the task.
            task_type: kind of task that skills are looked up for; None: the formatter's own.
            skills: what to put in front of it, in this order; None asks the formatter's own bank, or leaves skills out of
                it where there is none.
            bank_empty: whether the prompt says that the bank has nothing at all (cold start); None: where `skills` is empty.
        """
        text = self.templates.render(self._template, question=question)
        return self._with_skills(text, question, task_type, skills, bank_empty)

    def format_agent_prompt(
        self,
        task_description: str,
        current_state: str = "",
        available_actions: str | Sequence[str] = "",
        task_type: str | None = None,
        *,
        skills: Sequence[Skill] | None = None,
    ) -> str:
        """The user's message for one turn of an agent; `task_type` and `skills` as in `format_prompt`."""
        actions = available_actions if isinstance(available_actions, str) else ", ".join(available_actions)
        text = self.templates.render("agent_task", task=task_description, state=current_state, actions=actions)
        return self._with_skills(text, task_description, task_type, skills, None)

    def format_batch(self, questions: Sequence[str], task_type: str | None = None) -> list[str]:
        """One user's message for each question."""
        return [self.format_prompt(question, task_type) for question in questions]

    def messages(
        self, question: str, skills: Sequence[Skill] | None = None, *, bank_empty: bool | None = None
    ) -> tuple[Message, ...]:
        """The conversation that the model is to continue; see `format_prompt`."""
        system = (Message("system", self._system),) if self._system is not None else ()
        task = Message("user", self.format_prompt(question, skills=skills, bank_empty=bank_empty))
        return with_document((*system, task), self.document)

    def fit(
        self, skills: Sequence[Skill], tokens: int | None = None, render: Callable[[Skill], str] | None = None
    ) -> tuple[Skill, ...]:
        """The skills that fit a token budget, taken in the order given, shown in the order of their tiers.

        A skill that does not fit is passed over; a shorter one after it may still fit. `render` is how a prompt shows one, where
        that is not `render_skill`.
        """
        left = self.skill_tokens if tokens is None else tokens
        fitting = []
        for skill in skills:
            needed = self._count((render or self.render_skill)(skill))
            if needed <= left:
                fitting.append(skill)
                left -= needed
        return tuple(sorted(fitting, key=lambda skill: TIERS.index(skill.tier)))  # stable: best first within a tier

    def render_skill(self, skill: Skill) -> str:
        """One skill as a prompt shows it. Its fields are escaped: they can neither open nor close a tag."""
        return self.templates.render(
            "skill",
            id=escape(skill.id).replace('"', "'"),
            title=escape(skill.title),
            text=escape(skill.text),
            when_to_apply=escape(skill.when_to_apply),
            tier=skill.tier,
        )

    def render_retrieved(self, skills: Sequence[Skill]) -> str:
        """Render the text inserted after a query: the retrieved skills, or a notice that there are none."""
        if not skills:
            return self.templates.render("no_results")
        return self.templates.render("retrieved", skills=self._joined(skills))

    def _with_skills(
        self,
        text: str,
        question: str,
        task_type: str | None,
        skills: Sequence[Skill] | None,
        bank_empty: bool | None,
    ) -> str:
        if skills is None:
            if self._bank is None:
                return text
            view = BankView(self._bank.snapshot(), self._bank.retriever)
            asked = Query(question, self._task_type if task_type is None else task_type)
            found = view.select_for_prompts([asked], self._max_skills)[0]
            skills, bank_empty = self.fit(found), not len(self._bank)
        if bank_empty or (bank_empty is None and not skills):
            return self.templates.render("skills_empty", question=text)
        return self.templates.render("skills", skills=self._joined(skills), question=text)

    def _joined(self, skills: Sequence[Skill]) -> str:
        return "\n".join(self.render_skill(skill) for skill in skills)
