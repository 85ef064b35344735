"""Sections of a config for what answers outside the learner: remote models, an agent program, vLLM engines and servers.

They hold no secrets: a key is named by the environment variable that holds it.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, field_serializer, field_validator, model_validator

from skill_ttrl.config.section import Section
from skill_ttrl.errors import ConfigError


class EndpointConfig(Section):
    """A language model on a server with an OpenAI-compatible API, and how it is asked."""

    model: str = ""
    """Name of the model on the server; on Azure, of the deployment."""
    provider: Literal["openai", "azure"] = "openai"
    base_url: str | None = None
    """None: `OPENAI_BASE_URL`, else OpenAI's own; on Azure `AZURE_OPENAI_ENDPOINT`."""
    api_key_env: str | None = None
    """Environment variable that holds the key; None: `OPENAI_API_KEY`, on Azure `AZURE_OPENAI_API_KEY`. Never the key itself."""
    server_type: Literal["openai", "vllm"] = "openai"
    """Extensions of the API that a policy's server supports. `vllm`: `top_k`, assistant prefixes, and stop texts that stay in the answer."""
    logprobs: bool = False
    """Request the log-prob of each token of a policy, if the server offers it."""
    max_tokens: int = Field(default=2048, ge=1)
    """Longest answer of a merger or teacher, in tokens. For a policy, `rollout.max_new_tokens` applies."""
    temperature: float | None = Field(default=None, ge=0)
    """Temperature of a merger or teacher; None: the server's default. For a policy, `rollout.temperature` applies."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request, e.g. `{reasoning_effort: low}`, in place of those of the same name; one that is null is not sent. No
    secrets: it is saved with the run."""
    timeout: float = Field(default=120, gt=0)
    """Seconds for one attempt."""
    max_concurrency: int = Field(default=8, ge=1)
    """Most concurrent requests of a role."""
    max_retries: int = Field(default=6, ge=0)
    """Retries after 408, 409, 429, 5xx, a dropped connection, a timeout or an unreadable answer. The `openai` package sets the pauses: as
    long as `retry-after` asks for, otherwise doubling from half a second."""
    price_in: float | None = Field(default=None, ge=0)
    """Price per million prompt tokens, in any currency. None: 0 if `price_out` is set, otherwise the cost is unknown."""
    price_out: float | None = Field(default=None, ge=0)
    """Price per million completion tokens. None: 0 if `price_in` is set, otherwise the cost is unknown."""

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
ROLES: tuple[Role, ...] = get_args(Role)


class EndpointsConfig(EndpointConfig):
    """Remote language models, and the total budget of a run for them. What stands here holds for every role, but `model` not for
    `embeddings`.
    """

    roles: dict[Role, EndpointConfig] = Field(default_factory=dict)
    """Settings of single roles, in place of those above: `{teacher: {model: o3, api_key_env: MY_KEY}}`. `policy`: for `rollout.backend: openai`.
    `teacher` writes skills, for `distill.teacher: openai` and `evolve.teacher: openai`. `merger` merges what winners wrote, for
    `skills.merger: openai`. `embeddings` embeds texts, for `skills.embedder: openai`. `optimizer` reflects on rollouts, merges and ranks
    edits, for `skillttrl optimize`."""
    max_cost: float | None = Field(default=None, gt=0)
    """Largest total cost of the run at the prices above. A request that could exceed it is not sent, and the run ends as if it were
    interrupted. None: unlimited."""
    max_total_tokens: int | None = Field(default=None, ge=1)
    """Largest total number of prompt and completion tokens, enforced in the same way."""
    max_requests: int | None = Field(default=None, ge=1)
    """Largest number of requests, retries included, enforced in the same way."""

    @model_validator(mode="after")
    def _cost_can_be_known(self) -> EndpointsConfig:
        named = [each for role in ROLES if (each := self.of(role))]
        if self.max_cost is not None and named and not any(each.price_in or each.price_out for each in named):
            raise ValueError(
                "max_cost has no effect without prices: set price_in and price_out of the models, or use max_total_tokens or max_requests instead"
            )
        return self

    @field_serializer("roles")
    def _only_what_differs(self, roles: dict[Role, EndpointConfig]) -> dict[str, Any]:
        return {role: own.model_dump(mode="json", exclude_unset=True) for role, own in roles.items()}

    def of(self, role: Role) -> EndpointConfig | None:
        """The model of one role; None where none is named."""
        shared = {name: getattr(self, name) for name in EndpointConfig.model_fields}
        own = self.roles[role].model_dump(exclude_unset=True) if role in self.roles else {}
        if role == "embeddings":
            shared["model"] = ""  # a model that chats embeds nothing
        found = EndpointConfig.model_validate(shared | own)
        return found if found.model else None


def plain_address(address: str) -> str:
    """An http address without its last slash. One in which a secret may stand is refused, since configs are saved: errors
    name no more of it than its host.
    """
    parts = urlsplit(address)
    if parts.username or parts.password:
        raise ValueError(
            "an address must not contain a user name or password: put the key into an environment variable"
        )
    if parts.query or parts.fragment:
        raise ValueError("an address must not contain ? or #: put a key into an environment variable (api_key_env)")
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in address or not address.isprintable():
        raise ValueError("an address must start with http:// or https:// and a host, without spaces")
    try:
        parts.port  # noqa: B018 - read to be checked
    except ValueError:
        raise ValueError(f"the port of {parts.hostname} is not a number up to 65535") from None
    return address.rstrip("/")


def split_command(line: str) -> list[str]:
    """A program and its arguments, as a shell would split them.

    Raises:
        ConfigError: a quote is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"{line!r} cannot be split into a program and its arguments: {error}.") from None


class ProgramConfig(Section):
    """A program of yours that plays each episode: it is given the task, calls the model at `OPENAI_BASE_URL`, and prints its answer."""

    argv: list[str]
    """The program and its arguments, as a list or as one text that is split like a shell command; no shell runs it. A relative path among
    the arguments (`agent.py`) starts from the current folder. Short: `--agent`."""
    env: list[str] = Field(default_factory=list)
    """Names of environment variables to pass to the program, in addition to the usual ones (PATH, HOME, language and time zone). Never
    values."""

    @field_validator("argv", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return split_command(given) if isinstance(given, str) else given

    @field_validator("argv")
    @classmethod
    def _names_a_program(cls, argv: list[str]) -> list[str]:
        if not argv or not argv[0] or any("\0" in each for each in argv):
            raise ValueError("argv names a program and its arguments, e.g. [python, my_agent.py]")
        return argv

    @field_validator("env")
    @classmethod
    def _are_names(cls, names: list[str]) -> list[str]:
        for name in names:
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise ValueError(f"env holds names of variables, not values; found {name[:20]!r}")
        return names


class VLLMConfig(Section):
    """How vLLM samples and follows the learner, for `rollout.backend: vllm`."""

    mode: Literal["colocate", "server"] = "colocate"
    """`colocate`: inside this process, on the learner's device. `server`: running servers (`skillttrl serve`)."""
    servers: list[str] = Field(default_factory=list)
    """Addresses of the servers, e.g. `http://127.0.0.1:8000`; requests are spread over them."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Longest prompt and completion together, in tokens; None: the sum of the config's limits."""
    max_num_seqs: int = Field(default=256, ge=1)
    """Most sequences decoded at once."""
    gpu_memory_utilization: float = Field(default=0.45, gt=0, le=1)
    """Share of the GPU's memory for the engine; the learner needs the rest."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    weight_sync: Literal["full", "lora"] = "full"
    """Weights sent to a colocated engine after each step: all of them (adapters merged), or only the adapters. Servers get all of them."""
    enable_sleep_mode: bool = False
    """If engine and learner share a GPU: the engine releases its memory while the learner computes."""
    weight_transfer_dir: str | None = None
    """Folder for handing weights to a server, which must see the same folder. None: shared memory, otherwise the temporary folder."""

    @field_validator("servers")
    @classmethod
    def _are_addresses(cls, servers: list[str]) -> list[str]:
        return [plain_address(address) for address in servers]

    @model_validator(mode="after")
    def _servers_are_named(self) -> VLLMConfig:
        if self.servers and self.mode != "server":
            raise ValueError("servers need vllm.mode=server; set it, or remove them")
        return self
