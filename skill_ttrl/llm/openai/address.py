"""Where a model is and how one gets in: base URL, key and version, from the config and the usual environment variables.

`OPENAI_API_KEY`, `OPENAI_BASE_URL`, `AZURE_OPENAI_API_KEY`, `AZURE_OPENAI_ENDPOINT`, `OPENAI_API_VERSION`. The key is held in
memory only: `scrubbed` takes it out of whatever a server says before anybody sees that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from skill_ttrl.config import EndpointConfig, Role
from skill_ttrl.config.endpoints import plain_address
from skill_ttrl.errors import ConfigError, MissingDependencyError
from skill_ttrl.llm.openai.failures import MalformedResponse
from skill_ttrl.llm.vllm.servers.key import found_key, is_localhost

OPENAI = "https://api.openai.com/v1"
NO_KEY = "none"
"""Sent where a server of one's own asks for no key."""
HIDDEN = "[key]"
SHORTEST_KEY = 6
"""A shorter one is a word such as `none` or `EMPTY`, and no secret."""
MOST_BYTES = 64 << 20
"""Longest answer that is read, unpacked: many samples with their log-probs have a few MiB."""
PACKINGS = ("", "identity", "gzip", "deflate")
"""Ways of packing an answer that are asked for: what they make of one piece has a bound."""


@dataclass(frozen=True)
class Address:
    """One model's server."""

    base_url: str
    host: str
    key: str = field(repr=False)
    api_version: str | None = None
    key_variable: str = ""

    @property
    def is_open(self) -> bool:
        """Whether no key is sent."""
        return self.key == NO_KEY

    def scrubbed(self, text: str) -> str:
        """The text without the key."""
        return text.replace(self.key, HIDDEN) if len(self.key) >= SHORTEST_KEY else text


def find_address(config: EndpointConfig, role: Role, key: str | None = None) -> Address:
    """The address of a role's model; `key` comes before that of the environment.

    Raises:
        ConfigError: a key, an address or a version is missing; the message names the variable that would hold it.
    """
    azure = config.provider == "azure"
    variable = "AZURE_OPENAI_ENDPOINT" if azure else "OPENAI_BASE_URL"
    base_url = config.base_url or _address_in(variable) or ("" if azure else OPENAI)
    if not base_url:
        raise ConfigError(
            f"endpoints.{role} is on Azure and has no address. Set endpoints.{role}.base_url=https://NAME.openai.azure.com, "
            f"or the environment variable {variable}."
        )
    version = None
    if azure:
        version = config.api_version or os.environ.get("OPENAI_API_VERSION", "").strip()
        if not version:
            raise ConfigError(
                f"endpoints.{role} is on Azure and has no version. Set endpoints.{role}.api_version, e.g. 2024-10-21, or the "
                "environment variable OPENAI_API_VERSION."
            )
    key_variable = config.api_key_env or ("AZURE_OPENAI_API_KEY" if azure else "OPENAI_API_KEY")
    own = found_key(base_url) if config.api_key_env is None and not azure else ""
    key = (key or own or os.environ.get(key_variable, "")).strip()
    host = urlsplit(base_url).netloc
    if not key:
        if azure or config.api_key_env is not None or host == urlsplit(OPENAI).netloc:
            raise ConfigError(
                f"endpoints.{role} asks {config.model!r} at {host} and needs a key, but the environment variable "
                f"{key_variable} is not set. Set it, or name another with endpoints.{role}.api_key_env."
            )
        key = NO_KEY
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"What the environment variable {key_variable} holds is no key: it has spaces or signs in it."
        )
    return Address(base_url, host, key, version, key_variable)


def connect(address: Address, config: EndpointConfig, role: Role) -> Any:
    """The SDK's client for an address: it knows paths, headers and versions; attempts are counted here, not there.

    Raises:
        MissingDependencyError: the package openai is not installed.
    """
    try:
        import openai
    except ImportError:
        raise MissingDependencyError.for_extra(f"endpoints.{role}", "openai") from None
    common: dict[str, Any] = {
        "api_key": address.key,
        "timeout": config.timeout,
        "max_retries": 0,
        "http_client": _connections(address, config, role),
    }
    if config.provider == "azure":
        return openai.AsyncAzureOpenAI(azure_endpoint=address.base_url, api_version=address.api_version, **common)
    return openai.AsyncOpenAI(base_url=address.base_url, **common)


def _connections(address: Address, config: EndpointConfig, role: Role) -> Any:
    """The SDK's connections, which read no more of an answer than memory has room for.

    Raises:
        ConfigError: a proxy or certificate that the environment names cannot be used.
    """
    import openai

    class Bounded(openai.DefaultAsyncHttpxClient):
        async def send(self, request: Any, **how: Any) -> Any:
            response = await super().send(request, **{**how, "stream": True})
            try:
                packing = response.headers.get("content-encoding", "").strip().lower()
                if packing not in PACKINGS:
                    raise MalformedResponse(f"its answer is packed as {packing}, which was not asked for")
                body = bytearray()
                async for piece in response.aiter_bytes():  # unpacked piece by piece: a small answer may be a large one
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise MalformedResponse(f"its answer has more than {MOST_BYTES >> 20} MiB")
            finally:
                await response.aclose()
            gone = ("content-encoding", "content-length", "transfer-encoding")
            headers = [pair for pair in response.headers.multi_items() if pair[0].lower() not in gone]
            return type(response)(response.status_code, headers=headers, content=bytes(body), request=request)

    name = urlsplit(address.base_url).hostname or ""
    near = f"[{name}]" if ":" in name else name
    try:
        return Bounded(
            timeout=config.timeout,
            headers={"accept-encoding": "gzip, deflate"},
            follow_redirects=False,  # a key must not travel on to another host
            mounts={f"all://{near}": None}
            if is_localhost(name)
            else None,  # a proxy cannot reach this machine's own servers
        )
    except Exception as error:  # whatever a proxy or a certificate of the environment makes of it
        raise ConfigError(
            f"endpoints.{role}: no connections can be made with this environment ({type(error).__name__}). A proxy in HTTP_PROXY, "
            "HTTPS_PROXY or ALL_PROXY is to be http://HOST:PORT, and SSL_CERT_FILE a file that is there; a server that is to "
            "be asked without the proxy stands in NO_PROXY."
        ) from None


def _address_in(variable: str) -> str:
    found = os.environ.get(variable, "").strip()
    if not found:
        return ""
    try:
        return plain_address(found)
    except (ValueError, ValidationError) as error:
        raise ConfigError(f"The environment variable {variable} is no usable address: {error}.") from None
