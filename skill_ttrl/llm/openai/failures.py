"""Failures of requests to a remote model: their kind, and the message for the user.

The SDK has repeated what may pass (408, 409, 429, 5xx, a dropped connection, a timeout) before a failure gets here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from skill_ttrl.config import EndpointConfig, Role
from skill_ttrl.errors import EndpointError
from skill_ttrl.llm.openai.address import Address

LONGEST = 400
"""Most characters of a server's message that are shown."""
STATUS = {
    **{401: "unauthorized", 402: "quota", 403: "forbidden", 404: "not_found", 413: "too_long"},
    **{408: "timeout", 409: "conflict", 429: "rate_limited"},
}
EMPTY_ACCOUNT = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
"""Codes of a 429 that no pause cures."""
FATAL_KINDS = frozenset({"unauthorized", "forbidden", "not_found", "quota", "unreachable", "redirected"})
"""Kinds of failure that would affect every request, not only this one."""
_N = re.compile(r"(?<![\w.])n(?![\w.])")

_CHECK = (
    "Check that {here} suits this server: api, token_limit_field, structured, logprobs, extra_body (a field that is null there is not "
    "sent), and the length of the prompt."
)
_LATER = "Try later, or raise {here}.max_retries ({config.max_retries})."
_KEY = "Check the key in the environment variable {address.key_variable}, and that it may use this model."
_MESSAGES = {
    "unauthorized": ("does not accept the key", _KEY),
    "forbidden": ("does not let this key in", _KEY),
    "not_found": ("was not found", "Check {what} and {here}.base_url ({address.base_url})."),
    "refused": ("refused the request", _CHECK),
    "too_long": ("refused the request", _CHECK),
    "quota": ("is not paid for any more", "Add credit, or name another model; the same command then continues."),
    "rate_limited": ("got too many requests", _LATER),
    "server_error": ("failed", _LATER),
    "conflict": ("failed", _LATER),
    "timeout": ("did not answer", "Raise {here}.timeout ({config.timeout:g} s), or lower {here}.max_concurrency."),
    "dropped": ("dropped the connection", _LATER),
    "unreachable": (
        "cannot be reached",
        "Check that the server runs and that {here}.base_url ({address.base_url}) is right.",
    ),
    "unreadable": ("returned an answer that cannot be read", _LATER),
    "redirected": ("sends to another address, which the key is not sent to", "Give that address as {here}.base_url."),
}
"""What is said of a kind of failure, and what to do."""


class MalformedResponse(ValueError):
    """An answer that is no JSON, or lacks what it must have."""


class RefusedCount(EndpointError):
    """The server refused a request for several answers and named `n`."""


def failure_of(
    error: Exception, config: EndpointConfig, role: Role, address: Address, attempts: int
) -> EndpointError | None:
    """What the user is told of an exception of the SDK; None for an exception that is a bug in this program."""
    import openai

    status, parameter, pause = None, "", ""
    cause = error.__cause__ or error
    if isinstance(error, MalformedResponse) or isinstance(cause, MalformedResponse):
        kind, said = "unreadable", str(error if isinstance(error, MalformedResponse) else cause)
    elif isinstance(error, openai.APIStatusError):
        stated = error.body if isinstance(error.body, Mapping) else {"message": error.body}
        said = str(stated.get("message") or stated.get("detail") or error.response.text)
        code, status = stated.get("code") or stated.get("type"), error.status_code
        other = "redirected" if status < 400 else "server_error" if status >= 500 else "refused"
        kind = "quota" if status == 429 and code in EMPTY_ACCOUNT else STATUS.get(status, other)
        parameter = f"{stated.get('param') or ''}"
        pause = error.response.headers.get("retry-after", "")
    elif isinstance(error, openai.APITimeoutError):
        kind, said = "timeout", "there was no answer in time"
    elif isinstance(error, openai.APIConnectionError):
        kind = "unreachable" if type(cause).__name__ == "ConnectError" else "dropped"
        said = f"{type(cause).__name__}: {cause}".rstrip(": ")
    elif isinstance(error, UnicodeDecodeError):
        kind, said = "unreadable", "its answer is no text"
    else:
        return None
    said, parameter = short(address.scrubbed(said)), short(address.scrubbed(parameter)) if parameter else ""
    found, remedy = _MESSAGES[kind]
    if kind in ("unauthorized", "forbidden") and address.key_variable and address.is_open:
        remedy = "No key was sent: set the environment variable {address.key_variable}, or {here}.api_key_env."
    what = "the deployment's name and the version" if config.provider == "azure" else "the model's name"
    text = [
        f"endpoints.{role}: {config.model!r} at {address.host} {found}{f' ({status})' if status else ''}"
        f"{f', {attempts} times' if attempts > 1 else ''}: {said.rstrip('.')}.",
        f"It names the field {parameter!r}." if parameter else "",
        f"It asks for a pause of {short(pause)} s." if pause.isdigit() and kind != "quota" else "",
        remedy.format(here=f"endpoints.{role}", config=config, address=address, what=what),
    ]
    named = kind == "refused" and (parameter == "n" or (not parameter and _N.search(said)))
    return (RefusedCount if named else EndpointError)(" ".join(filter(None, text)), kind)


def short(text: str) -> str:
    """Return a server's message as one printable line, cut to `LONGEST` characters."""
    text = printable(text[: 4 * LONGEST]) or "it says nothing"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def printable(text: str) -> str:
    """The text without signs that act and do not show, such as a terminal's escape codes."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in " ".join(text.split()))
