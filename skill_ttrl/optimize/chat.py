"""The optimizer's model: an endpoint of the config, or a client of the user's, both counted and bounded by one ledger."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from skill_ttrl.config import EndpointConfig, EndpointsConfig, Role
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import make_client, most_cost, most_tokens
from skill_ttrl.llm.openai.ledger import CountedRequest, Ledger, Spend, Tokens, asked_in
from skill_ttrl.llm.openai.replies import tokens_in_text
from skill_ttrl.optimize.calls import Reply
from skill_ttrl.optimize.skillrl.clients import BaseLLMClient, OpenAIChatClient
from skill_ttrl.types import Message


class EndpointChat:
    """The `ChatFn` of an endpoint; a context manager that ends its connections. No other role stands in for one that is missing.

    Requests stand in the ledger under the stage that asks. Temperature, prices, retries and time limits are those of the config.

    Args:
        endpoints: the section of the config.
        role: which of them is asked.
        ledger: where requests are counted; None: the ledger of the caller's context (`track_usage`).

    Raises:
        ConfigError: there is no such endpoint, or its key or address is missing.
        MissingDependencyError: the package openai is not installed.
    """

    def __init__(self, endpoints: EndpointsConfig, role: Role = "optimizer", ledger: Ledger | None = None) -> None:
        self._client = make_client(endpoints, role, ledger)

    def __call__(self, system: str, user: str, *, max_tokens: int, stage: str) -> Reply:
        """See `optimize.calls.ChatFn`. An answer that was refused, filtered or cut off is what there is of it."""
        messages = (*([Message("system", system)] if system else []), Message("user", user))
        with asked_in(stage):
            found = wait_for(self._client.chat(messages, max_tokens=max_tokens))
        return Reply(found.text, found.usage.prompt, found.usage.answer)

    def close(self) -> None:
        """End the connections. Safe to call twice."""
        self._client.shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def metered(client: BaseLLMClient, ledger: Ledger | None = None, prices: EndpointConfig | None = None) -> BaseLLMClient:
    """A client whose requests are counted and bounded by a ledger.

    The tokens are those that the client says, else a quarter of the bytes. Each call is one request: the client's own retries are seen
    by nobody. `OpenAIChatClient` is given back as it is: it counts its requests itself, in the ledger of the caller's context.

    Args:
        client: any that has skillrl's `chat`.
        ledger: None: the ledger of the caller's context (`track_usage`).
        prices: an endpoint's `price_in`, `price_cached` and `price_out`; None: the cost is unknown.
    """
    return client if isinstance(client, OpenAIChatClient | _Metered) else _Metered(client, ledger, prices)


class _Metered(BaseLLMClient):
    def __init__(self, client: BaseLLMClient, ledger: Ledger | None, prices: EndpointConfig | None) -> None:
        self.model = str(getattr(client, "model", "")) or type(client).__name__
        self._client, self._ledger, self._prices = client, ledger, prices

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
        """One answer and what it took; see `BaseLLMClient`.

        Raises:
            BudgetError: the budget has no room for the request.
        """
        prompt = most_tokens([system, user], 2)
        cost = most_cost(prompt, max_completion_tokens, self._prices) if self._prices is not None else 0.0
        most = Spend(prompt + max_completion_tokens, cost, 1)
        role = "policy" if stage == "rollout" else "optimizer"
        with (
            asked_in(stage or "other"),
            CountedRequest(role, self.model, most, ledger=self._ledger, prices=self._prices) as request,
        ):
            request.attempts = 1
            text, usage = self._client.chat(
                system=system,
                user=user,
                max_completion_tokens=max_completion_tokens,
                temperature=temperature,
                stage=stage,
                retries=retries,
                **kwargs,
            )
            request.tokens = _said(usage) or Tokens(
                tokens_in_text(system + user), 0, tokens_in_text(str(text)), estimated=True
            )
            request.outcome = "ok" if text else "empty"
        return text, usage


def _said(usage: Any) -> Tokens | None:
    """Tokens as a client says them; None where it says none."""
    if not isinstance(usage, Mapping):
        return None
    prompt, answer = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(answer, int) or min(prompt, answer) < 0 or not prompt + answer:
        return None
    return Tokens(prompt, 0, answer)
