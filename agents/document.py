"""A skill document in a prompt: one Markdown text of rules and advice, the same in every prompt of an agent.

It stands as it is: unlike a skill it may name our tags ("write the answer between <answer> tags"), which mean nothing where a
prompt has them, and control tokens that it spells stay text when it is tokenised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from skill_ttrl.config import AgentConfig
from skill_ttrl.errors import DocumentError
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.types import Message

MAX_BYTES = 1 << 20
"""Largest file that is read as a document."""


@dataclass(frozen=True)
class DocumentSlot:
    """Where prompts show a document, and the document that they show."""

    templates: Templates
    shown_as: Literal["system", "prompt", "bank"] = "system"
    """`system`: behind the system message. `prompt`: before the task, in the first message of the user. `bank`: nowhere; its parts are
    skills."""
    text: str = ""
    """Empty: prompts show none."""

    @classmethod
    def from_config(cls, config: AgentConfig, templates: Templates) -> DocumentSlot:
        """The slot that a config describes, with its document.

        Raises:
            DocumentError: see `read_document`.
        """
        text = "" if config.document is None else read_document(config.document)
        templates.get("document")
        return cls(templates, config.document_as, text)

    def with_text(self, text: str) -> DocumentSlot:
        """The same place with another document."""
        return replace(self, text=replace_surrogates(text))

    def placed(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The conversation with the document at its head."""
        if not self.text.strip() or self.shown_as == "bank":
            return tuple(messages)
        first, *rest = messages
        if self.shown_as == "system":
            if first.role != "system":
                return Message("system", self.text), *messages
            return Message("system", f"{first.content}\n\n{self.text}"), *rest
        place = next(index for index, each in enumerate(messages) if each.role == "user")
        shown = self.templates.render("document", document=self.text, question=messages[place].content)
        return *messages[:place], Message("user", shown), *messages[place + 1 :]


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
