"""The most that one request can take, by what is asked: what a budget reserves for it before it is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from skill_ttrl.config import EndpointConfig, ModelConfig, Role
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.chat import encode_chat, encode_plain
from skill_ttrl.llm.openai.budget import Spend
from skill_ttrl.types import Message

AROUND_A_TEXT = 16
"""Most tokens that a chat template adds around a message, in addition to its role."""
AROUND_ALL = 128
"""Most tokens that a chat template adds around a conversation, e.g. a system message of its own."""
ANSWER_LIMITS = ("max_completion_tokens", "max_tokens")
ASKED = ("messages", "prompt", "input")


class RequestBounds:
    """Bounds of requests to one model.

    A prompt is counted by `endpoints.ROLE.tokenizer`. Without one its bytes are taken: no tokenizer that works on bytes makes more
    tokens than that.
    """

    def __init__(self, config: EndpointConfig, role: Role) -> None:
        self._config, self._role = config, role

    def of(self, body: Mapping[str, Any], *, answers: bool) -> Spend:
        """The most that a request can take.

        Args:
            body: what is sent.
            answers: False for embeddings, which write nothing.

        Raises:
            ConfigError: the body bounds no answer.
        """
        prompt = self._prompt(body)
        answer = self._answer(body) if answers else 0
        return Spend(prompt + answer, most_cost(prompt, answer, self._config), 1)

    def _prompt(self, body: Mapping[str, Any]) -> int:
        messages = body.get("messages") or ()
        asked = body.get("input") or body.get("prompt") or ()
        texts = [asked] if isinstance(asked, str) else list(asked)
        if self._tokenizer is None:
            return most_tokens([_json(body)], len(messages), len(texts))
        exact = sum(len(encode_plain(self._tokenizer, text)) for text in texts)
        if messages:
            exact += len(encode_chat(self._tokenizer, [Message(each["role"], each["content"]) for each in messages]))
        form = body.get("response_format")  # some servers write it into the prompt
        return exact + (0 if form is None else len(_json(form)))

    def _answer(self, body: Mapping[str, Any]) -> int:
        limits: list[int] = [body[name] for name in ANSWER_LIMITS if isinstance(body.get(name), int)]
        if not limits:
            raise ConfigError(
                f"endpoints.{self._role}.extra_body takes the limit of an answer ({self._config.token_limit_field}) out of the requests, so "
                "no budget can be promised. Leave the limit in, or set no budget."
            )
        counts: list[int] = [body[name] for name in ("n", "best_of") if isinstance(body.get(name), int)]
        return max(limits) * max([1, *counts])

    @cached_property
    def _tokenizer(self) -> Any:
        if self._config.tokenizer is None:
            return None
        from skill_ttrl.llm.models.load import load_tokenizer

        return load_tokenizer(ModelConfig(path=self._config.tokenizer))


def most_tokens(written: Sequence[str], messages: int, texts: int = 0) -> int:
    """The most tokens that a prompt of so many messages, or of plain texts, can have.

    Args:
        written: all that stands in it.
        messages: those of a conversation, which a template surrounds.
        texts: those without a template: a tokenizer adds its marks of a beginning and an end.
    """
    written_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in written)
    return written_bytes + (messages + texts) * AROUND_A_TEXT + (AROUND_ALL if messages else 0)


def most_cost(prompt: int, answer: int, prices: EndpointConfig) -> float:
    """The most that so many tokens can cost; 0 without prices."""
    dearest = max(prices.price_in or 0.0, prices.price_cached or 0.0)
    return (prompt * dearest + answer * (prices.price_out or 0.0)) / 1e6


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
