"""Conversations as tokens, in which control tokens are the chat template's alone.

A question that spells `<|im_end|>` must stay text and end no turn. transformers can do this itself from 5.20 on
(`sanitize_control_tokens`), older versions hand the unknown argument to the template and say nothing; vLLM holds the older
ones fast, so it is done here, the same way, for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from skill_ttrl.errors import ModelError
from skill_ttrl.types import Message

_OPEN, _CLOSE = "\ue000\ue001", "\ue001\ue000"
"""Private-use characters around a control token in a message; taken out of messages first, so they cannot be forged."""


def encode_chat(tokenizer: Any, messages: Sequence[Message]) -> tuple[int, ...]:
    """Tokens of a conversation up to where the assistant begins; without a template, the contents joined by blank lines."""
    if not getattr(tokenizer, "chat_template", None):
        text = "\n\n".join(message.content for message in messages)
        return tuple(tokenizer.encode(text, split_special_tokens=True))
    control = _control_tokens(tokenizer)
    turns = [{"role": message.role, "content": _marked(message.content, control)} for message in messages]
    rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    ids: list[int] = []
    for place, piece in enumerate(re.split(f"{_OPEN}(.*?){_CLOSE}", rendered, flags=re.DOTALL)):
        if piece:
            ids += encode_plain(tokenizer, piece) if place % 2 else tokenizer.encode(piece, add_special_tokens=False)
    return tuple(ids)


def template_warning(backend: Any) -> str:
    """A warning that a policy's prompts follow no chat template; empty where they do, or where its server renders them."""
    tokenizer = getattr(backend, "tokenizer", None)
    if tokenizer is None or getattr(tokenizer, "chat_template", None):
        return ""
    return (
        "The model's tokenizer has no chat template: prompts are the contents of the messages, joined by blank lines, without roles. "
        "A model that was tuned for conversations was trained on another format; see docs/models.md."
    )


def encode_plain(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Tokens of a text as text: what spells a control token does not become one."""
    return tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def _marked(text: str, control: re.Pattern[str] | None) -> str:
    text = text.replace(_OPEN, "").replace(_CLOSE, "")
    return text if control is None else control.sub(f"{_OPEN}\\g<0>{_CLOSE}", text)


def _control_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """What must not be spelled: special tokens, and added ones that the template itself writes."""
    template = str(tokenizer.chat_template)
    added = tokenizer.added_tokens_decoder.values()
    texts = [token.content for token in added if token.special or (token.content in template and token.content.strip())]
    if not texts:
        return None
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)))


def end_ids(model: Any, tokenizer: Any) -> set[int]:
    """Ids that end a completion: the generation config's and the tokenizer's.

    Raises:
        ModelError: there are none, so no completion could ever end.
    """
    config = getattr(model, "generation_config", None)
    listed = getattr(config, "eos_token_id", None)
    named = [*(listed if isinstance(listed, list) else [listed]), tokenizer.eos_token_id]
    ids = {int(token) for token in named if token is not None}
    if not ids:
        raise ModelError(
            "Neither the model nor its tokenizer names an end-of-sequence token. Set one in the tokenizer."
        )
    return ids


class KnowsTokens:
    """What every backend does alike whose tokenizer is here (see `Backend`)."""

    tokenizer: Any

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt tokens by the tokenizer's chat template; without one, the contents joined by blank lines."""
        return encode_chat(self.tokenizer, messages)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Tokens of a text inside an answer; see `Backend.encode_text`."""
        return encode_plain(self.tokenizer, text)

    def count(self, messages: Sequence[Message]) -> int:
        """See `Backend.count`."""
        return len(self.encode(messages))

    def count_text(self, text: str) -> int:
        """See `Backend.count_text`."""
        return len(self.encode_text(text))
