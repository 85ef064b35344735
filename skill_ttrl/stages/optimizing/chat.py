"""The optimizer's model: one answer of `endpoints.optimizer` to a request of the loop."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from skill_ttrl.config import EndpointsConfig
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import make_client
from skill_ttrl.optimize.calls import Reply
from skill_ttrl.types import Message


class EndpointChat:
    """The `ChatFn` of `endpoints.optimizer`; a context manager that ends its connections.

    Raises:
        ConfigError: there is no such endpoint, or its key or address is missing.
        MissingDependencyError: the package openai is not installed.
    """

    def __init__(self, endpoints: EndpointsConfig) -> None:
        self._client = make_client(endpoints, "optimizer")

    def __call__(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
        """See `optimize.calls.ChatFn`. An answer that was refused, filtered or cut off is what there is of it."""
        messages = (*([Message("system", system)] if system else []), Message("user", user))
        found = wait_for(self._client.chat(messages, max_tokens=max_tokens))
        return Reply(found.text, found.usage.prompt, found.usage.answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.shut()
