"""The SDK's client for an address: it knows paths, headers and versions, and reads no more of an answer than memory has room for."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from skill_ttrl.config import EndpointConfig, Role
from skill_ttrl.errors import ConfigError, MissingDependencyError
from skill_ttrl.llm.openai.address import Address
from skill_ttrl.llm.openai.failures import MalformedResponse
from skill_ttrl.llm.server_key import is_localhost

MOST_BYTES = 64 << 20
"""Longest answer that is read, unpacked: many samples with their log-probs have a few MiB."""
PACKINGS = ("", "identity", "gzip", "deflate")
"""Ways of packing an answer that are asked for: what they make of one piece has a bound."""


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
    mounts = {f"all://{near}": None} if is_localhost(name) else None  # a proxy cannot reach this machine's own servers
    try:
        return Bounded(
            timeout=config.timeout,
            headers={"accept-encoding": "gzip, deflate"},
            follow_redirects=False,  # a key must not travel on to another host
            mounts=mounts,
        )
    except Exception as error:  # whatever a proxy or a certificate of the environment makes of it
        raise ConfigError(
            f"endpoints.{role}: no connections can be made with this environment ({type(error).__name__}). A proxy in HTTP_PROXY, "
            "HTTPS_PROXY or ALL_PROXY is to be http://HOST:PORT, and SSL_CERT_FILE a file that is there; a server that is to "
            "be asked without the proxy stands in NO_PROXY."
        ) from None
