"""When a request is sent again and after which pause: pure functions of what the server said."""

from __future__ import annotations

import email.utils
import time
from random import Random

import pytest

from skill_ttrl.llm.openai.failures import (
    FATAL_KINDS,
    FINAL,
    asked_pause,
    duration,
    of_status,
    pause_before,
    until_reset,
)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again(status: int) -> None:
    assert of_status(status, None, "busy", {}).retryable


@pytest.mark.parametrize("status", [301, 307, 400, 401, 402, 403, 404, 405, 410, 413, 422])
def test_a_refusal_is_never_tried_again(status: int) -> None:
    assert not of_status(status, None, "no", {}).retryable


def test_an_empty_account_is_no_rate_limit() -> None:
    found = of_status(429, "insufficient_quota", "You exceeded your current quota", {"retry-after": "1"})
    assert (found.kind, found.retryable) == ("quota", False)
    assert of_status(429, "rate_limit_exceeded", "slow down", {}).kind == "rate_limited"


def test_a_prompt_that_is_refused_says_nothing_of_the_next() -> None:
    assert FINAL[400] not in FATAL_KINDS and FINAL[401] in FATAL_KINDS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6m0s", 360.0), ("1.5s", 1.5), ("20ms", 0.02), ("1h2m3s", 3723.0), ("2", 2.0), ("1d", 86400.0)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["soon", "", "-1", "nan", "6m0", "inf", None])
def test_what_is_no_duration_is_none(text: str | None) -> None:
    assert duration(text) is None


def test_milliseconds_come_before_seconds() -> None:
    assert asked_pause({"retry-after-ms": "250", "retry-after": "3"}) == 0.25
    assert asked_pause({"retry-after": "3"}) == 3.0


def test_a_date_is_a_pause_until_then() -> None:
    date = email.utils.formatdate(time.time() + 20, usegmt=True)
    wait = asked_pause({"retry-after": date})
    assert wait is not None and 18 <= wait <= 21
    assert asked_pause({"retry-after": email.utils.formatdate(0)}) == 0.0
    assert asked_pause({"retry-after": "Fri, 31 Dec 99999 23:59:59 GMT"}) is None


def test_a_limit_counts_only_where_nothing_remains() -> None:
    spent = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2s"}
    left = {"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "6m0s"}
    assert until_reset(spent | left) == 2.0
    assert until_reset(left) is None
    assert until_reset(spent | left | {"x-ratelimit-remaining-tokens": "0"}) == 360.0


def test_pauses_double_and_differ_and_have_an_end() -> None:
    drawn = [[pause_before(attempt, None, 8.0, Random(seed)) for attempt in range(2, 40)] for seed in range(50)]
    for row in drawn:
        for number, wait in enumerate(row):
            top = min(8.0, 0.5 * 2**number)
            assert wait is not None and top / 2 <= wait <= top
    assert len({row[0] for row in drawn}) > 40


def test_a_server_is_given_the_time_it_asks_for_and_not_more_than_the_config_allows() -> None:
    for seed in range(50):
        wait = pause_before(2, 3.0, 4.0, Random(seed))
        assert wait is not None and 3.0 <= wait <= 4.0
    assert pause_before(2, 4.1, 4.0, Random(0)) is None
