"""What the SDK raises, as a `Failure`, and what a user is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_ttrl.config import EndpointConfig, Role
from skill_ttrl.llm.address import Address
from skill_ttrl.llm.attempts import Failure, Unreadable, of_status

LONGEST = 400
"""Characters of what a server says that are shown."""


def failure_of(error: Exception, address: Address) -> Failure | None:
    """What an exception of one attempt means; None for one that is no failure of the attempt but a fault of this program."""
    import openai

    unreadable = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
    if isinstance(unreadable, Unreadable):
        return Failure("unreadable", short(address.scrubbed(str(unreadable))), again=True)
    if isinstance(error, openai.APIStatusError):
        code, parameter, said = _stated(error.body, error.response.text)
        found = of_status(error.status_code, code, short(address.scrubbed(said)), _lower(error.response.headers))
        named = None if parameter is None else short(address.scrubbed(parameter))
        return Failure(found.kind, found.said, found.again, found.wait, found.status, named)
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return Failure("timeout", "there was no answer in time", again=True)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        kind = "unreachable" if type(cause).__name__ == "ConnectError" else "dropped"
        said = f"{type(cause).__name__}: {cause}".rstrip(": ")
        return Failure(kind, short(address.scrubbed(said)), again=True)
    if isinstance(error, UnicodeDecodeError):
        return Failure("unreadable", "its answer is no text", again=True)
    return None


def explained(failure: Failure, role: Role, config: EndpointConfig, address: Address, attempts: int) -> str:
    """What was asked of whom, what was said, and what to do."""
    status = f" ({failure.status})" if failure.status is not None else ""
    tries = f", {attempts} times" if attempts > 1 else ""
    parameter = f" It names the field {failure.parameter!r}." if failure.parameter else ""
    asked = f"endpoints.{role}: {config.model!r} at {address.host}"
    found = f"{_FOUND.get(failure.kind, 'failed')}{status}{tries}: {failure.said.rstrip('.')}."
    return f"{asked} {found}{parameter} {_remedy(failure, role, config, address)}"


_FOUND = {
    "unauthorized": "does not accept the key",
    "forbidden": "does not let this key in",
    "not_found": "was not found",
    "refused": "refused the request",
    "too_long": "refused the request",
    "quota": "is not paid for any more",
    "rate_limited": "was asked too often",
    "overloaded": "is overloaded",
    "server_error": "failed",
    "conflict": "failed",
    "timeout": "did not answer",
    "dropped": "dropped the connection",
    "unreachable": "cannot be reached",
    "unreadable": "gave an answer that cannot be read",
    "redirected": "sends to another address, which the key is not sent to",
}


def _remedy(failure: Failure, role: Role, config: EndpointConfig, address: Address) -> str:
    here = f"endpoints.{role}"
    if failure.kind in ("unauthorized", "forbidden"):
        if address.key_variable and address.is_open:
            return f"No key was sent: set the environment variable {address.key_variable}, or {here}.api_key_env."
        return f"Check the key in the environment variable {address.key_variable}, and that it may use this model."
    if failure.kind == "not_found":
        what = "the deployment's name and the version" if config.provider == "azure" else "the model's name"
        return f"Check {what} and {here}.base_url ({address.base_url})."
    if failure.kind in ("refused", "too_long"):
        return (
            f"Check that {here} suits this server: api, token_limit_field, structured, logprobs, extra_body (a field that is "
            "null there is not sent), and the length of the prompt."
        )
    if failure.kind == "quota":
        return "Add credit, or name another model; what was begun can be gone on with."
    if failure.kind == "redirected":
        return f"Give that address as {here}.base_url."
    if failure.wait is not None and failure.wait > config.max_wait:
        return f"It asks for a pause of {failure.wait:g} s, more than {here}.max_wait ({config.max_wait:g} s): raise it, or try later."
    if failure.kind == "timeout":
        return f"Raise {here}.timeout ({config.timeout:g} s), or lower {here}.max_concurrency."
    if failure.kind == "unreachable":
        return f"Check that the server runs and that {here}.base_url ({address.base_url}) is right."
    return f"Try later, or raise {here}.max_retries ({config.max_retries})."


def _stated(body: Any, text: str) -> tuple[str | None, str | None, str]:
    """Code, field and message of an error, wherever the server puts them."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(error, Mapping):
        said = error.get("message") or error.get("detail") or text
        code = error.get("code") or error.get("type")
        parameter = error.get("param")
        return _named(code), _named(parameter), str(said)
    return None, None, str(error or text or "it says nothing")


def _named(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def short(text: str) -> str:
    """What a server says, on one line that a terminal can be shown."""
    text = " ".join(printable(text[: 4 * LONGEST]).split()) or "it says nothing"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def printable(text: str) -> str:
    """The text without signs that act and do not show, such as a terminal's escape codes."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in " ".join(text.split()))


def _lower(headers: Any) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}
