"""How a task becomes a conversation. Templates are Markdown files; a user's own is given by its path."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from string import Template

from skill_ttrl.config import AgentConfig
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.types import Message


class PromptFormatter:
    """Puts a question into a template.

    Args:
        template: name of a file in `skill_ttrl/prompts` (without `.md`), or a path to a Markdown file with `$question`.
        system: system message; None leaves it out.

    Raises:
        ConfigError: no such template, or it has no `$question`.
    """

    def __init__(self, template: str = "boxed", system: str | None = None) -> None:
        self._template = Template(read_template(template))
        self._system = system

    @classmethod
    def from_config(cls, config: AgentConfig) -> PromptFormatter:
        """The formatter that a run's config asks for."""
        return cls(config.template, config.system)

    def format_prompt(self, question: str) -> str:
        """The user's message. The question is inserted as it is: a `$` or brace in it means nothing."""
        return self._template.substitute(question=question)

    def format_batch(self, questions: list[str]) -> list[str]:
        """One user's message for each question."""
        return [self.format_prompt(question) for question in questions]

    def messages(self, question: str) -> tuple[Message, ...]:
        """The conversation that the model is to continue."""
        system = (Message("system", self._system),) if self._system is not None else ()
        return (*system, Message("user", self.format_prompt(question)))


def template_names() -> list[str]:
    """Names of the shipped templates."""
    folder = importlib.resources.files("skill_ttrl").joinpath("prompts")
    return sorted(entry.name.removesuffix(".md") for entry in folder.iterdir() if entry.name.endswith(".md"))


def read_template(name: str) -> str:
    """Text of a shipped template or of a file, without its final newline."""
    if "/" in name or name.endswith(".md"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Cannot read the prompt template {name}: {error}.") from None
    elif name in template_names():
        text = importlib.resources.files("skill_ttrl").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")
    else:
        raise ConfigError(
            f"Unknown prompt template {name!r}.{did_you_mean(name, template_names())} A file is given by its path."
        )
    identifiers = Template(text).get_identifiers() if Template(text).is_valid() else []
    if identifiers != ["question"]:
        raise ConfigError(f"Prompt template {name!r} must hold $question and no other $name ($$ writes a dollar sign).")
    return text.removesuffix("\n")
