"""Clients of language models under `skillrl`'s names: the interface, and the one for OpenAI's protocol.

`OpenAIChatClient` is a face of this project's own client (`llm/openai`): its retries, its bounds on what an answer may be,
its ledger and budget. A request that comes to nothing is an `EndpointError`, not an empty answer: whoever asks counts it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any

from pydantic import ValidationError

from skill_ttrl.config import EndpointConfig, Role
from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import Client
from skill_ttrl.llm.openai.ledger import asked_in
from skill_ttrl.types import Message, first_problem

SENT_PER_RETRY = 3
"""skillrl's SDK sends each of its `retries` attempts up to three times."""
NEW_LIMIT, OLD_LIMIT = "max_completion_tokens", "max_tokens"


class BaseLLMClient(ABC):
    """A language model that is asked for one answer at a time, from several threads at once."""

    model: str = ""
    """Name of the model, for logs."""

    @abstractmethod
    def chat(
        self,
        *,
        system: str,
        user: str,
        max_completion_tokens: int = 4096,
        temperature: float | None = None,
        stage: str = "",
        retries: int = 3,
        **kwargs: Any,
    ) -> tuple[str, dict[str, Any]]:
        """One answer and what it took.

        Args:
            system: the instructions.
            user: the question.
            max_completion_tokens: longest answer.
            temperature: of the sampling; None: the client's own choice.
            stage: the stage that asks: `rollout`, `analyst`, `merge`, `ranking`.
            retries: attempts where the connection or the server fails.
            kwargs: further fields of the request, where the client knows any.

        Returns:
            The text, perhaps empty, and a dictionary with `prompt_tokens`, `completion_tokens` and `total_tokens`.

        Raises:
            EndpointError: no answer came; the trainer counts it.
        """
        raise NotImplementedError


class OpenAIChatClient(BaseLLMClient):
    """Chat models behind OpenAI's protocol: OpenAI, Azure, vLLM and any other server of the protocol.

    Args:
        model: name of the model, on Azure of the deployment.
        api_key: the key; None: `OPENAI_API_KEY`, on Azure `AZURE_OPENAI_API_KEY`. Your own server needs none.
        base_url: address of the server; None: `OPENAI_BASE_URL`, else OpenAI's own.
        azure_endpoint: address on Azure; makes this an Azure client.
        api_version: version of Azure's interface.
        default_temperature: temperature where `chat` is given none; None: not sent.
        timeout: seconds for one attempt.

    Raises:
        ConfigError: an address or a value cannot be used, or a key is missing.
        MissingDependencyError: the package openai is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        azure_endpoint: str | None = None,
        api_version: str | None = None,
        default_temperature: float | None = None,
        timeout: float = 120.0,
    ) -> None:
        self.model, self.default_temperature, self.timeout = model, default_temperature, timeout
        self._key, self._api_version = api_key, api_version
        self._lock = threading.Lock()
        self._clients: dict[tuple[Role, int], Client] = {}
        self._limit_field = NEW_LIMIT
        try:
            self._config = EndpointConfig(
                model=model,
                provider="azure" if azure_endpoint else "openai",
                base_url=azure_endpoint or base_url,
                temperature=default_temperature,
                timeout=timeout,
                max_concurrency=64,  # the caller's threads are the bound
            )
            self._client("optimizer", 3)  # a missing key is found now
        except ValidationError as error:
            raise ConfigError(f"OpenAIChatClient({model!r}): {first_problem(error)}") from None
        except ConfigError as error:
            raise ConfigError(f"OpenAIChatClient({model!r}): {error} Or pass api_key=, base_url= here.") from None

    def chat(
        self,
        *,
        system: str,
        user: str,
        max_completion_tokens: int = 4096,
        temperature: float | None = None,
        stage: str = "",
        retries: int = 3,
        **kwargs: Any,
    ) -> tuple[str, dict[str, Any]]:
        """One answer and what it took; see `BaseLLMClient`. `kwargs` are sent as fields of the request.

        A server that accepts only the older `max_tokens` gets that from then on.

        Raises:
            EndpointError: no answer came, after the retries; `kind` says why.
            BudgetError: the budget of the ledger in use is spent.
        """
        messages = [Message("system", system or ""), Message("user", user or "")]
        role: Role = "policy" if stage == "rollout" else "optimizer"

        def answer(limit_field: str) -> tuple[str, dict[str, Any]]:
            limit = {NEW_LIMIT: None, limit_field: max_completion_tokens}
            with asked_in(stage or "other"):
                reply = wait_for(
                    self._client(role, retries).chat(messages, temperature=temperature, extra={**limit, **kwargs})
                )
            used = {"prompt_tokens": reply.usage.prompt, "completion_tokens": reply.usage.answer}
            total = {"total_tokens": reply.usage.prompt + reply.usage.answer}
            return reply.text.strip(), {**used, **total, "calls": 1, "stage": stage}

        limit_field = self._limit_field
        try:
            return answer(limit_field)
        except EndpointError as error:
            if limit_field != NEW_LIMIT or error.kind != "refused" or NEW_LIMIT not in str(error):
                raise
        found = answer(OLD_LIMIT)
        self._limit_field = OLD_LIMIT
        return found

    def close(self) -> None:
        """End the connections. Safe to call twice."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.shut()

    def _client(self, role: Role, retries: int) -> Client:
        """This project's client for a role: what a request is for stands in the ledger."""
        with self._lock:
            if (role, retries) not in self._clients:
                config = self._config.model_copy(update={"max_retries": SENT_PER_RETRY * max(1, retries) - 1})
                self._clients[role, retries] = Client(config, role, key=self._key, api_version=self._api_version)
            return self._clients[role, retries]
