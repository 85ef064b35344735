"""A skill document in a prompt: one Markdown text of rules and advice, the same in every prompt of an agent.

It stands as it is: unlike a skill it may name our tags ("write the answer between <answer> tags"), which mean nothing where a
prompt has them, and control tokens that it spells stay text when it is tokenised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from skill_ttrl.config import AgentConfig
from skill_ttrl.errors import DocumentError
from skill_ttrl.types import Message

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
