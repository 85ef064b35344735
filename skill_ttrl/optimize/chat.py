"""The optimizer's model: an endpoint of the config, or a client of the user's, both counted and bounded by one ledger."""

from __future__ import annotations

from skill_ttrl.config import EndpointsConfig, Role
from skill_ttrl.llm.backend import wait_for
from skill_ttrl.llm.openai.client import make_client
from skill_ttrl.llm.openai.ledger import Ledger, asked_in
from skill_ttrl.optimize.calls import Reply
from skill_ttrl.types import Message


class EndpointChat:
    """The `ChatFn` of an endpoint; no other role stands in for one that is missing.

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
