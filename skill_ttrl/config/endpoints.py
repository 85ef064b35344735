"""Section of a config: language models on servers with an OpenAI-compatible API.

It holds no secrets: a key is named by the environment variable that holds it.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from skill_ttrl.config.section import Section


class EndpointConfig(Section):
    """One language model on a server with an OpenAI-compatible API."""

    model: str
    """Name of the model, as the server knows it; on Azure the deployment's."""
    provider: Literal["openai", "azure"] = "openai"
    base_url: str | None = None
    """None: `OPENAI_BASE_URL`, else OpenAI's own; on Azure `AZURE_OPENAI_ENDPOINT`."""
    api_version: str | None = None
    """Azure's; None: `OPENAI_API_VERSION`."""
    api_key_env: str | None = None
    """Environment variable that holds the key; None: `OPENAI_API_KEY`, on Azure `AZURE_OPENAI_API_KEY`. Never the key itself."""
    server_type: Literal["openai", "vllm"] = "openai"
    """Extensions of the API that a policy's server supports. `vllm`: `top_k`, assistant prefixes, stop texts that stay in the answer,
    and choices (`agent.structured_actions`)."""
    logprobs: bool = False
    """Ask for the log-prob of each token, where the server offers them."""
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"
    """How a JSON answer is asked for; `none`: by the prompt alone."""
    max_tokens: int = Field(default=2048, ge=1)
    """Longest answer to a merger's or teacher's question; the policy's is `rollout.max_new_tokens`."""
    token_limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """Name of that limit in a request; older servers know only `max_tokens`."""
    temperature: float | None = Field(default=None, ge=0)
    """Of a merger or teacher; None: the server's own. The policy's is `rollout.temperature`."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request, e.g. `{reasoning_effort: low}`. No secrets: it is saved with the run."""
    timeout: float = Field(default=120, gt=0)
    """Seconds for one attempt."""
    max_concurrency: int = Field(default=8, ge=1)
    """Most requests on their way at once."""
    max_retries: int = Field(default=6, ge=0)
    """Further attempts after 408, 409, 429, 5xx, a dropped connection, a timeout or an answer that cannot be read. Pauses are those of
    the `openai` package: as long as `retry-after` asks for, else doubling from half a second."""
    price_in: float | None = Field(default=None, ge=0)
    """Per million prompt tokens, in any currency. None: 0 where `price_out` is set, else the cost is unknown."""
    price_cached: float | None = Field(default=None, ge=0)
    """Per million prompt tokens that the server had cached; None: `price_in`."""
    price_out: float | None = Field(default=None, ge=0)
    """Per million tokens of answers. None: 0 where `price_in` is set, else the cost is unknown."""

    @property
    def priced(self) -> bool:
        """True if the cost of a request is known."""
        return self.price_in is not None or self.price_out is not None

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, variable: str | None) -> str | None:
        if variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise ValueError("name the environment variable that holds the key, e.g. MY_KEY, never the key itself")
        return variable

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, address: str | None) -> str | None:
        return None if address is None else plain_address(address)


Role = Literal["policy", "teacher", "merger", "embeddings", "optimizer"]


class EndpointsConfig(Section):
    """Language models behind addresses, by what they do, and what a run may spend on them in all."""

    policy: EndpointConfig | None = None
    """Acts, for `rollout.backend: openai`."""
    teacher: EndpointConfig | None = None
    """Writes skills, for `distill.teacher: openai` and `evolve.teacher: openai`."""
    merger: EndpointConfig | None = None
    """Fuses what winners wrote, for `skills.merger: openai`."""
    embeddings: EndpointConfig | None = None
    """Turns texts into vectors, for `skills.embedder: openai`."""
    optimizer: EndpointConfig | None = None
    """Reflects on rollouts, merges and ranks edits, for `skillttrl optimize`."""
    max_cost: float | None = Field(default=None, gt=0)
    """Most that a run may cost by the prices above. A request that could exceed it is not sent: the run ends as if it were
    interrupted. None: no bound."""
    max_total_tokens: int | None = Field(default=None, ge=1)
    """Most tokens, of prompts and answers, that a run may use; as above."""
    max_requests: int | None = Field(default=None, ge=1)
    """Most requests that a run may send, repeated attempts included; as above."""

    @model_validator(mode="after")
    def _cost_can_be_known(self) -> EndpointsConfig:
        named = [each for role in get_args(Role) if (each := self.of(role))]
        if self.max_cost is not None and named and not any(each.price_in or each.price_out for each in named):
            raise ValueError(
                "max_cost never ends a run in which nothing has a price: set price_in and price_out of the models, or "
                "max_total_tokens or max_requests in its place"
            )
        return self

    def of(self, role: Role) -> EndpointConfig | None:
        """The model of one role."""
        found: EndpointConfig | None = getattr(self, role)
        return found


def plain_address(address: str) -> str:
    """An http address without its last slash. One in which a secret may stand is refused, since configs are saved: errors
    name no more of it than its host.
    """
    parts = urlsplit(address)
    if parts.username or parts.password:
        raise ValueError("an address must not hold a name or password: put the key into an environment variable")
    if parts.query or parts.fragment:
        raise ValueError("an address must not go on with ? or #: put a key into an environment variable (api_key_env)")
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in address or not address.isprintable():
        raise ValueError("an address begins with http:// or https:// and names a host, without spaces")
    try:
        parts.port  # noqa: B018 - read to be checked
    except ValueError:
        raise ValueError(f"the port of {parts.hostname} is no number up to 65535") from None
    return address.rstrip("/")
