"""Where a model is and how one gets in: base URL, key and version, from the config and the usual environment variables.

`OPENAI_API_KEY`, `OPENAI_BASE_URL`, `AZURE_OPENAI_API_KEY`, `AZURE_OPENAI_ENDPOINT`, `OPENAI_API_VERSION`. The key is held in
memory only: `scrubbed` takes it out of whatever a server says before anybody sees that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pydantic import ValidationError

from skill_ttrl.config import EndpointConfig, Role
from skill_ttrl.config.endpoints import plain_address
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.server_key import found_key

OPENAI = "https://api.openai.com/v1"
NO_KEY = "none"
"""Sent where a server of one's own asks for no key."""
HIDDEN = "[key]"
SHORTEST_KEY = 6
"""A shorter one is a word such as `none` or `EMPTY`, and no secret."""


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
        """True if no key is sent."""
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
                f"endpoints.{role} ({config.model!r} at {host}) needs a key, but the environment variable {key_variable} is not set. "
                f"Set it, or name another with endpoints.{role}.api_key_env."
            )
        key = NO_KEY
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"What the environment variable {key_variable} holds is no key: it has spaces or signs in it."
        )
    return Address(base_url, host, key, version, key_variable)


def _address_in(variable: str) -> str:
    found = os.environ.get(variable, "").strip()
    try:
        return found and plain_address(found)
    except (ValueError, ValidationError) as error:
        raise ConfigError(f"The environment variable {variable} is no usable address: {error}.") from None
