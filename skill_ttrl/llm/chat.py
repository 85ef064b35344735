"""Conversations as tokens, in which control tokens are the chat template's alone.

A question that spells `<|im_end|>` must stay text and end no turn. transformers can do this itself from 5.20 on
(`sanitize_control_tokens`), older versions hand the unknown argument to the template and say nothing; vLLM holds the older
ones fast, so it is done here, the same way, for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backend import Request
from skill_ttrl.types import Message

_OPEN, _CLOSE = "\ue000\ue001", "\ue001\ue000"
"""Private-use characters around a control token in a message; taken out of messages first, so they cannot be forged."""


def encode_chat(tokenizer: Any, messages: Sequence[Message]) -> tuple[int, ...]:
    """Tokens of a conversation up to where the assistant begins; without a template, the contents joined by blank lines."""
    return encode_chats(tokenizer, [messages])[0]


def encode_chats(tokenizer: Any, conversations: Sequence[Sequence[Message]]) -> list[tuple[int, ...]]:
    """`encode_chat` of many conversations: a fast tokenizer takes less time for all of them together."""
    if not getattr(tokenizer, "chat_template", None):
        texts = ["\n\n".join(message.content for message in messages) for messages in conversations]
        return [tuple(ids) for ids in tokenizer(texts, split_special_tokens=True)["input_ids"]] if texts else []
    control = _control_tokens(tokenizer)
    split = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)
    turns = [
        [{"role": message.role, "content": _marked(message.content, control)} for message in messages]
        for messages in conversations
    ]
    texts = render(tokenizer, turns, add_generation_prompt=True) if turns else []
    pieces = [split.split(text) for text in texts]
    ours = _encode_all(tokenizer, (piece for row in pieces for piece in row[::2]))
    theirs = _encode_all(tokenizer, (piece for row in pieces for piece in row[1::2]), split_special_tokens=True)
    return [
        tuple(chain.from_iterable((theirs if place % 2 else ours)[piece] for place, piece in enumerate(row) if piece))
        for row in pieces
    ]


def render(tokenizer: Any, turns: Sequence[Any], **options: bool) -> Any:
    """Render one conversation, or each of several, with the model's chat template: as text, not yet tokenized.

    Raises:
        ModelError: the template takes no such conversation (many refuse a system message), or is broken.
    """
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(turns, tokenize=False, **options)
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        reason = " ".join(str(error).split())[:300]
        first = turns[0] if turns and isinstance(turns[0], list) else turns
        raise ModelError(
            f"The chat template of the model cannot write a conversation such as {', '.join(turn['role'] for turn in first)}: {reason}. Where "
            "it has no place for a system message set agent.system=null (and agent.document_as=prompt where there is a document); else correct chat_template.jinja beside the tokenizer."
        ) from error


def _encode_all(tokenizer: Any, texts: Iterable[str], **options: bool) -> dict[str, list[int]]:
    """Tokens by text, each text once."""
    different = [text for text in dict.fromkeys(texts) if text]
    if not different:
        return {}
    found = tokenizer(different, add_special_tokens=False, return_attention_mask=False, **options)["input_ids"]
    return dict(zip(different, found, strict=True))


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


def _marked(text: str, control: re.Pattern[str]) -> str:
    return control.sub(f"{_OPEN}\\g<0>{_CLOSE}", text.replace(_OPEN, "").replace(_CLOSE, ""))


def _control_tokens(tokenizer: Any) -> re.Pattern[str]:
    """Matches what must not be spelled: special tokens, and added ones that the template itself writes."""
    template = str(tokenizer.chat_template)
    added = tokenizer.added_tokens_decoder.values()
    texts = [token.content for token in added if token.special or (token.content in template and token.content.strip())]
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # which never matches


def end_ids(model: Any, tokenizer: Any) -> set[int]:
    """Ids that end a completion: the generation config's and the tokenizer's.

    Raises:
        ModelError: there are none, so no completion could ever end.
    """
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    named = [*(listed if isinstance(listed, list) else [listed]), tokenizer.eos_token_id]
    ids = {int(token) for token in named if token is not None}
    if not ids:
        raise ModelError(
            "Neither the model nor its tokenizer names an end-of-sequence token. Set one in the tokenizer."
        )
    return ids


class TokenizerMixin:
    """What every backend does alike whose tokenizer is here (see `Backend`)."""

    tokenizer: Any

    def prompts(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Prompt tokens of each request."""
        return [self.encode(each.messages) if each.token_ids is None else each.token_ids for each in requests]

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
