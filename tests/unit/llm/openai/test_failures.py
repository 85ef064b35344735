"""What is said of a failure: its kind by the server's status, and whether it concerns every request."""

from __future__ import annotations

import httpx
import openai
import pytest

from skill_ttrl.config import EndpointConfig
from skill_ttrl.llm.openai.replies import FATAL_KINDS, Address, failure_of

HERE = Address("http://h/v1", "h", "none", key_variable="OPENAI_API_KEY")


def failure(status: int, **error: str) -> Exception:
    response = httpx.Response(status, request=httpx.Request("POST", "http://h/v1"), json={"error": error})
    raised = openai.APIStatusError("m", response=response, body=error)  # type: ignore[arg-type]  # or httpx2's
    found = failure_of(raised, EndpointConfig(model="m"), "policy", HERE, 1)
    assert found is not None and f"({status})" in str(found)
    return found


@pytest.mark.parametrize(
    ("status", "code", "kind", "fatal"),
    [
        (307, "", "redirected", True),
        (400, "", "refused", False),
        (401, "", "unauthorized", True),
        (402, "", "quota", True),
        (403, "", "forbidden", True),
        (404, "", "not_found", True),
        (408, "", "timeout", False),
        (409, "", "conflict", False),
        (413, "", "too_long", False),
        (422, "", "refused", False),
        (429, "rate_limit_exceeded", "rate_limited", False),
        (429, "insufficient_quota", "quota", True),
        (529, "", "server_error", False),
    ],
)
def test_a_status_has_a_kind(status: int, code: str, kind: str, fatal: bool) -> None:
    found = failure(status, code=code, message="no")
    assert found.kind == kind and (kind in FATAL_KINDS) == fatal  # type: ignore[attr-defined]


def test_an_error_of_this_program_is_no_failure_of_a_server() -> None:
    assert failure_of(KeyError("x"), EndpointConfig(model="m"), "policy", HERE, 1) is None
