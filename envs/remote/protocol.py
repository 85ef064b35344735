"""Messages between `RemoteEnv` and the server of `skillttrl envs serve`, as JSON.

| request | body | answer |
|---|---|---|
| `GET /v1/health` | | `status` |
| `GET /v1/environment` | | `Description`; with `?tasks=SPLIT` its `tasks` too |
| `POST /v1/sessions` | `NewSession` | `session`, `observation`, `info` |
| `POST /v1/sessions/ID/reset` | `ResetRequest` | `observation`, `info` |
| `POST /v1/sessions/ID/step` | `StepRequest` | `observation`, `reward`, `terminated`, `truncated`, `info` |
| `DELETE /v1/sessions/ID` | | `ended` |

Requests of a session are numbered: the one that opened it is 0, each reset or step after it one more. The server keeps the last answer:
the same request again, with the same number, gets that answer, and nothing is done twice. Any other number is refused with 409, and
the message names the expected one. A number is never used again in a session, so that a request that arrives late cannot act in a later episode.

An answer comes when it is there, however long a step takes. Status 401: token; 403: not allowed; 410: there is no such session; 422: the
environment raised an error; 503: no session is free, see `Retry-After`. Errors are `{"error": {"type": ..., "message": ...}}`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

PROTOCOL = 1
"""Version of these messages; a client refuses a server of another one."""
TOKEN_ENV = "SKILLTTRL_ENV_TOKEN"
"""Environment variable with the token, at the server and at its clients."""
SPLIT_PATTERN = r"^\w[\w.-]{0,63}$"
"""Names of splits that a client may send: none is a path."""


def _is_text(value: Any) -> Any:
    """Check for a `str`. Pydantic's own check refuses halves of characters (lone surrogates), which an action may hold."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


Text = Annotated[Any, AfterValidator(_is_text)]
Number = Annotated[int, Field(strict=True, ge=1)]
Seed = Annotated[int, Field(strict=True)] | None


class Request(BaseModel):
    """Base of the bodies: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class NewSession(Request):
    """Opens a session with an environment of its own, and resets it."""

    request: str = Field("", pattern=r"^[0-9a-f]{0,64}$")
    """Name that the client draws; the same again finds the session that it opened."""
    seed: Seed = None
    options: dict[str, Any] | None = None
    split: str | None = Field(None, pattern=SPLIT_PATTERN)
    """Split with which the environment is made, if it takes one."""


class ResetRequest(Request):
    """Begins another episode."""

    step: Number
    """Number of the request in its session."""
    seed: Seed = None
    options: dict[str, Any] | None = None


class StepRequest(Request):
    """Takes one step."""

    step: Number
    """Number of the request in its session."""
    action: Text


class Start(BaseModel):
    """Answer to a reset."""

    session: str = Field("", pattern=r"^[A-Za-z0-9_-]{0,64}$")
    observation: Text
    info: dict[str, Any]


class Outcome(BaseModel):
    """Answer to a step."""

    observation: Text
    reward: Annotated[int, Field(strict=True, ge=-(10**9), le=10**9)] | Annotated[float, Field(allow_inf_nan=False)]
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Description(BaseModel):
    """Served environment, and the attributes of its class that commands read."""

    protocol: int
    version: str
    """Version of this package at the server."""
    env: str
    """Id by which the server makes it."""
    config_defaults: dict[str, Any]
    splits: list[str]
    expensive: bool
    max_steps: int | None
    """Longest episode, if the environment states one."""
    kwargs: dict[str, Any]
    """Arguments that it is made with at the server."""
    takes_split: bool
    tasks: list[dict[str, Any]] | None = None
    """Tasks of the split that was named; null: every seed is a task."""
