"""When a request is sent again, and after which pause.

Again: 408, 409, 429, 5xx, a dropped connection, a timeout, an answer that cannot be read. Never again: any other refusal, and
a 429 that says the account is empty. Pauses double from half a second, with jitter; a server that says how long to wait is
given that long, and one that asks for longer than `max_wait` is not asked again.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

FIRST_PAUSE = 0.5
"""Seconds before the second attempt, jitter not counted."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
AGAIN = {408: "timeout", 409: "conflict", 425: "overloaded", 429: "rate_limited"}
FINAL = {400: "refused", 401: "unauthorized", 402: "quota", 403: "forbidden", 404: "not_found", 413: "too_long"}
EMPTY_ACCOUNT = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
"""Codes of a 429 that no pause cures."""
HOPELESS = frozenset({"unauthorized", "forbidden", "not_found", "quota", "unreachable", "redirected"})
"""Kinds of failure that are not one request's own: the next one would fare the same."""


class Unreadable(ValueError):
    """An answer that is no JSON, or lacks what it must have; sent again."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in one attempt."""

    kind: str
    said: str
    """What the server, or the connection, said."""
    again: bool
    """Whether another attempt may fare better."""
    wait: float | None = None
    """Seconds that the server asks for; None: it does not say."""
    status: int | None = None
    parameter: str | None = None
    """Field of the request that the server names as the cause."""


def of_status(status: int, code: str | None, said: str, headers: Mapping[str, str]) -> Failure:
    """The failure that an HTTP status stands for.

    Args:
        status: 300 or more.
        code: the server's own name of the error, where it gives one.
        said: its message.
        headers: of the answer, names in lower case.
    """
    if status == 429 and code in EMPTY_ACCOUNT:
        return Failure("quota", said, again=False, status=status)
    if status in AGAIN or status >= 500:
        kind = AGAIN.get(status, "server_error")
        return Failure(kind, said, again=True, wait=asked_pause(headers), status=status)
    if status < 400:
        return Failure("redirected", said, again=False, status=status)
    return Failure(FINAL.get(status, "refused"), said, again=False, status=status)


def asked_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds for which a server asks not to be asked: `retry-after-ms`, `retry-after` (seconds or a date), or, where it
    says that nothing remains, the time until its limits are reset.
    """
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return exact / 1000
    after = headers.get("retry-after")
    if after is not None:
        seconds = _number(after)
        if seconds is not None:
            return seconds
        date = email.utils.parsedate_tz(after)
        if date is not None:
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
    if text is None:
        return None
    text = text.strip()
    if _PART.fullmatch(text) or re.fullmatch(rf"(?:{_PART.pattern})+", text):
        return sum(float(value) * _SECONDS[unit] for value, unit in _PART.findall(text))
    return _number(text)


def pause_before(attempt: int, wait: float | None, max_wait: float, random: Random) -> float | None:
    """Seconds before an attempt; None where the server asks for more than `max_wait`.

    Args:
        attempt: number of the coming attempt, 2 for the first repetition.
        wait: what the server asks for; jitter is added to it, so that those who wait do not all come back at once.
        max_wait: longest pause.
        random: draws the jitter.
    """
    if wait is None:
        return float(min(max_wait, FIRST_PAUSE * 2.0 ** min(attempt - 2, 30)) * random.uniform(0.5, 1.0))
    if wait > max_wait:
        return None
    return wait + random.uniform(0.0, min(1.0, 0.25 * wait, max_wait - wait))


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < 1e9 else None
