"""Failures of an attempt: their kind, whether and after which pause it is repeated, and the message for the user.

Again: 408, 409, 429, 5xx, a dropped connection, a timeout, an answer that cannot be read. Never again: any other refusal, and
a 429 that says the account is empty. Pauses double from half a second, with jitter; a server that says how long to wait is
given that long, and one that asks for longer than `max_retry_wait` is not asked again.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

from skill_ttrl.config import EndpointConfig, Role
from skill_ttrl.llm.openai.address import Address

LONGEST = 400
"""Most characters of a server's message that are shown."""
FIRST_PAUSE = 0.5
"""Seconds before the second attempt, jitter not counted."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
RETRYABLE_STATUS = {408: "timeout", 409: "conflict", 425: "overloaded", 429: "rate_limited"}
FINAL = {400: "refused", 401: "unauthorized", 402: "quota", 403: "forbidden", 404: "not_found", 413: "too_long"}
EMPTY_ACCOUNT = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
"""Codes of a 429 that no pause cures."""
FATAL_KINDS = frozenset({"unauthorized", "forbidden", "not_found", "quota", "unreachable", "redirected"})
"""Kinds of failure that would affect every request, not only this one."""


class MalformedResponse(ValueError):
    """An answer that is no JSON, or lacks what it must have; sent again."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of one attempt."""

    kind: str
    message: str
    """Error message of the server or the connection."""
    retryable: bool
    """True if another attempt may succeed."""
    wait: float | None = None
    """Pause in seconds that the server requests; None if it requests none."""
    status: int | None = None
    parameter: str | None = None
    """Field of the request that the server names as the cause."""


def failure_of(error: Exception, address: Address) -> Failure | None:
    """Classify the exception of one attempt; None for an exception that is a bug in this program."""
    import openai

    def shown(said: object) -> str:
        return short(address.scrubbed(str(said)))

    unreadable = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
    if isinstance(unreadable, MalformedResponse):
        return Failure("unreadable", shown(unreadable), retryable=True)
    if isinstance(error, openai.APIStatusError):
        stated = error.body if isinstance(error.body, Mapping) else {"message": error.body}
        said = stated.get("message") or stated.get("detail") or error.response.text or "it says nothing"
        code, parameter = stated.get("code") or stated.get("type"), stated.get("param")
        found = of_status(error.status_code, code, shown(said), error.response.headers)
        return replace(found, parameter=shown(parameter) if isinstance(parameter, str) else None)
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return Failure("timeout", "there was no answer in time", retryable=True)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        kind = "unreachable" if type(cause).__name__ == "ConnectError" else "dropped"
        return Failure(kind, shown(f"{type(cause).__name__}: {cause}".rstrip(": ")), retryable=True)
    if isinstance(error, UnicodeDecodeError):
        return Failure("unreadable", "its answer is no text", retryable=True)
    return None


def of_status(status: int, code: object, said: str, headers: Mapping[str, str]) -> Failure:
    """The failure that an HTTP status of 300 or more stands for.

    `code` is the server's own name of the error, where it gives one, and `said` its message.
    """
    empty = status == 429 and code in EMPTY_ACCOUNT
    if not empty and (status in RETRYABLE_STATUS or status >= 500):
        kind = RETRYABLE_STATUS.get(status, "server_error")
        return Failure(kind, said, retryable=True, wait=asked_pause(headers), status=status)
    final = "redirected" if status < 400 else FINAL.get(status, "refused")
    return Failure("quota" if empty else final, said, retryable=False, status=status)


def explained(failure: Failure, role: Role, config: EndpointConfig, address: Address, attempts: int) -> str:
    """Build the error message for the user: the endpoint, the failure, and the remedy."""
    status = f" ({failure.status})" if failure.status is not None else ""
    times = f", {attempts} times" if attempts > 1 else ""
    parameter = f" It names the field {failure.parameter!r}." if failure.parameter else ""
    asked = f"endpoints.{role}: {config.model!r} at {address.host}"
    found = f"{_FOUND.get(failure.kind, 'failed')}{status}{times}: {failure.message.rstrip('.')}."
    return f"{asked} {found}{parameter} {_remedy(failure, role, config, address)}"


def asked_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds for which a server asks not to be asked: `retry-after-ms`, `retry-after` (seconds or a date), or, where it
    says that nothing remains, the time until its limits are reset.
    """
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return exact / 1000
    after = headers.get("retry-after")
    seconds = _number(after)
    if seconds is not None:
        return seconds
    date = email.utils.parsedate_tz(after or "")
    if date is not None:
        with suppress(ValueError, OverflowError):  # a date beyond all calendars says nothing
            return max(0.0, email.utils.mktime_tz(date) - time.time())
    return until_reset(headers)


def until_reset(headers: Mapping[str, str]) -> float | None:
    """Seconds until a spent rate limit is reset; None where something remains, or nothing is said."""
    waits = [
        duration(headers.get(f"x-ratelimit-reset-{what}"))
        for what in ("requests", "tokens")
        if _number(headers.get(f"x-ratelimit-remaining-{what}")) == 0
    ]
    known = [wait for wait in waits if wait is not None]
    return max(known) if known else None


def duration(text: str | None) -> float | None:
    """`6m0s`, `1.5s`, `20ms` or a plain number as seconds; None for anything else."""
    text = (text or "").strip()
    if re.fullmatch(rf"(?:{_PART.pattern})+", text):
        return sum(float(value) * _SECONDS[unit] for value, unit in _PART.findall(text))
    return _number(text)


def pause_before(attempt: int, wait: float | None, max_retry_wait: float, random: Random) -> float | None:
    """Seconds before an attempt (2 is the first repetition); None where the server asks for more than `max_retry_wait`.

    Jitter is added to what the server asks for (`wait`), so that those who wait do not all come back at once.
    """
    if wait is None:
        return float(min(max_retry_wait, FIRST_PAUSE * 2.0 ** min(attempt - 2, 30)) * random.uniform(0.5, 1.0))
    if wait > max_retry_wait:
        return None
    return wait + random.uniform(0.0, min(1.0, 0.25 * wait, max_retry_wait - wait))


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
    if failure.wait is not None and failure.wait > config.max_retry_wait:
        return f"It asks for a pause of {failure.wait:g} s, more than {here}.max_retry_wait ({config.max_retry_wait:g} s): raise it, or try later."
    if failure.kind == "timeout":
        return f"Raise {here}.timeout ({config.timeout:g} s), or lower {here}.max_concurrency."
    if failure.kind == "unreachable":
        return f"Check that the server runs and that {here}.base_url ({address.base_url}) is right."
    return f"Try later, or raise {here}.max_retries ({config.max_retries})."


def short(text: str) -> str:
    """Return a server's message as one printable line, cut to `LONGEST` characters."""
    text = " ".join(printable(text[: 4 * LONGEST]).split()) or "it says nothing"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def printable(text: str) -> str:
    """The text without signs that act and do not show, such as a terminal's escape codes."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in " ".join(text.split()))


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None
